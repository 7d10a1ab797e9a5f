"""The pauses of failed messages before they are tried again.

While it pauses, a message has a slot beside the window (`policy.retry` says when not), so that another one is
received in its place. After its pause it needs a slot of the window again and takes the next free one, before any
new message: never are more messages handled at a time than the window allows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from flyball.brokers.port import Receiver
from flyball.consumer.policy.retry import slots_for_pauses, update_failing_share
from flyball.consumer.receiver_window import ReceiverWindow


class RetryPauses:
    """Counts messages that pause, and lets them back into the window.

    `unsettled` is the number of all messages that are not settled; `on_slots` is called when their slots change.
    """

    def __init__(
        self,
        window: ReceiverWindow,
        receiver: Receiver,
        *,
        unsettled: Callable[[], int],
        on_slots: Callable[[], None],
    ) -> None:
        self._window, self._receiver = window, receiver
        self._unsettled, self._on_slots = unsettled, on_slots
        self._failing_share = 0.0
        self._ready: deque[asyncio.Future[bool]] = deque()  # their pause is over, they wait for a slot
        self._stopping = False
        self.count = 0

    def add_first_attempt(self, *, failed: bool) -> None:
        """Count the first attempt of a message."""
        if failed or self._failing_share > 0.0:
            self._failing_share = update_failing_share(self._failing_share, failed)

    async def pause(self, pause: Awaitable[bool]) -> bool:
        """Wait for the end of `pause`, then for a slot; True: the consumer stops."""
        self._change_count(1)
        slot: asyncio.Future[bool] | None = None
        try:
            if await pause or self._stopping:
                return True
            slot = asyncio.get_running_loop().create_future()
            self._ready.append(slot)
            self.fill_slots()
            return await slot
        finally:
            if slot is None or slot.cancelled():
                self._change_count(-1)

    def fill_slots(self) -> None:
        """Let messages whose pause is over into free slots of the window."""
        while self._ready and (self._stopping or self._unsettled() - self.count < max(1, self._window.whole)):
            slot = self._ready.popleft()
            if not slot.done():
                self._change_count(-1)
                slot.set_result(self._stopping)

    def stop(self) -> None:
        """End the waiting for slots, and leave the receiver's window alone from now on."""
        self._stopping = True
        self.fill_slots()

    def _change_count(self, change: int) -> None:
        self.count += change
        if self._stopping:
            return
        self._window.add_slots(
            self._receiver,
            slots_for_pauses(self.count, self._failing_share, one_at_a_time=self._window.one_at_a_time),
        )
        self._on_slots()
