"""Broker URLs: what is read, what is refused, and that no password shows."""

from __future__ import annotations

import pytest

from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue


def parse(text: str, **environment: str) -> BrokerUrl:
    return BrokerUrl.parse(text, environment)


def test_parts() -> None:
    url = parse("AMQP://guest:s%40cret@[::1]:5672,other:5673/my%2Fhost?heartbeat_s=5&ca=/x.pem")
    assert (url.scheme, url.hosts, url.path) == ("amqp", (("::1", 5672), ("other", 5673)), "/my/host")
    assert (url.user, url.password) == ("guest", "s@cret")
    assert dict(url.options) == {"heartbeat_s": "5", "ca": "/x.pem"}


@pytest.mark.parametrize(
    ("text", "path"), [("sqlite:///a.db", "/a.db"), ("sqlite:////var/a.db", "//var/a.db"), ("memory://", "")]
)
def test_urls_without_a_host(text: str, path: str) -> None:
    assert (parse(text).hosts, parse(text).path) == ((), path)


def test_options_without_a_path() -> None:
    url = parse("memory://name?blocked_timeout_s=0.5")
    assert url.hosts == (("name", None),)
    assert url.number("blocked_timeout_s", 30.0) == 0.5
    assert url.number("other", 30.0) == 30.0


def test_credentials_come_from_the_environment_unless_given() -> None:
    secrets = {"FLYBALL_BROKER_USER": "env", "FLYBALL_BROKER_PASSWORD": "hidden"}
    assert parse("amqp://h/", **secrets).password == "hidden"
    assert parse("amqp://me:own@h/", **secrets).password == "own"
    assert parse("amqp://h/").user is None


@pytest.mark.parametrize(
    "text", ["amqp://me:hunter2@h:99/", "amqp://me:hunter2@h", "kafka://me:hunter2@a:1,b:2/x?y=1"]
)
def test_no_password_shows(text: str) -> None:
    url = parse(text)
    assert url.password == "hunter2"
    assert "hunter2" not in f"{url} {url!r}"


@pytest.mark.parametrize(
    "text",
    [
        "amqp://h/?management=http://admin:hunter2@h:15672",
        "amqp://h/?management=admin:hunter2@h:15672",
        "amqp://h/?password=hunter2",
        "kafka://h/?sasl.password=hunter2",
        "kafka://h/?ssl_key_passwd=hunter2&tls=1",
    ],
)
def test_no_secret_of_an_option_shows(text: str) -> None:
    url = parse(text)
    assert "hunter2" in str(dict(url.options))
    assert "hunter2" not in f"{url} {url!r}"
    with pytest.raises(InvalidValue) as caught:
        url.check_options("tls")
    assert "hunter2" not in str(caught.value)


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"key_file in .* needs cert_file"):
        parse("amqps://h/?key_file=k.pem").tls_context()


def test_hosts_are_printed_as_they_are_written() -> None:
    text = "amqp://[::1]:5672,b:5673,c/x"
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "events.db",
        "://x",
        "amqp://u:hunter2@h:port/",
        "amqp://u:hunter2@h:0",
        "kafka://h:65536",
        "u:hunter2@h",
        "amqp://u:hunter2/x@h:99",
    ],
)
def test_bad_urls_are_refused_without_telling_the_password(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_options_are_named() -> None:
    url = parse("amqp://u:hunter2@h/?heartbeat_s=soon&window=x")
    with pytest.raises(InvalidValue, match=r"heartbeat_s.*'soon'"):
        url.integer("heartbeat_s", 5)
    with pytest.raises(InvalidValue, match=r"window.*'x'"):
        url.number("window", 5)
    with pytest.raises(InvalidValue, match=r"unknown option 'window'.* has heartbeat_s") as caught:
        url.check_options("heartbeat_s")
    assert "hunter2" not in str(caught.value)
    url.check_options("heartbeat_s", "window")
