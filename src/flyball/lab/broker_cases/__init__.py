"""Cases of the benchmark `brokers`, one file a broker.

Each file has `def cases(context: BenchContext) -> Iterator[Row]`; a new file is found by itself.
"""
