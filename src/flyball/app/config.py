"""What `flyball run` reads from its config file: the source of events, the broker, and the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from flyball.brokers import check_url
from flyball.brokers.url import BrokerUrl
from flyball.demo import events as demo_events
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.publisher.feed import Events
from flyball.strict_model import StrictModel


class DemoSource(StrictModel):
    """Generated events: DNS queries and host measurements."""

    kind: Literal["demo"]
    seed: int = 1
    events: Annotated[int | None, Field(ge=0, le=10**12)] = None
    per_second: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = 2000.0

    def bodies(self) -> Events:
        def from_number(first: int) -> Iterator[bytes]:
            left = None if self.events is None else max(0, self.events - first)
            return demo_events.events(self.seed, first, left)

        return from_number


class FileSource(StrictModel):
    """A file with one event a line."""

    kind: Literal["file"]
    path: Path
    per_second: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None

    def bodies(self) -> Events:
        def from_number(first: int) -> Iterator[bytes]:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines):
                    if number >= first:
                        yield line.rstrip(b"\r\n")

        return from_number


class QueueSource(StrictModel):
    """Messages of a queue, which are moved to the input log; the run ends by a signal."""

    kind: Literal["queue"]
    url: Annotated[str, Field(description="Broker of the queue, such as amqp://localhost/")]
    queue: Annotated[str, Field(min_length=1)]

    @field_validator("url")
    @classmethod
    def _has_queues(cls, url: str) -> str:
        scheme = BrokerUrl.parse(url).scheme
        if scheme not in ("amqp", "amqps", "sqlite"):
            raise ValueError(f"{scheme}:// has no queues; use amqp://, amqps:// or sqlite:///…")
        return url


class NoSource(StrictModel):
    """Other programs fill the input log; the run ends by a signal, or when the pipelines before it have ended."""

    kind: Literal["none"]


Source: TypeAlias = Annotated[DemoSource | FileSource | QueueSource | NoSource, Field(discriminator="kind")]


class RunConfig(StrictModel):
    """A run: where events come from, where they are stored, and what the pipeline does with them."""

    folder: Annotated[Path, Field(description="Folder of logs and checkpoints, relative to the config file")] = (
        Path("flyball-data")
    )
    broker: Annotated[str | None, Field(description="Broker URL; by default an embedded one in the folder")] = None
    source: Source
    pipeline: PipelineConfig

    @field_validator("broker")
    @classmethod
    def _is_a_url(cls, broker: str | None) -> str | None:
        if broker is not None:
            check_url(broker)
        return broker

    def url(self, folder: Path) -> str:
        return self.broker or f"sqlite:///{folder.absolute() / 'broker.db'}"
