"""Worker threads that call a store, so that an event loop never waits for a disk or for a lock."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from flyball.errors import InvalidValue
from flyball.futures import answer, outcome_of
from flyball.store.protocol import StoreError

Result = TypeVar("Result")
Side = Literal["receive", "publish"]


class WorkerPool:
    """A few threads that do store work for one `user`; `run` awaits a call made by one of them.

    Receive work has non-preemptive priority, as in the publisher paper: a free worker begins waiting receive work
    first, and nothing that has begun is interrupted. So the more messages come in, the more of the pool serves
    them, and the finite receive buffer is the last to fill.
    """

    def __init__(self, workers: int = 2, *, user: str = "publisher") -> None:
        if workers < 1:
            raise InvalidValue(f"workers must be an integer >= 1, got {workers!r}")
        self._user = user
        self._calls: dict[Side, deque[Callable[[], None]]] = {"receive": deque(), "publish": deque()}
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"flyball-{user}-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, side: Side, call: Callable[..., Result], *arguments: Any) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def work() -> None:
            answer([future], [outcome_of(call, *arguments)])

        with self._changed:
            if self._closed:
                raise StoreError(f"the store was closed with its {self._user}")
            self._calls[side].append(work)
            self._changed.notify()
        return await future

    def close(self) -> None:
        """Let the workers finish what is queued, and wait for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        receive, publish = self._calls["receive"], self._calls["publish"]
        while True:
            with self._changed:
                while not receive and not publish:
                    if self._closed:
                        return
                    self._changed.wait()
                call = receive.popleft() if receive else publish.popleft()
            call()
