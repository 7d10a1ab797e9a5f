"""Benchmarks, one file each.

A benchmark file has a docstring (its first line is the help text) and a function

    def run(context: BenchContext) -> Iterator[Row]

that calls only what a user of Flyball calls, with default settings, and measures our figure beside a peer's in
the same run. Its rows are printed as they come.
"""
