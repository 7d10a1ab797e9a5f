"""The Spark sink `flyball`: rows of a query or a batch job as messages of a channel, sent by the executors."""
