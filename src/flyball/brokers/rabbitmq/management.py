"""RabbitMQ's management plugin: it lists queues and reports how they count deliveries, which AMQP cannot."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from flyball.brokers.port import LoginRefused, Unreachable
from flyball.brokers.rabbitmq.policy import DeliveryCounting, limits_by_default
from flyball.brokers.url import BrokerUrl, without_login
from flyball.errors import InvalidValue

_DEFAULT_LIMIT = 20  # of quorum queues since version 4


@dataclass(frozen=True, slots=True)
class Management:
    """The plugin's HTTP API on each of the broker's hosts."""

    addresses: tuple[str, ...]
    authorization: str = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)

    @classmethod
    def of(cls, url: BrokerUrl) -> Management:
        """From the option `management`: a port on the broker's hosts, or an http(s) address.

        A port is asked with TLS if the broker is. The login is the broker's, unless the address has one.
        """
        option = url.options["management"]
        secure = url.scheme == "amqps"
        user, password = url.user or "guest", url.password or "guest"
        if option.isdecimal():
            scheme = "https" if secure else "http"
            names = [f"[{host}]" if ":" in host else host for host, _ in url.hosts] or ["localhost"]
            addresses = [f"{scheme}://{name}:{option}" for name in names]
        elif option.startswith(("http://", "https://")):
            secure = option.startswith("https://")
            login, _, place = option.partition("://")[2].rpartition("@")
            addresses = [f"{urlsplit(option).scheme}://{place}".rstrip("/")]
            if login:
                name, _, secret = login.partition(":")
                user, password = unquote(name), unquote(secret)
        else:
            raise InvalidValue(
                f"management in {url} must be a port or begin with http://, got {without_login(option)!r}"
            )
        authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls(tuple(addresses), authorization, url.tls_context() if secure else None)

    def queues(self, vhost: str) -> list[str]:
        """The names of all queues of a virtual host. Waits for the answer: call it in a thread."""
        return sorted(
            str(queue["name"]) for queue in self._get(f"/api/queues/{quote(vhost, safe='')}?columns=name")
        )

    def counting(self, vhost: str, queue: str, *, version: str) -> DeliveryCounting:
        """How this queue counts deliveries. Waits for the answer: call it in a thread."""
        columns = "type,arguments,effective_policy_definition"
        report = self._get(f"/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}?columns={columns}")
        return counting(report, version)

    def has_dead_letter_exchange(self, vhost: str, queue: str) -> bool | None:
        """By arguments or policy; None: the policy is not known yet. Waits for the answer: call it in a thread."""
        columns = "arguments,effective_policy_definition"
        report = self._get(f"/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}?columns={columns}")
        if "x-dead-letter-exchange" in (report.get("arguments") or {}):
            return True
        if "effective_policy_definition" not in report:
            return None
        return "dead-letter-exchange" in (report["effective_policy_definition"] or {})

    def single_active(self, vhost: str, queue: str) -> tuple[bool, bool]:
        """Whether it has a single active consumer, and whether it is a quorum queue. Call it in a thread."""
        columns = "type,arguments"
        report = self._get(f"/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}?columns={columns}")
        arguments = report.get("arguments") or {}
        return arguments.get("x-single-active-consumer") is True, report.get("type") == "quorum"

    def _get(self, path: str) -> Any:
        for number, address in enumerate(self.addresses, 1):
            try:
                return self._get_from(address, path)
            except Unreachable:
                if number == len(self.addresses):
                    raise
        raise AssertionError("unreachable: the last address answers or raises")

    def _get_from(self, address: str, path: str) -> Any:
        # `of` has checked the scheme: http or https, never a file.
        request = urllib.request.Request(address + path, headers={"Authorization": self.authorization})
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise LoginRefused(f"{address} refused the login: check user and password") from None
            raise Unreachable(f"{address} answered {error.code} {error.reason}: is it RabbitMQ's?") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(
                f"RabbitMQ's management plugin does not answer at {address} ({error}): check the port and "
                "that the plugin is enabled"
            ) from None


def counting(queue: Mapping[str, Any], version: str) -> DeliveryCounting:
    """The counting in the plugin's report of a queue: the lower of the queue's own limit and its policy's applies.

    Policies are part of a queue's statistics, which appear about ten seconds after its declaration.

    >>> both = {"arguments": {"x-delivery-limit": 5}, "effective_policy_definition": {"delivery-limit": 3}}
    >>> counting({"type": "quorum", **both}, "3.10.8")
    DeliveryCounting(counts=True, limit=3, known=True)
    >>> counting({"type": "quorum", "arguments": {}, "effective_policy_definition": []}, "3.10.8")
    DeliveryCounting(counts=True, limit=None, known=True)
    >>> counting({"type": "quorum", "arguments": {}}, "4.1.0")
    DeliveryCounting(counts=True, limit=20, known=False)
    >>> counting({"type": "classic", "arguments": {}}, "3.10.8")
    DeliveryCounting(counts=False, limit=None, known=True)
    """
    if queue.get("type") != "quorum":
        return DeliveryCounting(counts=False)
    # Erlang has one empty list for an object and an array.
    own_limit = (queue.get("arguments") or {}).get("x-delivery-limit")
    policy_limit = (queue.get("effective_policy_definition") or {}).get("delivery-limit")
    limits = [limit for limit in (own_limit, policy_limit) if isinstance(limit, int)]
    if not limits and limits_by_default(version):
        limits = [_DEFAULT_LIMIT]
    limits = [limit for limit in limits if limit >= 0]  # below 0: no limit
    return DeliveryCounting(True, min(limits, default=None), known="effective_policy_definition" in queue)
