"""`python -m flyball …`, and by the path of this file, which is what spark-submit wants."""

import sys
from pathlib import Path

# Run by its path, this folder is where Python looks first, and its packages would shadow others.
sys.path[:] = [
    place for place in sys.path if not place or Path(place).resolve() != Path(__file__).resolve().parent
]

from flyball.cli import main  # noqa: E402 (the path comes first)

main()
