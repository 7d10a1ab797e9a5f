"""Takes messages as the window allows and hands them over, until the consumer stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from flyball.brokers.port import BrokerError, LoginRefused, NoSuchChannel, Receiver, Unsupported
from flyball.consumer.dispatcher import Handling
from flyball.consumer.policy import DITHER_S
from flyball.consumer.receiver_window import ReceiverWindow

log = logging.getLogger("flyball.consumer")

_WAIT_S = 0.2  # the longest one wait for messages; it is never cancelled, for what came would then be lost
_AGAIN_S = 0.5


async def receive_until(
    stop: asyncio.Event,
    receiver: Receiver,
    handling: Handling,
    window: ReceiverWindow,
    beside: Sequence[asyncio.Task[None]],
    name: str,
) -> None:
    """`beside` are the tasks that the run depends on: one that fails ends it with its error."""
    while not stop.is_set():
        for task in beside:
            if task.done():
                task.result()
        room = receiver.window - handling.under_way
        if room <= 0:
            handling.room.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(handling.room.wait(), DITHER_S)
            continue
        window.asking_since_s = time.monotonic()
        try:
            deliveries = await receiver.receive(room, timeout_s=_WAIT_S)
        except (NoSuchChannel, LoginRefused, Unsupported):
            raise
        except BrokerError as error:
            log.warning("consumer %s: %s; trying again", name, error)
            await asyncio.sleep(_AGAIN_S)
            continue
        finally:
            window.asking_since_s = None
        for delivery in deliveries:
            await window.pace()
            handling.begin(delivery)
