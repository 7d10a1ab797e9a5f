"""Cases of the benchmark `pipeline`, one file a group of figures.

Each file has `def cases(context: BenchContext) -> Iterator[Row]`. `load` is what they share: events of 200 bytes,
of which half pass the filter, in an embedded log, and the pipeline that works on them.
"""
