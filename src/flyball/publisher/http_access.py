"""Who may publish over HTTP: not web pages of other sites, and with a token only who sends it.

A page of any site can make a browser POST to an address of this machine. The browser names the page in `Origin`,
and the address that the page used in `Host`. A foreign `Host` means that the name of a foreign site leads to this
machine (DNS rebinding), so that `Origin` alone would not tell. Programs send no `Origin`.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping

from flyball.errors import InvalidValue

_MAX_SHOWN = 80


class HttpAccess:
    """Decides by the headers of a request. `host` is where the server listens."""

    def __init__(self, host: str, token: str | None) -> None:
        if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
            raise InvalidValue("the token must be printable ASCII characters without spaces, at least one")
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._own_names = {"localhost", host.lower(), socket.gethostname().lower()}

    def refusal(self, headers: Mapping[str, str], *, publishes: bool) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal, or None. Reading needs no token."""
        authorized = self._authorization is not None and hmac.compare_digest(
            headers.get("authorization", "").encode("latin-1"), self._authorization
        )
        if publishes and self._authorization is not None and not authorized:
            return 401, "the header Authorization must be 'Bearer TOKEN' with the token of this server"
        host = headers.get("host")
        if host is not None and not authorized and not self._is_own(host):
            return 403, (
                f"Host must be an IP address, localhost or the name of this machine, got {host[:_MAX_SHOWN]!r}; "
                "requests with a token may use other names"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, f"web pages of other origins must not publish, got Origin {origin[:_MAX_SHOWN]!r}"
        return None

    def _is_own(self, host: str) -> bool:
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return name.lower() in self._own_names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
