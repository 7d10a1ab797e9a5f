"""Groups: which member of a consumer group reads which queue."""
