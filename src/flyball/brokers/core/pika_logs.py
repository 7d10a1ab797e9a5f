"""What pika logs of our connections: details at DEBUG, since their failures reach the caller as exceptions.

For one attempt to connect that fails pika writes seven lines at ERROR. Lines of connections that the program opens
with pika by itself stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_ours: ContextVar[bool] = ContextVar("flyball_is_our_pika_connection", default=False)


@contextmanager
def log_as_details() -> Iterator[None]:
    """Lower to DEBUG what pika logs of a connection that is opened in here, also later on the event loop.

    Callbacks inherit the context in which pika registered them, and so does what they register in turn.
    """
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


def _lower_ours(record: logging.LogRecord) -> bool:
    if not _is_ours.get():
        return True
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def install() -> None:
    """Filter the loggers of the modules of pika that are loaded; a filter of their parent would not be asked."""
    # Without a handler Python prints the warnings of a library.
    logging.getLogger("pika").addHandler(logging.NullHandler())
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("pika."):
            logging.getLogger(name).addFilter(_lower_ours)
