"""Benchmarks and experiments that everyone can run.

Both are registries of files: `lab/benchmarks/NAME.py` is the benchmark NAME, `lab/experiments/NAME.py` the
experiment NAME. A new file is found by `flyball bench` or `flyball lab` without further registration.
"""
