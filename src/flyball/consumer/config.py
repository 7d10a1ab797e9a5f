"""A consumer described in TOML: what `flyball tune` writes and `flyball consume --config` runs.

[consumer]
url = "amqp://localhost/"
queue = "orders"
handler = "shop.orders:handle"
goal = "rate=400"
controller = { name = "pi", kp = -0.0016, ki = 0.0060 }

A table [consumer.group] in place of the queue makes it a member of a group (`flyball.groups.config`). With tables
[[profile]] in place of the controller, the gains are those of the current workload
(`policy.profiles`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict, field_validator, model_validator

from flyball.brokers import check_url
from flyball.consumer.consumer import Consumer
from flyball.consumer.handler import Handler, check_handler
from flyball.consumer.policy.goals import parse_goal
from flyball.consumer.policy.profiles import Profile, ProfileScheduled
from flyball.control.record import Mode
from flyball.errors import InvalidValue
from flyball.groups.config import GroupConfig
from flyball.strict_model import StrictModel


def _to_group(value: Any) -> Any:
    return GroupConfig(**value) if isinstance(value, dict) else value


class ConsumerConfig(StrictModel):
    """One consumer."""

    url: Annotated[str, Field(description="the broker")]
    handler: Annotated[str, Field(description="module:function that takes a message")]
    queue: Annotated[str | None, Field(description="the queue to consume")] = None
    channel: Annotated[str | None, Field(description="the channel or pattern, with a group")] = None
    group: Annotated[
        str | GroupConfig | None,
        BeforeValidator(_to_group),
        Field(description="the group to be a member of: its name, with a channel; or a table"),
    ] = None
    goal: Annotated[str | None, Field(description="rate=400, capacity, latency=0.5 or drain-by=60")] = None
    controller: Annotated[
        dict[str, Any] | str | None, Field(description="name of a controller, or a table with its gains")
    ] = None
    mode: Annotated[Mode, Field(description="advise and shadow touch nothing, on moves the window")] = "on"
    concurrency: Annotated[int | None, Strict(), Field(ge=1, description="handlers at a time")] = None
    handler_timeout_s: Annotated[float | None, Field(gt=0, description="longest time of a handler")] = None
    retries: Annotated[int, Strict(), Field(ge=0, description="further tries of a failed message")] = 3
    dead_letter: Annotated[str | None, Field(description="the channel where failed messages go")] = None
    dead_letter_exchange: Annotated[
        bool, Strict(), Field(description="reject failed messages: the queue has a dead-letter exchange")
    ] = False
    window: Annotated[int | None, Strict(), Field(ge=1, description="the window at the start")] = None
    max_window: Annotated[float, Field(ge=1, le=65_535, description="the widest window")] = 2000.0
    pacing: Annotated[bool, Strict(), Field(description="hand messages over evenly")] = False
    period_s: Annotated[float, Field(gt=0, description="seconds between samples")] = 1.0

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        check_url(url)
        return url

    @field_validator("goal")
    @classmethod
    def _check_goal(cls, goal: str | None) -> str | None:
        if goal is not None:
            parse_goal(goal)
        return goal

    @model_validator(mode="after")
    def _check_options(self) -> ConsumerConfig:
        self.check()
        return self

    def check(self, **more: Any) -> None:
        """Raise `InvalidValue` if no consumer can be made of these options."""
        self._make(_placeholder, **more)

    def consumer(self, **more: Any) -> Consumer:
        """The consumer, with its handler imported."""
        return self._make(load_handler(self.handler), **more)

    def _make(self, handler: Handler, **more: Any) -> Consumer:
        options = {
            name: _tuples(value) for name, value in self.model_dump(exclude={"url", "handler", "group"}).items()
        }
        return Consumer(self.url, handler=handler, group=self.group, **{**options, **more})


class ProfileConfig(StrictModel):
    """A workload that was identified; `r2` is for people to read."""

    name: Annotated[str, Field(min_length=1, description="what the workload is called")]
    a: Annotated[float, Field(description="pole of the model")]
    b: Annotated[float, Field(description="gain of the model")]
    kp: Annotated[float, Field(description="proportional gain for this model")]
    ki: Annotated[float, Field(description="integral gain for this model")]
    r2: Annotated[float | None, Field(description="how well the model fits")] = None

    def profile(self) -> Profile:
        return Profile(self.name, self.a, self.b, self.kp, self.ki)


class ConsumerFile(StrictModel):
    """A file with one consumer; `model` is its identified model, for people to read."""

    consumer: ConsumerConfig
    model: dict[str, Any] = Field(default={})
    profile: list[ProfileConfig] = Field(default=[])

    @model_validator(mode="after")
    def _check_profiles(self) -> ConsumerFile:
        if self.profile:
            if self.consumer.controller is not None:
                raise ValueError(
                    "the profiles have their own gains: leave out consumer.controller, or the profiles"
                )
            self.consumer.check(controller=self._controller())
        return self

    def _controller(self) -> ProfileScheduled:
        return ProfileScheduled(tuple(profile.profile() for profile in self.profile))

    def make(self) -> Consumer:
        """The consumer, with its handler imported."""
        return self.consumer.consumer(**({"controller": self._controller()} if self.profile else {}))

    def with_profile(self, new: ProfileConfig) -> ConsumerFile:
        """The same file with one profile more, or another one of that name."""
        others = [profile for profile in self.profile if profile.name != new.name]
        consumer = self.consumer.model_copy(update={"controller": None})
        return ConsumerFile(consumer=consumer, profile=[*others, new])


def load_handler(name: str) -> Handler:
    """The function called "module:function", looked for in the current folder too.

    >>> load_handler("json:loads").__name__
    'loads'
    >>> load_handler("json")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: handler must be named as module:function, got 'json'
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InvalidValue(f"handler must be named as module:function, got {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidValue(
            f"the handler {name!r} cannot be imported ({error}); run it where the module is"
        ) from None
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise InvalidValue(f"the module {module_name!r} has no {attribute!r}; name a function of it")
        target = getattr(target, part)
    if not callable(target):
        raise InvalidValue(
            f"the handler {name!r} must be a function of one message, got an object of type "
            f"{type(target).__name__}"
        )
    check_handler(target)
    handler: Handler = target
    return handler


def to_toml(config: ConsumerConfig, model: Mapping[str, Any], profiles: Sequence[ProfileConfig] = ()) -> str:
    """The file that `flyball consume --config` reads; what has its default is left out.

    >>> config = ConsumerConfig(url="memory://x", queue="q", handler="json:loads", goal="rate=4")
    >>> print(to_toml(config, {"b": 59.7}))
    [consumer]
    url = "memory://x"
    handler = "json:loads"
    queue = "q"
    goal = "rate=4"
    <BLANKLINE>
    [model]
    b = 59.7
    <BLANKLINE>
    """
    lines = ["[consumer]", *_lines(config.model_dump(exclude_defaults=True))]
    if model:
        lines += ["", "[model]", *_lines(model)]
    for profile in profiles:
        lines += ["", "[[profile]]", *_lines(profile.model_dump())]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items() if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


def _tuples(value: Any) -> Any:
    """Turn the lists of TOML into the tuples of controllers."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _placeholder(_: object) -> None:
    """Stands for the handler while a file is checked."""
