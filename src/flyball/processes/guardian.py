"""Ends local servers whose parent program was killed, so that no test or trial leaves a broker behind.

A program that is killed with -9 cannot clean up. So with its first server a program starts a guardian: a small
process that reads from a pipe whose other end only the program has. The program writes what it starts; when the
pipe closes, because the program ended in any way, the guardian ends the processes that still run and removes the
temporary folders. (The kernel's own means, a signal at the parent's death, would be sent at the end of the
*thread* that started the server.)

Processes are identified by pid and start time, as in `process`: no other process is ever signalled.
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
    """End this process when ours has ended."""
    _send(f"process {process.pid} {process.started}")


def watch_folder(folder: Path) -> None:
    """Remove this folder and its contents when our process has ended."""
    _send(f"folder {folder}")


def release_process(process: OwnProcess) -> None:
    """Let this process run on when ours has ended."""
    _send(f"release {process.pid} {process.started}")


def _send(line: str) -> None:
    global _guardian, _owner_pid

    with _starting:
        # A forked child shares the parent's pipe and must not write to it.
        if _guardian is None or _guardian.poll() is not None or _owner_pid != os.getpid():
            _owner_pid = os.getpid()
            _guardian = subprocess.Popen(
                [sys.executable, "-m", "flyball.processes.guardian"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the program, not for its guardian
            )
        assert _guardian.stdin is not None
        with suppress(BrokenPipeError):
            _guardian.stdin.write(line + "\n")
            _guardian.stdin.flush()


@atexit.register
def _close() -> None:
    """At a normal exit, let the guardian end what still runs, and wait for it."""
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
        elif what == "release":
            pid, started = rest.split()
            processes = [process for process in processes if process != OwnProcess(int(pid), started)]
        elif what == "folder":
            folders.append(Path(rest))
    for process in processes:
        process.end(_GRACE_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
