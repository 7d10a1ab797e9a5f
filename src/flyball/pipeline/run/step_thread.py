"""A thread that repeats a step until it is stopped, waits while what it needs is away, and keeps what ended it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from flyball.errors import FlyballError
from flyball.pipeline.policy.outages import Outage, after_failure
from flyball.pipeline.run.polling import wait_until

log = logging.getLogger("flyball.pipeline")


class StepThreadStopped(FlyballError, RuntimeError):
    """The thread was stopped before it had done what a caller waits for."""


class StepThread:
    """Calls `step` again and again; False: there was nothing to do, so it waits a little before the next.

    After a failure that `may_pass` it calls `recover`, and then `step`, with growing pauses, until they succeed.
    Any other failure ends the thread.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], bool],
        idle_s: float,
        may_pass: Callable[[Exception], bool] = lambda _: False,
        recover: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._step, self._idle_s = name, step, idle_s
        self._may_pass, self._recover = may_pass, recover
        self._outage: Outage | None = None
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
                if not self._step_once():
                    self.stopping.wait(self._idle_s)
        except Exception as error:  # noqa: BLE001 (check() tells it to the thread that asks)
            self._failure = error

    def _step_once(self) -> bool:
        """Whether there was something to do."""
        try:
            if self._outage is not None:
                self._recover()
            busy = self._step()
        except Exception as error:
            if not self._may_pass(error):
                raise
            self._wait(error)
            return False
        if self._outage is not None and self._outage.reported_s is not None:
            away_s = time.monotonic() - self._outage.since_s
            log.warning("the %s continues after %.0f s", self._name, away_s)
        self._outage = None
        self.idle_passes += not busy
        return busy

    def _wait(self, error: Exception) -> None:
        self._outage, following = after_failure(self._outage, time.monotonic())
        if following.report:
            log.warning("the %s waits, and tries again and again: %s", self._name, error)
        self.stopping.wait(following.pause_s)
