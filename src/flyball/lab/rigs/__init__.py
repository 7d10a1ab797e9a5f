"""Set-ups that benchmarks and experiments share: real servers with their load, or lanes of the twin."""
