"""What adapters share: base classes, positions in a log, names, argument checks, dedup, round trips."""
