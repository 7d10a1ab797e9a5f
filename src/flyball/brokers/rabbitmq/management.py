"""RabbitMQ's management plugin: it lists queues and reports how they count deliveries, which AMQP cannot."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from flyball.brokers.port import LoginRefused, Unreachable
from flyball.brokers.rabbitmq.policy import DeliveryCounting
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue

_DEFAULT_LIMIT = 20  # of quorum queues since version 4


@dataclass(frozen=True, slots=True)
class Management:
    """The plugin's HTTP API; it takes the same login as AMQP."""

    address: str
    authorization: str = field(repr=False)

    @classmethod
    def of(cls, url: BrokerUrl) -> Management:
        """From the option `management`: a port on the broker's host, or an http(s) address."""
        address = url.options["management"]
        if address.isdecimal():
            host = url.hosts[0][0] if url.hosts else "localhost"
            address = f"http://[{host}]:{address}" if ":" in host else f"http://{host}:{address}"
        elif not address.startswith(("http://", "https://")):
            raise InvalidValue(f"management in {url} must be a port or begin with http://, got {address!r}")
        login = f"{url.user or 'guest'}:{url.password or 'guest'}"
        return cls(address.rstrip("/"), "Basic " + base64.b64encode(login.encode()).decode())

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

    def _get(self, path: str) -> Any:
        # `of` has checked the scheme: http or https, never a file.
        request = urllib.request.Request(self.address + path, headers={"Authorization": self.authorization})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise LoginRefused(f"{self.address} refused the login: check user and password") from None
            raise Unreachable(f"{self.address} answered {error.code} {error.reason}: is it RabbitMQ's?") from None
        except OSError as error:
            raise Unreachable(
                f"RabbitMQ's management plugin does not answer at {self.address} ({error}): check the port and "
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
    if not limits and version.partition(".")[0].isdecimal() and int(version.partition(".")[0]) >= 4:
        limits = [_DEFAULT_LIMIT]
    limits = [limit for limit in limits if limit >= 0]  # below 0: no limit
    return DeliveryCounting(True, min(limits, default=None), known="effective_policy_definition" in queue)
