"""The settings in a kafka:// URL, and the client's errors as errors of the port.

    kafka://user:password@host:9092,host2:9092/?tls=1&ca_file=ca.pem

Options: `tls` (0, 1), `ca_file` (PEM), `mechanism` (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; only with a user),
`group_protocol` (consumer, classic), `replication` (of new topics), `max_body_bytes`, `confirm_timeout_s` (how
long a broker may confirm nothing before it counts as frozen), `connect_timeout_s`, `session_timeout_s` (after
which a dead member's partitions go to others; classic groups only, else the broker decides), `dedup_ids` (how many
finished ids a receiver remembers to drop repeats; 0: none).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from flyball.backoff import delays_s
from flyball.brokers.core.dedup import MAX_IDS
from flyball.brokers.port import (
    BrokerError,
    LoginRefused,
    TooLarge,
    Unconfirmed,
    Unreachable,
    no_such_channel,
)
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue

Answer = TypeVar("Answer")

_OPTIONS = (
    "tls",
    "ca_file",
    "mechanism",
    "group_protocol",
    "replication",
    "max_body_bytes",
    "confirm_timeout_s",
    "connect_timeout_s",
    "session_timeout_s",
    "dedup_ids",
)
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# What a record may need beyond its body: key, headers, and the framing of a batch.
_SLACK_BYTES = 1 << 20
_ATTEMPTS = 12
# A leader or coordinator is being chosen: the request succeeds in a moment.
_TRANSIENT = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
}

_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM}
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_MISSING = {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
_AWAY = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._SSL,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """A checked kafka:// URL."""

    url: BrokerUrl
    servers: str
    classic_groups: bool
    replication: int | None
    max_body_bytes: int
    confirm_timeout_s: float
    connect_timeout_s: float
    session_timeout_s: float
    dedup_ids: int

    @classmethod
    def of(cls, url: BrokerUrl) -> KafkaSettings:
        url.check_options(*_OPTIONS)
        if not url.hosts:
            raise InvalidValue(f"{url} names no host: expected a URL like kafka://localhost:9092")
        if url.path not in ("", "/"):
            raise InvalidValue(
                f"unexpected path {url.path!r} in {url}: a Kafka URL ends after its hosts, without a channel"
            )
        protocol = url.options.get("group_protocol", "consumer")
        if protocol not in ("consumer", "classic"):
            raise InvalidValue(f"option group_protocol of {url} must be consumer or classic, got {protocol!r}")
        if url.options.get("tls", "0") not in ("0", "1"):
            raise InvalidValue(f"option tls of {url} must be 0 or 1, got {url.options['tls']!r}")
        mechanism = url.options.get("mechanism", "PLAIN")
        if mechanism not in _MECHANISMS:
            raise InvalidValue(
                f"option mechanism of {url} must be one of {', '.join(_MECHANISMS)}, got {mechanism!r}"
            )
        return cls(
            url=url,
            servers=",".join(f"{host}:{port or 9092}" for host, port in url.hosts),
            classic_groups=protocol == "classic",
            replication=url.integer("replication", 0) or None,
            max_body_bytes=url.integer("max_body_bytes", 16 << 20),
            confirm_timeout_s=url.number("confirm_timeout_s", 1.0),
            connect_timeout_s=url.number("connect_timeout_s", 5.0),
            session_timeout_s=url.number("session_timeout_s", 10.0),
            dedup_ids=url.integer("dedup_ids", MAX_IDS),
        )

    @property
    def max_record_bytes(self) -> int:
        return self.max_body_bytes + _SLACK_BYTES

    def client(self) -> dict[str, Any]:
        """The settings that producers, consumers and admin clients share, with the password: never print them."""
        tls = self.url.options.get("tls") == "1"
        settings: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "log_level": 0,  # it would write to standard error; errors are reported to the caller anyway
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            "topic.metadata.refresh.interval.ms": 10_000,
            "topic.metadata.propagation.max.ms": 3000,
            "security.protocol": ("SASL_" if self.url.user else "") + ("SSL" if tls else "PLAINTEXT"),
        }
        if self.url.user:
            settings["sasl.mechanism"] = self.url.options.get("mechanism", "PLAIN")
            settings["sasl.username"] = self.url.user
            settings["sasl.password"] = self.url.password or ""
        if tls and "ca_file" in self.url.options:
            settings["ssl.ca.location"] = self.url.options["ca_file"]
        return settings


def to_broker_error(error: KafkaError, settings: KafkaSettings, subject: str | None = None) -> BrokerError:
    """The port's error for an error of the client. `subject`: the channel it is about."""
    code, what = error.code(), f" (channel {subject!r})" if subject else ""
    if code in _LOGIN:
        return LoginRefused(f"{settings.url} refused the login: check user and password ({error.str()})")
    if code in _DENIED:
        return LoginRefused(f"{settings.url} does not allow that{what}: {error.str()}")
    if code in _MISSING:
        return no_such_channel("log", subject, f"on {settings.url}")
    if code in LARGE:
        return too_large(settings, subject)
    if code in _AWAY:
        return Unreachable(f"no Kafka broker answers at {settings.url} ({error.str()}): is it running there?")
    return BrokerError(f"{settings.url} reported{what}: {error.str()} ({error.name()})")


def exception_to_broker_error(
    error: KafkaException, settings: KafkaSettings, subject: str | None = None
) -> BrokerError:
    return to_broker_error(error.args[0], settings, subject)


def retry_transient(ask: Callable[[], Answer], settings: KafkaSettings, subject: str) -> Answer:
    """Ask again while a leader or coordinator is being chosen (a topic was just created, a broker restarted)."""
    for delay_s in (*delays_s(_ATTEMPTS - 1), None):
        try:
            return ask()
        except KafkaException as error:
            if delay_s is None or error.args[0].code() not in _TRANSIENT:
                raise exception_to_broker_error(error, settings, subject) from None
            time.sleep(delay_s)
    raise AssertionError("unreachable: the last attempt returns or raises")


def unconfirmed(settings: KafkaSettings, waited_s: float) -> Unconfirmed:
    return Unconfirmed(
        f"{settings.url} did not confirm within {waited_s:.1f} s: the message may be stored or not; "
        "send it again with the same id"
    )


def too_large(settings: KafkaSettings, channel: str | None, size: int | None = None) -> TooLarge:
    what = "a message" if size is None else f"a message of {size} bytes"
    where = f" for {channel!r}" if channel else ""
    return TooLarge(
        f"{what}{where} is too large for {settings.url}: at most {settings.max_body_bytes} bytes of body"
    )
