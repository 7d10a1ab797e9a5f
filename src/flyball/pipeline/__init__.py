"""The event pipeline on Spark Structured Streaming; the only room that imports PySpark.

    input log → source → tier 1 in lanes → result queues → combiner → results log → tier 2 → alert log

config      what a pipeline is made of, checked before Spark starts; expressions and functions users may write
runner      the two ways to run one: app (lanes share a Spark application) and process_app (each is one of its own:
            splitter, ticks, worker, supervisor); session is the one place that builds a Spark session
policy      every decision of tier 1, pure: admission, splitting, balancing, combining
source      spark.readStream.format("flyball"): a replayable log as a stream; parse turns bodies into rows,
            flow decides how many come in, shares says which lane reads what
monitor     statistics of the incoming events (sampling) that tier 1 may use as thresholds
tier1       per-event steps: functions DataFrame → DataFrame
lane        results into the lanes' result queues; entry is what stands there, queues their names and levels
combiner    the result queues into one log in event-time order; holding keeps rows until their turn
rules       inter-event rules over the ordered results; tier_two runs them
sinks       copies results and alerts to files, tables, channels and web addresses
sink        appends what a batch brought to a log, exactly once; ledger and audit count where events went
"""
