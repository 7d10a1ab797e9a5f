"""Readers of the queues that a member owns, one file for each kind of hand-over."""
