"""The command of a cluster whose nodes are files: `python scripted_nodes.py FOLDER add|remove NODE`.

It writes each call to FOLDER/calls. It waits while FOLDER/wait-add (or wait-remove) exists, and does what
FOLDER/wrong says: `fail`, `hang`, or `print` something that is no URL.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> int:
    folder, action, node = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    with (folder / "calls").open("a") as calls:
        calls.write(f"{action} {node}\n")
    wrong = (folder / "wrong").read_text() if (folder / "wrong").exists() else ""
    if wrong == "fail":
        sys.stderr.write("no machine is\nleft for it\n")
        return 3
    if wrong == "print":
        sys.stdout.write("all went well\n")
        return 0
    for _ in range(6000):
        if wrong != "hang" and not (folder / f"wait-{action}").exists():
            break
        time.sleep(0.05)
    sys.stdout.write(f"starting {node}\nsqlite:///{folder}/{node}.db\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
