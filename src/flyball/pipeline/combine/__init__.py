"""The combiner: merges the result queues of all lanes into one stream in the order of event time."""
