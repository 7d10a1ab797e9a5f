"""A lock on a file: one process at a time, and free again however its holder ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flyball.file_lock import lock_file

HOLD = "import sys, time; from flyball.file_lock import lock_file; from pathlib import Path\n" + (
    "held = lock_file(Path(sys.argv[1])); print('held', flush=True); time.sleep(3600)"
)


def test_a_lock_excludes_other_processes_and_dies_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            lock_file(path, wait=False)
        got = threading.Event()

        def wait() -> None:
            with lock_file(path):
                got.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not got.wait(0.2)
        holder.send_signal(signal.SIGKILL)
    waiting.join()
    assert got.is_set()


def test_a_closed_lock_is_free_and_the_file_keeps_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("something")
    for _ in range(2):
        with lock_file(path, wait=False), pytest.raises(BlockingIOError):
            lock_file(path, wait=False)
    assert path.read_text() == "something"
