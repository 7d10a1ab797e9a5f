"""Run the command line: `python -m flyball …`, or by the path of this file, as spark-submit needs it."""

import sys
from pathlib import Path

# Run by its path, this folder is the first on Python's path, and its packages would shadow others.
sys.path[:] = [
    folder for folder in sys.path if not folder or Path(folder).resolve() != Path(__file__).resolve().parent
]

from flyball.cli import main  # noqa: E402 (the path comes first)

main()
