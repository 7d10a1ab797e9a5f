"""A connection to RabbitMQ's stream port, on rstream's protocol layer, and its URL.

    rabbitmq-stream://user:password@host:5552/vhost?amqp_port=5672&management=15672

Options: `amqp_port` (groups keep their state in AMQP queues), `management` (port of the HTTP API: listing and
wildcards need it), `confirm_timeout_s` (how long a server may confirm nothing before it counts as frozen),
`tls` (0, 1; for all ports) with `ca_file`, `cert_file`, `key_file`, `dedup_ids` (finished ids that a
receiver remembers).

A log of N partitions is N plain streams, `log-0` … `log-(N-1)`: super streams are not usable on RabbitMQ 3.10.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass

from rstream import exceptions, schema
from rstream.client import Client
from rstream.connection import Connection, ConnectionClosed
from rstream.constants import Key, OffsetType

from flyball.backoff import delays_s
from flyball.brokers.core.dedup import MAX_IDS
from flyball.brokers.core.tcp_progress import tcp_progress
from flyball.brokers.port import BrokerError, LoginRefused, Unreachable, no_such_channel
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue
from flyball.futures import wait_at_most

# Its warnings reach the caller as exceptions.
logging.getLogger("rstream").addHandler(logging.NullHandler())
logging.getLogger("rstream").propagate = False

_FRAME_MAX = 64 << 20
_HEARTBEAT_S = 10
LOGIN_S = 5.0
"""A login that takes longer is given up, and tried again by whoever needs it: the port of a server that is just
starting, or of a proxy in front of it, may accept a connection and never answer."""
_MOST_PARTITIONS = 250  # one byte numbers the publishers and subscriptions of a connection
_ENVELOPE_BYTES = 1 << 17  # for id, key and headers: more than MAX_HEADERS_BYTES
_OK = 1
_NOT_AVAILABLE = 6
_METADATA_ATTEMPTS = 30
"""Requests for a stream that exists and is not available yet, in all about 13 s."""
_TLS_FILES = ("ca_file", "cert_file", "key_file")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """A checked rabbitmq-stream:// URL."""

    url: BrokerUrl
    host: str
    port: int
    vhost: str
    amqp_port: int
    management_port: int | None
    confirm_timeout_s: float
    dedup_ids: int
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, url: BrokerUrl) -> StreamSettings:
        url.check_options("amqp_port", "management", "confirm_timeout_s", "dedup_ids", "tls", *_TLS_FILES)
        if len(url.hosts) != 1:
            raise InvalidValue(f"{url} must name one host, as in rabbitmq-stream://localhost:5552/")
        host, port = url.hosts[0]
        if url.options.get("tls", "0") not in ("0", "1"):
            raise InvalidValue(f"option tls of {url} must be 0 or 1, got {url.options['tls']!r}")
        secure = url.options.get("tls", "0") == "1"
        return cls(
            url=url,
            host=host,
            port=port or (5551 if secure else 5552),
            vhost=url.path[1:] or "/",
            amqp_port=url.integer("amqp_port", 5671 if secure else 5672),
            management_port=url.integer("management", 0) or None,
            confirm_timeout_s=url.number("confirm_timeout_s", 1.0),
            dedup_ids=url.integer("dedup_ids", MAX_IDS),
            tls=url.tls_context() if secure else None,
        )


class _BulkConnection(Connection):
    """Reads whole frames (rstream reads 256 bytes at a time), and confirms without a walk per number."""

    async def _read(self, n: int) -> bytearray:
        assert self._reader is not None
        try:
            return bytearray(await self._reader.readexactly(n))
        except asyncio.IncompleteReadError:
            raise ConnectionClosed from None

    async def read_frame(self) -> schema.Frame:
        raw = bytes(await self._read_frame_raw())
        if int.from_bytes(raw[:2]) == Key.PublishConfirm.value:
            (count,) = struct.unpack_from(">I", raw, 5)
            return schema.PublishConfirm(raw[4], list(struct.unpack_from(f">{count}Q", raw, 9)))
        return _decode(raw)


def _decode(raw: bytes) -> schema.Frame:
    from rstream.encoding import decode_frame

    return decode_frame(raw)


class StreamClient(Client):
    """One connection; `on_loss` is called with it when it breaks."""

    def __init__(self, settings: StreamSettings, on_loss: Callable[[StreamClient], None]) -> None:
        super().__init__(
            settings.host,
            settings.port,
            ssl_context=settings.tls,
            frame_max=_FRAME_MAX,
            heartbeat=_HEARTBEAT_S,
            connection_name="flyball",
            connection_closed_handler=lambda _: None,  # rstream would log it; see _listener
        )
        self.settings = settings
        self._on_loss = on_loss

    @classmethod
    async def open_to(
        cls, settings: StreamSettings, on_loss: Callable[[StreamClient], None] = lambda _: None
    ) -> StreamClient:
        client = cls(settings, on_loss)
        try:
            await wait_at_most(client._log_in(), LOGIN_S)
        except (OSError, ConnectionClosed, TimeoutError) as error:
            await client.abandon()
            raise Unreachable(
                f"no answer from {settings.url} ({str(error) or type(error).__name__}): is RabbitMQ "
                "running there with the stream plugin?"
            ) from None
        except (exceptions.ServerError, AssertionError) as error:
            await client.abandon()
            raise LoginRefused(
                f"{settings.url} refused the login: check user, password and virtual host ({type(error).__name__})"
            ) from None
        except BaseException:  # the caller gave up: nobody else would end the connection
            await client.abandon()
            raise
        return client

    async def _log_in(self) -> None:
        self._conn = _BulkConnection(self.host, self.port, self._ssl_context)
        await self._conn.open()
        self.start_task("listener", self._listener())
        self.add_handler(schema.Heartbeat, self._on_heartbeat)
        self.add_handler(schema.MetadataUpdate, self._on_metadata_update)
        url = self.settings.url
        await self.authenticate(self.settings.vhost, url.user or "guest", url.password or "guest")

    async def _listener(self) -> None:
        """Read until the connection is lost.

        However the loss was noticed: rstream calls its own handler for a failed read only. After a failed write
        (a login to a port that resets the connection at once) requests would wait for their answers, and whoever
        uses the connection would not open another one.
        """
        await super()._listener()
        self._handle_close()

    def _handle_close(self) -> None:
        for task in self._tasks.values():
            if task is not asyncio.current_task():
                task.cancel()
        self._fail_requests()
        self._on_loss(self)

    def _fail_requests(self) -> None:
        """End the requests that wait for an answer: none will come."""
        for waiter in list(self._waiters.values()):
            if not waiter.done():
                waiter.set_exception(ConnectionClosed())
                waiter.exception()  # its request may have ended already: asyncio would log that nobody looked

    def _on_metadata_update(self, _: schema.MetadataUpdate) -> None:
        """A stream lost its leader or was deleted: the server has forgotten our publishers and subscriptions."""
        self.cut()

    async def send_frame(self, frame: schema.Frame, version: int = 1) -> None:
        """Write a frame; a request fails at once if the connection is lost.

        rstream's own method writes nothing then and does not say so: the request would wait its full time for the
        answer.
        """
        if self.is_connection_alive():
            await super().send_frame(frame, version)
        if not self.is_connection_alive():
            self._fail_requests()

    async def send_messages(self, frame: schema.Publish) -> None:
        """Write a frame; raises one of `FAILURES` if the connection is lost (rstream's own method is silent then).

        The frame is written as a whole or not at all, also if the caller is cancelled while the socket is full.
        """
        if self._conn is None or not self.is_connection_alive():
            raise ConnectionClosed
        await self._conn.write_frame_publish(frame)

    @property
    def acknowledged_bytes(self) -> int:
        """What the server's kernel has acknowledged of what was sent."""
        writer = None if self._conn is None else self._conn._writer
        return 0 if writer is None else tcp_progress(writer.get_extra_info("socket")).acknowledged_bytes

    def cut(self) -> None:
        """End the connection as if it had broken: all is set up again on the next one."""
        if self._conn is not None and self._conn._writer is not None:
            self._conn._writer.transport.abort()

    async def abandon(self) -> None:
        """Drop the connection without telling the server, which may be frozen."""
        self._is_not_closed = False
        for name in list(self._tasks):
            if self._tasks[name] is not asyncio.current_task():
                await self.stop_task(name)
        self.cut()
        self._conn = None
        self._fail_requests()

    @property
    def max_body_bytes(self) -> int:
        return self.frame_max - _ENVELOPE_BYTES

    async def partitions(self, log: str) -> int:  # type: ignore[override]  # rstream's returns names
        """How many partitions a log has; 0: there is no such log."""
        names = [stream_name(log, number) for number in range(_MOST_PARTITIONS)]
        for pause_s in delays_s(_METADATA_ATTEMPTS, longest_s=0.5):
            request = schema.Metadata(self._corr_id_seq.next(), streams=names)
            try:
                answer = await self.sync_request(
                    request, resp_schema=schema.MetadataResponse, raise_exception=False
                )
            except (OSError, ConnectionClosed):  # also after a time without an answer
                raise Unreachable(f"{self.settings.url} does not answer") from None
            codes = {each.name: each.response_code for each in answer.metadata}
            # A server that has just come back knows its streams before it can serve them.
            if _NOT_AVAILABLE not in codes.values():
                return next((n for n, name in enumerate(names) if codes.get(name) != _OK), len(names))
            await asyncio.sleep(pause_s)
        raise Unreachable(f"log {log!r} on {self.settings.url} exists and is not available")

    async def require_partitions(self, log: str) -> int:
        count = await self.partitions(log)
        if not count:
            raise no_such_channel("log", log, f"on {self.settings.url}")
        return count


def stream_name(log: str, partition: int) -> str:
    return f"{log}-{partition}"


def offset_spec(kind: OffsetType, offset: int | None = None) -> schema.OffsetSpec:
    return schema.OffsetSpec.from_params(kind, offset)


# What a request may raise (a server that refuses a login closes the connection).
FAILURES = (exceptions.ServerError, TimeoutError, OSError, ConnectionClosed)


def to_broker_error(error: Exception, settings: StreamSettings, log: str) -> BrokerError:
    if isinstance(error, exceptions.StreamDoesNotExist):
        return no_such_channel("log", log, f"on {settings.url}")
    # A stream without a leader (its server is just starting) is as unreachable as its server.
    away = (TimeoutError, OSError, ConnectionClosed, exceptions.StreamNotAvailable, exceptions.LeaderNotAvailable)
    if isinstance(error, away):
        return Unreachable(f"{settings.url} does not answer (log {log!r})")
    return BrokerError(f"{settings.url} reported {type(error).__name__} (log {log!r})")
