"""Controllers of a publisher: batch size, poll interval and window from what its broker confirms."""
