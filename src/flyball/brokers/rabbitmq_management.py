"""The one thing AMQP cannot do and RabbitMQ's management plugin can: name all queues."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import quote

from flyball.brokers.port import LoginRefused, Unreachable
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Management:
    """The plugin's HTTP API; it takes the same login as AMQP."""

    address: str
    authorization: str = field(repr=False)

    @classmethod
    def of(cls, url: BrokerUrl) -> Management:
        """From the option `management`: a port on the broker's host, or an http(s) address."""
        given = url.options["management"]
        if given.isdecimal():
            host = url.hosts[0][0] if url.hosts else "localhost"
            given = f"http://[{host}]:{given}" if ":" in host else f"http://{host}:{given}"
        elif not given.startswith(("http://", "https://")):
            raise InvalidValue(f"management in {url} has to be a port or begin with http://, not {given!r}")
        login = f"{url.user or 'guest'}:{url.password or 'guest'}"
        return cls(given.rstrip("/"), "Basic " + base64.b64encode(login.encode()).decode())

    def queues(self, vhost: str) -> list[str]:
        """The names of all queues of a virtual host. Waits for the answer: call it in a thread."""
        address = f"{self.address}/api/queues/{quote(vhost, safe='')}?columns=name"
        # The scheme was checked when the address was given: http or https, never a file.
        request = urllib.request.Request(address, headers={"Authorization": self.authorization})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return sorted(str(queue["name"]) for queue in json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise LoginRefused(f"{self.address} refused the login: check user and password") from None
            raise Unreachable(f"{self.address} answered {error.code} {error.reason}: is it RabbitMQ's?") from None
        except OSError as error:
            raise Unreachable(
                f"RabbitMQ's management plugin does not answer at {self.address} ({error}): check the port and "
                "that the plugin is enabled"
            ) from None
