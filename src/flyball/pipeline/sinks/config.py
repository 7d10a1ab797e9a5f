"""The `sinks` of a pipeline's config, checked before anything starts."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from flyball.brokers.log_reader import LOG_READERS
from flyball.brokers.url import BrokerUrl, without_login
from flyball.errors import InvalidValue
from flyball.pipeline.config.base import NearPath
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.sinks.channel import ChannelTarget
from flyball.pipeline.sinks.files import Position, writable_file, writable_folder
from flyball.pipeline.sinks.follower import Target
from flyball.pipeline.sinks.jsonl import JsonLinesTarget
from flyball.pipeline.sinks.parquet import ParquetTarget
from flyball.pipeline.sinks.sqlite import SqliteTarget
from flyball.pipeline.sinks.streams import Stream
from flyball.pipeline.sinks.webhook import WebhookTarget
from flyball.strict_model import StrictModel

_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink works with: the stream it writes, the pipeline's name and broker, a folder for positions, and
    `logs`, which writes to that broker."""

    stream: Stream
    pipeline: str
    url: str
    folder: Path
    logs: LogSinks


class SinkBase(StrictModel):
    name: Annotated[
        str | None, Field(pattern=r"^[A-Za-z0-9_.-]+$", description="unique; by default made of kind and of")
    ] = None
    of: Annotated[str, Field(description="the log to write: results, alerts, or a rule's own channel")]

    @property
    @abstractmethod
    def where(self) -> str:
        """The destination; no two sinks may share it."""

    @property
    def producer_name(self) -> str:
        return self.name or f"{getattr(self, 'kind', '')}-{self.of}"

    @abstractmethod
    def check(self) -> None:
        """Raise `InvalidValue`, the key first, if it could not be written there."""

    @abstractmethod
    def target(self, at: SinkContext) -> Target:
        """The object that writes."""

    def position(self, folder: Path) -> Position:
        return Position(folder / f"{self.producer_name}.json")


class _OfPath(SinkBase):
    path: Annotated[NearPath, Field(description="relative to the config file")]

    @property
    def where(self) -> str:
        return str(self.path)


class Parquet(_OfPath):
    """`path` is a folder; each file holds some messages of the log."""

    kind: Literal["parquet"]
    every_s: Annotated[float, Field(ge=0, allow_inf_nan=False, description="a file at most that often")] = 10.0

    def check(self) -> None:
        writable_folder(self.path)

    def target(self, at: SinkContext) -> Target:
        return ParquetTarget(at.stream, self.path, self.every_s)


class JsonLines(_OfPath):
    kind: Literal["jsonl"]

    def check(self) -> None:
        writable_file(self.path)

    def target(self, at: SinkContext) -> Target:
        return JsonLinesTarget(at.stream, self.path)


class Sqlite(_OfPath):
    kind: Literal["sqlite"]
    table: Annotated[
        str | None, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="by default named after the log")
    ] = None

    @property
    def where(self) -> str:
        return f"{self.path} table {self.table_name}"

    @property
    def table_name(self) -> str:
        return self.table or re.sub(r"[^A-Za-z0-9_]", "_", self.of)

    def check(self) -> None:
        writable_file(self.path)
        if self.path.exists():
            with self.path.open("rb") as file:
                start = file.read(len(_HEADER))
            if start not in (b"", _HEADER):
                raise InvalidValue(f"path = {str(self.path)!r} is not a SQLite file; name another path")

    def target(self, at: SinkContext) -> Target:
        return SqliteTarget(at.stream, self.path, self.table_name)


class Channel(SinkBase):
    """`url`: another broker; by default the pipeline's own."""

    kind: Literal["channel"]
    channel: Annotated[str, Field(min_length=1)]
    url: str | None = None

    @property
    def where(self) -> str:
        return f"{self.url or 'own broker'} channel {self.channel}"

    def check(self) -> None:
        if self.url is None:
            if self.channel == self.of:
                raise InvalidValue(f"channel = {self.channel!r} is what it reads; name another channel")
            return
        try:
            url = BrokerUrl.parse(self.url)
        except InvalidValue as error:
            raise InvalidValue(f"url: {error}") from None
        if url.scheme not in LOG_READERS:
            raise InvalidValue(f"url = '{url}' has no logs; use one of {', '.join(LOG_READERS)}")

    def target(self, at: SinkContext) -> Target:
        producer = f"{at.pipeline}.{self.producer_name}"
        return ChannelTarget(at.stream, self.url or at.url, self.channel, producer, self.position(at.folder))


class Webhook(SinkBase):
    kind: Literal["webhook"]
    url: Annotated[str, Field(description="http:// or https://; each message is one POST")]
    tries: Annotated[int, Field(ge=1, le=100, description="then a message goes to the log NAME.undelivered")] = 10
    timeout_s: Annotated[float, Field(gt=0, le=600, description="how long to wait for an answer")] = 10.0
    headers: Annotated[dict[str, str], Field(default_factory=dict, description="further headers")]

    @property
    def where(self) -> str:
        return f"{self.url} of {self.of}"

    def check(self) -> None:
        try:
            parts = urlsplit(self.url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            raise InvalidValue(
                f"url = {without_login(self.url)!r} is not a web address; write one such as http://127.0.0.1:8000/alerts"
            )
        for name, value in self.headers.items():
            if not re.fullmatch(r"[A-Za-z0-9-]+", name) or any(
                ord(sign) < 32 or ord(sign) > 255 for sign in value
            ):
                raise InvalidValue(f"headers: {name!r} is not a header; write a name = value without line breaks")

    def target(self, at: SinkContext) -> Target:
        key = f"{at.pipeline}.{self.producer_name}"
        position = self.position(at.folder)
        return WebhookTarget(at.stream, key, self.url, self.tries, self.timeout_s, self.headers, position, at.logs)
