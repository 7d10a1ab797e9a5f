"""Ends local servers whose starter was killed, so that no test or trial leaves a broker behind for ever.

A program that is killed with -9 cannot clean up. So the first server that a program starts gets a guardian beside
it: a small process that listens on a pipe whose other end only the program holds. The program writes down what
it started; when the pipe closes, because the program ended in whatever way, the guardian ends what still runs and
removes the temporary folders. (The kernel's own means, a signal at the parent's death, would be sent at the end of
the *thread* that started the server.)

Processes are known by pid and start time, as in `process`: nothing else is ever signalled.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from flyball.processes.process import OwnProcess

_GRACE_S = 10.0

_starting = threading.Lock()
_guardian: subprocess.Popen[str] | None = None
_owner_pid = 0


def watch_process(process: OwnProcess) -> None:
    """End this process when ours is gone."""
    _tell(f"process {process.pid} {process.started}")


def watch_folder(folder: Path) -> None:
    """Remove this folder, with all that is in it, when our process is gone."""
    _tell(f"folder {folder}")


def _tell(line: str) -> None:
    global _guardian, _owner_pid

    with _starting:
        # A forked child shares the parent's pipe, and must not speak in its name.
        if _guardian is None or _guardian.poll() is not None or _owner_pid != os.getpid():
            _owner_pid = os.getpid()
            _guardian = subprocess.Popen(
                [sys.executable, "-m", "flyball.processes.guardian"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the program, whose end it waits for
            )
        assert _guardian.stdin is not None
        with suppress(BrokenPipeError):
            _guardian.stdin.write(line + "\n")
            _guardian.stdin.flush()


@atexit.register
def _dismiss() -> None:
    """An orderly end: the guardian ends what was forgotten, and is waited for."""
    if _guardian is not None and _owner_pid == os.getpid():
        assert _guardian.stdin is not None
        with suppress(BrokenPipeError):
            _guardian.stdin.close()
        _guardian.wait()


def main() -> None:
    processes: list[OwnProcess] = []
    folders: list[Path] = []
    for line in sys.stdin:
        what, _, rest = line.strip().partition(" ")
        if what == "process":
            pid, started = rest.split()
            processes.append(OwnProcess(int(pid), started))
        elif what == "folder":
            folders.append(Path(rest))
    for process in processes:
        process.end(_GRACE_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
