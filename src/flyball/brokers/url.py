"""Broker URLs. A printed URL never shows a password, neither the broker's nor one in an option."""

from __future__ import annotations

import math
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from flyball.errors import InvalidValue

# Options whose values are not printed, whether an adapter knows them or not.
_SECRET = re.compile("pass|pwd|secret|token|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class BrokerUrl:
    """A parsed broker URL.

    Credentials come from the URL, else from FLYBALL_BROKER_USER and FLYBALL_BROKER_PASSWORD. Options follow
    the question mark; an adapter refuses options it does not know (`check_options`).

    >>> url = BrokerUrl.parse("amqp://guest:secret@localhost:5672/orders?heartbeat_s=5")
    >>> print(url)
    amqp://guest:***@localhost:5672/orders?heartbeat_s=5
    >>> url
    BrokerUrl('amqp://guest:***@localhost:5672/orders?heartbeat_s=5')
    >>> url.integer("heartbeat_s", 30)
    5
    """

    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
    path: str
    user: str | None
    password: str | None
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] | None = None) -> BrokerUrl:
        scheme, separator, rest = text.partition("://")
        if not separator or not scheme:
            raise InvalidValue(
                f"invalid broker URL {_masked(text)!r}: expected one like sqlite:///events.db or amqp://localhost/"
            )
        # urlsplit keeps several hosts (kafka://a:9092,b:9092) in netloc but chokes on their ports, so only the
        # parts around the host list are left to it.
        authority, slash, tail = rest.partition("/")
        if "?" in authority:
            authority, _, query = authority.partition("?")
            tail, slash = "?" + query + slash + tail, ""
        credentials, _, host_list = authority.rpartition("@")
        user, _, password = credentials.partition(":")
        split = urlsplit(f"//x{slash}{tail}")
        env = os.environ if environment is None else environment
        return cls(
            scheme=scheme.lower(),
            hosts=tuple(_host(item, text) for item in host_list.split(",") if item),
            path=unquote(split.path),
            user=unquote(user) or env.get("FLYBALL_BROKER_USER"),
            password=unquote(password) or env.get("FLYBALL_BROKER_PASSWORD"),
            options=dict(parse_qsl(split.query, keep_blank_values=True)),
        )

    def check_options(self, *known: str) -> None:
        for name in self.options:
            if name not in known:
                valid = ", ".join(sorted(known)) or "none"
                raise InvalidValue(f"unknown option {name!r} in {self}: {self.scheme}:// has {valid}")

    def integer(self, name: str, default: int) -> int:
        text = self.options.get(name)
        if text is None:
            return default
        if not text.isdecimal() or len(text) > 15:
            raise InvalidValue(f"option {name} of {self} must be an integer >= 0, got {text!r}")
        return int(text)

    def number(self, name: str, default: float) -> float:
        text = self.options.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise InvalidValue(f"option {name} of {self} must be a number >= 0, got {text!r}")
        return value

    def tls_context(self) -> ssl.SSLContext:
        """The TLS context of the options ca_file (default: the system's authorities), cert_file and key_file."""
        if "key_file" in self.options and "cert_file" not in self.options:
            raise InvalidValue(f"key_file in {self} needs cert_file, the certificate that belongs to the key")
        try:
            context = ssl.create_default_context(cafile=self.options.get("ca_file"))
            if "cert_file" in self.options:
                context.load_cert_chain(self.options["cert_file"], self.options.get("key_file"))
        except OSError as error:
            raise InvalidValue(f"the certificates named in {self} cannot be read: {error}") from None
        return context

    def __str__(self) -> str:
        login = "" if self.user is None else f"{self.user}:***@"
        hosts = ",".join(_print_host(host, port) for host, port in self.hosts)
        query = "&".join(f"{name}={_print_value(name, value)}" for name, value in self.options.items())
        return f"{self.scheme}://{login}{hosts}{self.path}" + (f"?{query}" if query else "")

    def __repr__(self) -> str:
        return f"BrokerUrl({str(self)!r})"


def _print_host(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _print_value(name: str, value: str) -> str:
    """An option's value without the secrets in it: all of it, or the login of an address."""
    return "***" if _SECRET.search(name) else without_login(value)


def without_login(address: str) -> str:
    """An address for a message, with its login hidden.

    >>> without_login("http://admin:secret@localhost:15672"), without_login("15672")
    ('http://***@localhost:15672', '15672')
    """
    head, separator, rest = address.partition("://") if "://" in address else ("", "", address)
    login, at, host = rest.rpartition("@")
    return f"{head}{separator}***@{host}" if at and login else address


def _host(item: str, text: str) -> tuple[str, int | None]:
    if item.startswith("["):  # [::1]:5672
        host, _, rest = item[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = item.partition(":")
    if not port:
        return host, None
    if not port.isdecimal() or not 0 < int(port) < 65536:
        if port not in _masked(text):  # then it comes before an @: part of a password that is not quoted
            raise InvalidValue(f"the login before {_masked(text)!r} is malformed: write / in it as %2F, ? as %3F")
        raise InvalidValue(f"the port in {_masked(text)!r} must be between 1 and 65535, got {port!r}")
    return host, int(port)


def _masked(text: str) -> str:
    """The text without what comes before the last @, which may be a password even in a malformed URL."""
    head, separator, rest = text.partition("://")
    return head + separator + rest.rpartition("@")[2] if separator else text.rpartition("@")[2]
