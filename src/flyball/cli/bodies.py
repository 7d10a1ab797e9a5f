"""The message bodies of `flyball publish`: from a file, standard input, a text, or generated."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import sys
from collections import deque
from pathlib import Path
from typing import Protocol, TextIO

from flyball.cli.load import Stop
from flyball.errors import InvalidValue

_CHUNK_BYTES = 1 << 16


class Bodies(Protocol):
    """A supply of message bodies."""

    async def take(self, most: int, stop: Stop) -> list[bytes]:
        """Return 1 to `most` bodies as soon as there are any; none: the end, or a signal came."""

    def close(self) -> None:
        """Close the files."""


class Repeated:
    """The same body, `count` times or for ever."""

    def __init__(self, body: bytes, count: int | None) -> None:
        self._body = body
        self._left = count

    async def take(self, most: int, stop: Stop) -> list[bytes]:
        number = 0 if stop else most if self._left is None else min(most, self._left)
        if self._left is not None:
            self._left -= number
        return [self._body] * number

    def close(self) -> None:
        """Do nothing: there is no file."""


class Lines:
    """The lines of a file or of standard input, each as soon as it is available; none waits for a full batch."""

    def __init__(self, path: str, count: int | None) -> None:
        self._descriptor = _open(path)
        self._mine = path != "-"
        self._left = count
        self._line_start: list[bytes] = []
        self._lines: deque[bytes] = deque()
        self._ended = False

    async def take(self, most: int, stop: Stop) -> list[bytes]:
        while not self._lines and not self._ended and not stop:
            await _until_readable(self._descriptor, stop)
            if not stop:
                self._read()
        number = 0 if stop else most if self._left is None else min(most, self._left)
        lines = [self._lines.popleft() for _ in range(min(number, len(self._lines)))]
        if self._left is not None:
            self._left -= len(lines)
        return lines

    def _read(self) -> None:
        """Read a chunk. The start of a line that ends in a later chunk is joined once, when its end is there."""
        chunk = os.read(self._descriptor, _CHUNK_BYTES)
        if not chunk:
            self._ended = True
            if any(self._line_start):
                self._lines.append(b"".join(self._line_start).removesuffix(b"\r"))
            return
        first, *others = chunk.split(b"\n")
        self._line_start.append(first)
        if others:
            lines = [b"".join(self._line_start), *others[:-1]]
            self._lines.extend(line.removesuffix(b"\r") for line in lines)
            self._line_start = others[-1:]

    def close(self) -> None:
        if self._mine:
            os.close(self._descriptor)


def choose(
    *, file: str | None, whole: bool, body: str | None, size: int, count: int | None, seconds: float | None
) -> Bodies:
    """Choose the bodies by the options."""
    if file is not None and body is not None:
        raise InvalidValue(f"--file {file} and --body {body!r} exclude each other; give one of them")
    if whole and file is None:
        raise InvalidValue("--whole needs --file FILE ('-' is standard input)")
    if file is not None and whole:
        return Repeated(_read_all(file), 1 if count is None and seconds is None else count)
    if file is not None:
        return Lines(file, count)
    if body is not None:
        return Repeated(body.encode(), 1 if count is None and seconds is None else count)
    if count is None and seconds is None:
        raise InvalidValue(
            "nothing to publish: give --file FILE ('-' is standard input), --body TEXT, "
            "or --count N or --seconds S for generated messages"
        )
    return Repeated(random.Random(size).randbytes(size), count)


def _open(path: str) -> int:
    if path == "-":
        return _standard_input().fileno()
    try:
        if Path(path).is_dir():  # a folder can be opened, but not read
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InvalidValue(f"cannot read {path!r}: {error.strerror}") from None


def _standard_input() -> TextIO:
    if sys.stdin is None:
        raise InvalidValue("--file - needs standard input, which is closed")
    return sys.stdin


def _read_all(path: str) -> bytes:
    if path == "-":
        return _standard_input().buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidValue(f"cannot read {path!r}: {error.strerror}") from None


async def _until_readable(descriptor: int, stop: Stop) -> None:
    """Wait for a pipe or terminal without a thread, which a signal could not wake."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a plain file: always ready
        await asyncio.sleep(0)  # lets signals in
        return
    try:
        await stop.until(ready)
    finally:
        loop.remove_reader(descriptor)


def numbered_keys(key: str | None, keys: int | None) -> list[bytes | None]:
    """The keys that messages get in rotation."""
    if key is not None and keys is not None:
        raise InvalidValue(f"--key {key!r} and --keys {keys} exclude each other; give one of them")
    if keys is not None:
        return [f"key-{number}".encode() for number in range(keys)]
    return [None if key is None else key.encode()]


def headers(options: list[str]) -> dict[str, str]:
    """Parse the options `--header NAME=VALUE`."""
    pairs = [text.partition("=") for text in options]
    for text, (name, separator, _) in zip(options, pairs, strict=True):
        if not separator or not name:
            raise InvalidValue(f"--header must be NAME=VALUE, got {text!r}")
    return {name: value for name, _, value in pairs}
