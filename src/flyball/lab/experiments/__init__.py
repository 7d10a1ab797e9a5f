"""Experiments, one file each.

An experiment file has a docstring (its first line is the title) and a function

    def run(context: ExperimentContext) -> Report

that reproduces published figures or shows a property of ours, and says plainly what differs and why. The
report's text, tables and pictures become `NAME/report.md`, its data `NAME/NAME.json`.
"""
