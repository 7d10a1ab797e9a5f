"""Evidence: benchmarks and experiments that anybody can run.

Both are registries of files: `lab/benchmarks/NAME.py` is the benchmark NAME, `lab/experiments/NAME.py` the
experiment NAME. Adding a file adds it to `flyball bench` or `flyball lab`; nothing else has to be told.
"""
