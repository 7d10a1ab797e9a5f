"""Watches a loop while it acts: unreachable goals, lost or inverted gain, stale metrics, oscillation."""
