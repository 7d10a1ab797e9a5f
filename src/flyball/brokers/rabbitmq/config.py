"""The settings in an `amqp://` or `amqps://` URL, such as

    amqp://user:password@host:5672/vhost?queue_type=quorum&management=15672

Options: `queue_type` (classic, quorum; of queues that are declared), `delivery_limit` (of quorum queues that are
declared), `management` (port or URL of the management plugin: `channels` needs it, and it reports the delivery
limits of queues that others declared), `dedup_ids` and `dedup_s` (horizon within which a receiver drops repeats of
what it acknowledged; 0 ids: off), `blocked_timeout_s` (how long a sender waits while the broker applies
back-pressure), `max_body_bytes`, `answer_timeout_s` (how soon a frozen broker is noticed), `reconnect_s` (how long
a lost connection is tried again), `heartbeat_s`, `ca_file`, `cert_file`, `key_file` (TLS).

Several hosts, `amqp://a:5672,b:5672/`, are nodes of one cluster: each connection goes to the first that answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import pika

from flyball.brokers.core.dedup import MAX_AGE_S, MAX_IDS, FinishedIds
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue

EXCHANGE = "flyball"
"""The topic exchange to which every queue and every group is bound."""

_OPTIONS = (
    "queue_type",
    "delivery_limit",
    "management",
    "dedup_ids",
    "dedup_s",
    "blocked_timeout_s",
    "max_body_bytes",
    "answer_timeout_s",
    "reconnect_s",
    "heartbeat_s",
    "ca_file",
    "cert_file",
    "key_file",
)


@dataclass(frozen=True, slots=True)
class RabbitSettings:
    """The URL's options, checked."""

    url: BrokerUrl
    endpoints: tuple[pika.ConnectionParameters, ...]
    """One for each host of the URL."""
    answer_timeout_s: float
    reconnect_s: float
    blocked_timeout_s: float
    queue_type: str | None
    delivery_limit: int | None
    dedup_ids: int
    dedup_s: float

    @property
    def display_url(self) -> str:
        """The URL without its password."""
        return str(self.url)

    @property
    def vhost(self) -> str:
        return self.url.path[1:] or "/"

    @classmethod
    def of(cls, url: BrokerUrl) -> RabbitSettings:
        url.check_options(*_OPTIONS)
        queue_type = url.options.get("queue_type")
        if queue_type not in (None, "classic", "quorum"):
            raise InvalidValue(f"queue_type in {url} must be classic or quorum, got {queue_type!r}")
        settings = cls(
            url,
            _endpoints(url),
            answer_timeout_s=url.number("answer_timeout_s", 1.0),
            reconnect_s=url.number("reconnect_s", 30.0),
            blocked_timeout_s=url.number("blocked_timeout_s", 30.0),
            queue_type=queue_type,
            delivery_limit=_delivery_limit(url),
            dedup_ids=url.integer("dedup_ids", MAX_IDS),
            dedup_s=url.number("dedup_s", MAX_AGE_S),
        )
        FinishedIds(settings.dedup_ids, settings.dedup_s)  # refuse a bad horizon now, not with the first receiver
        return settings

    def finished_ids(self) -> FinishedIds | None:
        return FinishedIds(self.dedup_ids, self.dedup_s) if self.dedup_ids else None

    def max_body_bytes(self, server_version: str) -> int:
        """The limit in the URL, or RabbitMQ's own default: 128 MiB, since version 4 16 MiB."""
        major = server_version.partition(".")[0]
        default = (16 if major.isdecimal() and int(major) >= 4 else 128) << 20
        return self.url.integer("max_body_bytes", default)


def _endpoints(url: BrokerUrl) -> tuple[pika.ConnectionParameters, ...]:
    secure = url.scheme == "amqps"
    tls_options = [name for name in ("ca_file", "cert_file", "key_file") if name in url.options]
    if tls_options and not secure and not url.options.get("management", "").startswith("https://"):
        raise InvalidValue(f"{', '.join(tls_options)} in {url} need TLS: begin the URL with amqps://")
    context = url.tls_context() if secure else None
    return tuple(
        pika.ConnectionParameters(
            host=host,
            port=port or (5671 if secure else 5672),
            virtual_host=url.path[1:] or "/",
            credentials=pika.PlainCredentials(
                url.user or "guest", url.password or "guest", erase_on_connect=False
            ),
            heartbeat=url.integer("heartbeat_s", 10),
            ssl_options=None if context is None else pika.SSLOptions(context, host),
            connection_attempts=1,
            socket_timeout=5,
            stack_timeout=10,
            client_properties={"connection_name": "flyball"},
        )
        for host, port in url.hosts or (("localhost", None),)
    )


def _delivery_limit(url: BrokerUrl) -> int | None:
    if "delivery_limit" not in url.options:
        return None
    limit = url.integer("delivery_limit", 0)
    if url.options.get("queue_type") != "quorum":
        raise InvalidValue(f"delivery_limit in {url} needs queue_type=quorum: no other queue counts deliveries")
    if limit < 1:
        raise InvalidValue(f"delivery_limit in {url} must be an integer >= 1, got {limit}")
    return limit
