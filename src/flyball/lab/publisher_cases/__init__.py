"""Cases of the benchmark `publisher`, one file a group of figures.

Each file has `def cases(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]`. `traffic` is what they
share: a publisher under Poisson load, and the times from `publish()` to the broker's confirm.
"""
