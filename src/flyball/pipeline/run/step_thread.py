"""A thread that repeats a step until it is stopped, and keeps the error that ended it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from flyball.errors import FlyballError
from flyball.pipeline.run.polling import wait_until


class StepThreadStopped(FlyballError, RuntimeError):
    """The thread was stopped before it had done what a caller waits for."""


class StepThread:
    """Calls `step` again and again; False: there was nothing to do, so it waits a little before the next."""

    def __init__(self, name: str, step: Callable[[], bool], idle_s: float) -> None:
        self._name, self._step, self._idle_s = name, step, idle_s
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"flyball-{name}", daemon=True)
        self.stopping = threading.Event()
        self.idle_passes = 0

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise what stopped the thread, if something did."""
        if self._failure is not None:
            raise self._failure

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Raises what stops the thread before that."""
        wait_until(reached, self._check_alive, every_s=self._idle_s)

    def _check_alive(self) -> None:
        self.check()
        if not self._thread.is_alive():
            raise StepThreadStopped(f"the {self._name} was stopped before everything was done")

    def stop(self) -> None:
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                if not self._step():
                    self.idle_passes += 1
                    self.stopping.wait(self._idle_s)
        except Exception as error:  # noqa: BLE001 (check() tells it to the thread that asks)
            self._failure = error
