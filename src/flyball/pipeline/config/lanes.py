"""The `lanes` section of a pipeline's config: parallelism of tier 1, flow control of its result queues."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, PrivateAttr, model_validator

from flyball.pipeline.config.base import NearPath
from flyball.pipeline.config.flow_gains import read_gains
from flyball.strict_model import StrictModel


class LanesConfig(StrictModel):
    """Tier 1 runs as `count` lanes, each with a result queue of its own that a combiner empties."""

    count: Annotated[int, Field(ge=1, le=64, description="Lanes that share the events")] = 2
    balance: Annotated[
        bool, Field(description="Share events so that the lanes' delays become equal; false: equal shares")
    ] = True
    control: Annotated[
        bool,
        Field(description="False: equal shares of max_rows a batch, whatever the result queues hold"),
    ] = True
    queue_bytes: Annotated[int, Field(gt=0, description="Size of a lane's result queue")] = 64_000_000
    free_bytes: Annotated[
        int, Field(gt=0, description="Set point of flow control: free space of a result queue")
    ] = 40_000_000
    interval_s: Annotated[float, Field(gt=0, description="How often flow control acts")] = 2.0
    flow: Annotated[
        NearPath | None, Field(description="File with the gains of flow control, as `flyball tune` writes it")
    ] = None
    _gains: dict[str, float] = PrivateAttr(default_factory=dict)
    timeout_s: Annotated[
        float, Field(gt=0, description="How long the combiner waits for a lane that delivers nothing")
    ] = 30.0
    reorder_bytes: Annotated[
        int, Field(gt=0, description="Memory of the reorder buffer; beyond it results go to disk")
    ] = 64_000_000

    tick_s: Annotated[
        float, Field(gt=0, description="How often the splitter distributes new input (runner process)")
    ] = 0.1
    tasks: Annotated[int, Field(ge=1, le=1024, description="Tasks that read for one lane (runner process)")] = 1
    cores: Annotated[
        tuple[tuple[Annotated[int, Field(ge=0)], ...], ...],
        Field(description="CPU cores of each lane on this host, [[0], [1]]; by default all (runner process)"),
    ] = ()

    @model_validator(mode="after")
    def _free_within_queue(self) -> Self:
        if self.free_bytes >= self.queue_bytes:
            raise ValueError(
                f"free_bytes = {self.free_bytes} does not fit a result queue of queue_bytes = {self.queue_bytes}: "
                "choose a smaller free_bytes"
            )
        return self

    @model_validator(mode="after")
    def _read_gains(self) -> Self:
        if self.flow is not None:
            self._gains.update(read_gains(self.flow))
        return self

    @property
    def flow_gains(self) -> dict[str, float]:
        """kp and ki of flow control; empty: the defaults."""
        return self._gains

    @property
    def loops(self) -> int:
        """Control loops: flow control of each result queue, and one that balances the lanes."""
        return self.count + (self.balance and self.count > 1) if self.control else 0
