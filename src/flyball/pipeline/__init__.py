"""The event pipeline on Spark Structured Streaming; the only room that imports PySpark.

java      finds a Java for Spark
session   the one place that builds a Spark session
parse     message bodies → typed Arrow batches, malformed ones set aside with the reason
source    spark.readStream.format("flyball"): a replayable log as a stream
tier1     per-event steps: functions DataFrame → DataFrame
rules     inter-event rules over the results
sink      appends what a batch brought to a log, exactly once
app       puts them together from a config
"""
