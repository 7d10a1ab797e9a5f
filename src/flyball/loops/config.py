"""Loops described in TOML.

    [[loop]]
    name = "prefetch"
    goal = 400.0
    period_s = 5.0
    mode = "shadow"
    limits = [1.0, 360.0]
    controller = { name = "pi", kp = -0.0016, ki = 0.0060 }
    filter = [{ name = "ewma", keep = 0.5 }]
    model = { a = 0.26, b = 59.73 }  # verified before it acts

    [telemetry]
    sqlite = { path = "loops.db" }

The models are derived from the controllers themselves (`derive`), so a new controller can be configured as soon
as it is in the catalogue. Sensors and actuators are code: whoever runs the loop passes them in.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, model_validator

from flyball.control.controllers import catalogue
from flyball.control.guard.guard import Guard
from flyball.control.models import Arx
from flyball.control.record import Mode
from flyball.control.step import Controller
from flyball.control.wrappers import WRAPPERS
from flyball.errors import InvalidValue
from flyball.loops.derive import Derived, OneFrom, OneOf
from flyball.loops.loop import DEFAULT_GUARD, Actuator, Loop, Sensor
from flyball.loops.telemetry.memory import MemorySink
from flyball.loops.telemetry.parquet import ParquetSink
from flyball.loops.telemetry.prometheus import PrometheusSink
from flyball.loops.telemetry.sink import Sink
from flyball.loops.telemetry.sqlite import SqliteSink
from flyball.loops.toml import ConfigError, load_toml
from flyball.strict_model import StrictModel

__all__ = ["ConfigError", "ControllerField", "LoopConfig", "LoopsFile", "TelemetryConfig", "load_toml", "schema"]

_NOT_FILTERS = {"saturation", "bumpless"}  # a loop has `limits`, and glides over changes by itself

Number = Annotated[float, Strict()]


@functools.cache
def _controllers() -> Mapping[tuple[str, ...], type[Any]]:
    aliases = catalogue.ALIASES.items()
    return {
        (name, *(alias for alias, meant in aliases if meant == name)): catalogue.class_of(name)
        for name in catalogue.NAMES
    }


@functools.cache
def _filters() -> Mapping[tuple[str, ...], type[Any]]:
    return {(name,): wrapper for name, wrapper in WRAPPERS.items() if name not in _NOT_FILTERS}


ControllerField = Annotated[Any, OneOf(_controllers, lambda chosen: chosen.build())]
"""A field that holds a controller of the catalogue: `{ name = "pi", kp = …, ki = … }`."""

FilterField = Annotated[Any, OneOf(_filters, lambda chosen: chosen)]

GuardField = Annotated[Any, OneFrom(Guard)]


class ModelConfig(StrictModel):
    """The plant: y(k+1) = a·y(k) + b·u(k−delay), or more terms of each."""

    a: Annotated[Number | tuple[Number, ...], Field(description="pole, or coefficients of past outputs")]
    b: Annotated[Number | tuple[Number, ...], Field(description="gain, or coefficients of past commands")]
    delay: Annotated[int, Strict(), Field(ge=0, le=1000, description="input delay in samples")] = 0

    @model_validator(mode="after")
    def _is_a_plant(self) -> ModelConfig:
        self.plant()
        return self

    def plant(self) -> Arx:
        a, b = (value if isinstance(value, tuple) else (value,) for value in (self.a, self.b))
        return Arx(tuple(map(float, a)), tuple(map(float, b)), self.delay)


class LoopConfig(StrictModel):
    """One loop."""

    name: Annotated[str, Field(min_length=1, description="name of the loop, unique in the file")]
    goal: Annotated[Number | tuple[Number, ...], Field(description="what the measurement should become")]
    controller: Annotated[ControllerField, Field(description="controller of the catalogue, with its gains")]
    period_s: Annotated[Number, Field(gt=0, allow_inf_nan=False, description="seconds between samples")] = 1.0
    mode: Annotated[Mode, Field(description="advise and shadow touch nothing, on moves the actuator")] = "advise"
    limits: Annotated[
        tuple[Number | tuple[Number, ...], Number | tuple[Number, ...]] | None,
        Field(description="lowest and highest command"),
    ] = None
    command: Annotated[
        Number | tuple[Number, ...] | None, Field(description="where the actuator stands at the start")
    ] = None
    filter: Annotated[
        tuple[FilterField, ...], Field(description="wrappers around the controller, innermost first")
    ] = ()
    guard: Annotated[GuardField, Field(description="when the guard reacts and how; false: no guard")] = (
        DEFAULT_GUARD
    )
    blocking: Annotated[bool, Strict(), Field(description="call sensor and actuator in threads")] = False
    model: Annotated[
        ModelConfig | None, Field(description="model of the plant: without one the loop is not verified")
    ] = None
    allow_fragile: Annotated[bool, Strict(), Field(description="let a fragile loop act")] = False

    @model_validator(mode="after")
    def _can_be_built(self) -> LoopConfig:
        self.loop(sensor=lambda: None, actuator=lambda _: None)
        return self

    def wrapped_controller(self) -> Controller[Any]:
        """The controller inside its filters."""
        controller: Controller[Any] = self.controller
        for wrapper in self.filter:
            assert isinstance(wrapper, Derived)
            controller = wrapper.build(inner=controller)
        return controller

    def loop(self, *, sensor: Sensor, actuator: Actuator) -> Loop:
        """The loop, with the sensor and actuator that only code can give."""
        return Loop(
            self.name,
            sensor=sensor,
            actuator=actuator,
            controller=self.wrapped_controller(),
            goal=self.goal,
            period_s=self.period_s,
            mode=self.mode,
            limits=self.limits,
            guard=self.guard or None,
            command=self.command,
            blocking=self.blocking,
            model=None if self.model is None else self.model.plant(),
            allow_fragile=self.allow_fragile,
        )


class _Memory(StrictModel):
    capacity: Annotated[int, Strict(), Field(ge=1, description="number of newest records to keep")] = 20_000


class _Sqlite(StrictModel):
    path: Annotated[Path, Field(description="database file")]
    max_rows: Annotated[int, Strict(), Field(ge=1, description="number of newest rows to keep")] = 1_000_000


class _Parquet(StrictModel):
    folder: Annotated[Path, Field(description="folder of the files")]
    rows_per_file: Annotated[int, Strict(), Field(ge=1)] = 100_000
    max_files: Annotated[int, Strict(), Field(ge=1, description="number of newest files to keep")] = 10


class _Prometheus(StrictModel):
    max_loops: Annotated[int, Strict(), Field(ge=1, description="most loops that are exposed")] = 20_000


class TelemetryConfig(StrictModel):
    """Where records go; every sink is bounded."""

    memory: _Memory | None = None
    sqlite: _Sqlite | None = None
    parquet: _Parquet | None = None
    prometheus: _Prometheus | None = None

    def sinks(self) -> list[Sink]:
        """The sinks, opened; one in memory where nothing was asked for."""
        sinks: list[Sink] = []
        if self.memory is not None:
            sinks.append(MemorySink(self.memory.capacity))
        if self.sqlite is not None:
            sinks.append(SqliteSink(self.sqlite.path, self.sqlite.max_rows))
        if self.parquet is not None:
            sinks.append(ParquetSink(self.parquet.folder, self.parquet.rows_per_file, self.parquet.max_files))
        if self.prometheus is not None:
            sinks.append(PrometheusSink(self.prometheus.max_loops))
        return sinks or [MemorySink()]


class LoopsFile(StrictModel):
    """A file of loops."""

    loop: Annotated[tuple[LoopConfig, ...], Field(description="the loops", json_schema_extra={"minItems": 1})]
    telemetry: Annotated[TelemetryConfig, Field(description="where records go")] = TelemetryConfig()

    @model_validator(mode="after")
    def _names_differ(self) -> LoopsFile:
        # Not by min_length: pydantic would add "too short" to the report of any mistake inside a loop.
        if not self.loop:
            raise InvalidValue("there is no loop; add one that begins with [[loop]]")
        seen: set[str] = set()
        for loop in self.loop:
            if loop.name in seen:
                raise InvalidValue(f"names of loops must be unique, got {loop.name!r} twice")
            seen.add(loop.name)
        return self


def schema() -> dict[str, Any]:
    """The JSON schema of a file of loops."""
    return LoopsFile.model_json_schema()
