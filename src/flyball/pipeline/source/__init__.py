"""The Spark data source `flyball`: plans micro-batches under admission control, reads and parses them."""
