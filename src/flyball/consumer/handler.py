"""What may be a handler, and whether its result has to be awaited before the message is done.

A function with `async def` runs on the event loop, any other callable in a thread. What the call returns decides
the rest: a lambda, an ordinary decorator or an object round an asynchronous function returns something to await.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from flyball.brokers.port import Message
from flyball.errors import InvalidValue

Handler: TypeAlias = Callable[[Message], Any] | Callable[[Message], Awaitable[Any]]


def check_handler(handler: object) -> None:
    """Raise `InvalidValue` for an object that can never handle a message.

    >>> check_handler(print)
    >>> def rows(message):
    ...     yield message
    >>> check_handler(rows)
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: a handler must not yield: calling rows makes a generator and runs none of it
    >>> check_handler(lambda channel, message: None)
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: a handler must be a function of one message, got <lambda>(channel, message): ...
    """
    if not callable(handler):
        raise InvalidValue(f"handler must be a function of one message, got {handler!r}")
    for function in (handler, handler.__call__):
        awaitable = getattr(getattr(function, "__code__", None), "co_flags", 0) & inspect.CO_ITERABLE_COROUTINE
        if inspect.isasyncgenfunction(function) or (inspect.isgeneratorfunction(function) and not awaitable):
            name = getattr(handler, "__name__", None) or repr(handler)
            raise InvalidValue(f"a handler must not yield: calling {name} makes a generator and runs none of it")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(handler, "__name__", None) or repr(handler)
        raise InvalidValue(
            f"a handler must be a function of one message, got {name}{signature}: {error}"
        ) from None


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it is sure to give something to await, so that it may be called on the event loop."""
    call = getattr(handler, "__call__", None)  # noqa: B004  its flags are read, it is not called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def awaitable_of(result: object) -> Awaitable[Any] | None:
    """Return what has to be awaited before the message counts as handled; None: it is handled.

    >>> awaitable_of("done") is None
    True
    >>> awaitable_of(iter_ for iter_ in ())
    Traceback (most recent call last):
        ...
    TypeError: the handler returned a generator, of which nothing has run: return None or something to await
    """
    if result is None:
        return None  # the everyday case, at a tenth of the cost
    if isinstance(result, concurrent.futures.Future):
        return asyncio.wrap_future(result)
    if inspect.isawaitable(result):
        return result
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = "a generator" if inspect.isgenerator(result) else "an asynchronous generator"
        raise TypeError(
            f"the handler returned {kind}, of which nothing has run: return None or something to await"
        )
    return None
