"""Errors of pika as errors of the port, with what the user can do about them."""

from __future__ import annotations

import ssl

from pika.exceptions import (
    AuthenticationError,
    ChannelClosed,
    ConnectionClosed,
    ConnectionOpenAborted,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from flyball.brokers.port import BrokerError, LoginRefused, Unreachable, no_such_channel
from flyball.brokers.rabbitmq.config import RabbitSettings
from flyball.errors import InvalidValue

# What pika concludes from the moment at which a connection was lost; a server that ends says the same.
_LOST_ON_THE_WAY = (IncompatibleProtocolError, ProbableAccessDeniedError, ProbableAuthenticationError)


def connection_error(
    error: BaseException, settings: RabbitSettings, *, has_received: bool, stream_lost: bool
) -> BrokerError:
    """The port's error for a failed connection: wrong password, wrong virtual host, no server.

    `has_received`: the other side sent something before. `stream_lost`: it ended without a word of the broker.
    """
    causes = list(_causes(error))
    vhost = settings.vhost
    for cause in causes:
        if isinstance(cause, IncompatibleProtocolError) and has_received:
            return Unreachable(f"what answers at {settings.display_url} does not speak AMQP: check the port")
        if isinstance(cause, _LOST_ON_THE_WAY) and stream_lost:
            return Unreachable(
                f"{settings.display_url} accepted the connection and closed it: check the port and that the "
                "server runs, behind a proxy too"
            )
        if isinstance(cause, ConnectionOpenAborted):
            return Unreachable(
                f"{settings.display_url} accepts connections and does not answer: check the port, and whether the "
                "server hangs"
            )
        code = cause.reply_code if isinstance(cause, ConnectionClosed) else None
        if isinstance(cause, ProbableAuthenticationError | AuthenticationError) or code == 403:
            return LoginRefused(f"{settings.display_url} refused the login: check user and password")
        if isinstance(cause, ProbableAccessDeniedError) or code == 530:
            return LoginRefused(
                f"{settings.display_url} has no virtual host {vhost!r} for this user: "
                "name another one after the host, or have it created"
            )
        if isinstance(cause, ssl.SSLError):
            return Unreachable(
                f"no TLS connection to {settings.display_url}: {cause.reason or cause}; check port and ca_file"
            )
    deepest = causes[-1]
    detail = deepest.strerror if isinstance(deepest, OSError) and deepest.strerror else repr(deepest)
    return Unreachable(
        f"{settings.display_url} does not answer ({detail}): check host and port and that the server runs"
    )


def _causes(error: BaseException) -> list[BaseException]:
    """An error and the errors that pika wrapped into it, outermost first."""
    causes: list[BaseException] = []
    todo: list[BaseException] = [error]
    while todo and len(causes) < 50:
        cause = todo.pop(0)
        causes.append(cause)
        inner = [
            *getattr(cause, "exceptions", ()),
            getattr(cause, "exception", None),
            cause.__cause__,
            *cause.args,
        ]
        todo += [item for item in inner if isinstance(item, BaseException) and item not in causes]
    return causes


def channel_error(error: BaseException, channel: str, display_url: str) -> BrokerError | InvalidValue:
    """The port's error for a failed call on a channel."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, ChannelClosed):
        code, text = error.reply_code, " ".join(str(error.reply_text).split())
        if code == 404:
            return no_such_channel("queue", channel, f"on {display_url}")
        if code == 403:
            return LoginRefused(f"{display_url} does not allow this on {channel!r}: {text}")
        return InvalidValue(f"{display_url} refused this on {channel!r}: {text}")
    # The code is that of any internal error: only the name of the feature, in the text, says which.
    if isinstance(error, ConnectionClosed) and "transient_nonexcl_queues" in str(error.reply_text):
        return InvalidValue(f"{display_url} permits durable queues only; declare {channel!r} with durable=True")
    return Unreachable(f"the connection to {display_url} was lost during a request about {channel!r}: {error!r}")
