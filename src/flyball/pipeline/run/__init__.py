"""Runs a pipeline: inline in one Spark application, or as one process for each part."""
