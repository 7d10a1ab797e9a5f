"""Tier 1: steps on single events, in parallel lanes, each with its own result queue."""
