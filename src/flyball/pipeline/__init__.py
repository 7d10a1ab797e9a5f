"""The event pipeline on Spark Structured Streaming; the only package that imports PySpark.

    input log → source → split → tier1 (parallel lanes) → result queues → combine → results log → tier2 → alert log

config    the TOML configuration, checked before Spark starts
sql       columns and expressions that users write, compiled to Spark SQL
run       the two runners: inline (lanes share one Spark application) and processes (one application per lane)
logs      the logs between the parts: names, entries, watermark marks, fill levels, totals
source    `spark.readStream.format("flyball")`: plans micro-batches under admission control, reads and parses them
split     gives every lane its share of the input, tick by tick
tier1     steps on single events, monitors, and the lanes' result queues
combine   merges the result queues into one log in the order of event time
tier2     rules over many events: alerts and derived events
sinks     copies results and alerts to files, tables, channels and web addresses
policy    pure decisions: admission, splitting, balancing, combining, upstream pipelines, failures
"""
