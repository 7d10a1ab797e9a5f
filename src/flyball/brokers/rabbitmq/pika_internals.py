"""Everything that Flyball uses of pika beyond its public interface; no other file touches private parts of pika.

`tests/brokers/rabbitmq/test_pika_internals.py` names each of them and fails when a version of pika lacks one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pika import spec
from pika.adapters.asyncio_connection import AsyncioConnection, _AsyncioIOServicesAdapter
from pika.exceptions import StreamLostError

from flyball.brokers.rabbitmq.delivery_frames import (
    Handler,
    Properties,
    frame_end,
    read_deliveries,
    split_properties,
)


@dataclass(frozen=True, slots=True)
class _ScheduledCall:
    """pika's reference to something that can be cancelled."""

    handle: asyncio.Handle

    def cancel(self) -> bool:
        self.handle.cancel()
        return True


class IoServices(_AsyncioIOServicesAdapter):  # type: ignore[misc]  # pika has no types here
    """pika's event loop, on which a connection that is reset while it is being made fails at once.

    pika itself raises `ValueError` in a callback, where nobody hears it: the attempt would end by its time limit.
    """

    def create_streaming_connection(
        self, protocol_factory: Any, sock: socket.socket, on_done: Callable[[BaseException], None], **options: Any
    ) -> Any:
        try:
            return super().create_streaming_connection(protocol_factory, sock, on_done, **options)
        except ValueError as error:
            sock.close()
            return _ScheduledCall(self.get_native_ioloop().call_soon(on_done, ConnectionResetError(str(error))))


class DeliveryConnection(AsyncioConnection):  # type: ignore[misc]  # pika has no types here
    """pika's connection with a shorter way for deliveries to the channels named in `handlers`.

    pika makes nine objects of a delivery and passes each frame through four layers of callbacks: most of what
    consuming costs. Everything that `read_deliveries` leaves (large bodies, replies, errors, heartbeats) goes
    pika's way as before.
    """

    _frame_buffer: bytes
    arrived_bytes = 0
    """What the socket has received, also of frames that are not complete."""
    stream_lost = False
    """Whether it ended without a word of the broker; the errors that pika makes of that carry it as text only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.handlers: dict[int, Handler] = {}
        self.large_properties: dict[int, Properties] = {}
        """By channel, of the delivery whose body is on its way through pika."""
        super().__init__(*arguments, custom_ioloop=IoServices(), **options)

    def _on_stream_terminated(self, error: Exception | None) -> None:
        self.stream_lost = isinstance(error, StreamLostError)
        super()._on_stream_terminated(error)

    def _on_data_available(self, data_in: bytes) -> None:
        self.arrived_bytes += len(data_in)
        buffer = self._frame_buffer + data_in
        while buffer:
            used, frames, incomplete = read_deliveries(buffer, self.handlers, self.params.frame_max)
            self.bytes_received += used
            self.frames_received += frames
            self._frame_buffer = buffer = buffer[used:]
            if incomplete:
                return
            end = frame_end(buffer) if self.handlers else None
            if end is None:
                super()._on_data_available(b"")
                return
            # Only this frame goes pika's way: thousands of deliveries may follow the answer to a question.
            frame = buffer[:end]
            parts = split_properties(frame, self.handlers)
            if parts is not None:
                channel, self.large_properties[channel], bare = parts
                self.bytes_received += len(frame) - len(bare)
                frame = bare
            self._frame_buffer = frame
            super()._on_data_available(b"")
            self._frame_buffer = buffer = self._frame_buffer + buffer[end:]


def write(connection: Any, frames: Sequence[bytes]) -> None:
    """Write encoded frames with one call to the operating system."""
    connection._output_marshaled_frames([b"".join(frames)])


def unsent_bytes(connection: Any) -> int:
    """What the connection has not yet handed to the operating system."""
    transport = connection._transport
    return 0 if transport is None else int(transport.get_write_buffer_size())


def socket_of(connection: Any) -> socket.socket | None:
    """The socket of a connection; None once it is closed."""
    transport = connection._transport
    return None if transport is None else transport._sock


def terminate(connection: Any, error: BaseException) -> None:
    """End a connection without waiting: the public `close` waits for an answer and ends in this call."""
    connection._terminate_stream(error)


def cancel_and_keep_deliveries(channel: Any, consumer_tag: str, callback: Callable[[Any], None]) -> None:
    """Cancel a consumer without rejecting the messages that are on their way.

    The public `basic_cancel` rejects what arrives until the broker has answered, and a queue that counts
    deliveries counts that. Here pika knows the consumer until then, so such messages reach the receiver.
    """

    def on_answer(frame: Any) -> None:
        channel._consumers.pop(consumer_tag, None)
        callback(frame)

    answer = (spec.Basic.CancelOk, {"consumer_tag": consumer_tag})
    channel._rpc(spec.Basic.Cancel(consumer_tag=consumer_tag, nowait=False), on_answer, [answer])


def forget_cancelled(channel: Any, consumer_tag: str) -> None:
    """Remove a cancelled consumer, which pika remembers for as long as the channel lives."""
    channel._cancelled.discard(consumer_tag)


def close_with_consumers(channel: Any) -> None:
    """Close a channel without cancelling its consumers first, as the public `close` does.

    A single active consumer that is cancelled has its successor at once, and what it had comes back after later
    messages. If its channel just ends, all goes back first, in order.
    """
    channel._cancelled.update(channel._consumers)
    channel.close()
