"""Every controller by name, made from a validated configuration.

For whoever derives configuration models or forms from this: a controller is a frozen dataclass whose fields
are plainly typed (float, int, bool, str, tuples, Literal, None, nested frozen dataclasses of the same kind);
every field carries its meaning in ``field(metadata={"help": "…"})``, and `__post_init__` raises
`InvalidValue` naming the field, the value and what would be valid. A field without a default is required. The
first line of the class docstring is its one-line help. `describe()` lists all of that. Wrappers
(`flyball.control.wrappers`) follow the same convention and have one more field, `inner`, the controller they
wrap.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from flyball.control.step import Controller
from flyball.errors import InvalidValue

# name → "module in this package:class", in the order in which a newcomer should consider them.
# Classes are imported when they are asked for: self-tuning and LQR need scipy, a P controller does not.
_CLASSES: dict[str, str] = {
    "fixed": "fixed:Fixed",
    "p": "p:P",
    "pi": "pi:Pi",
    "pid": "pid:Pid",
    "pi_ff": "pi_ff:PiFf",
    "state_feedback": "state_feedback:StateFeedback",
    "gain_scheduled": "gain_scheduled:GainScheduled",
    "self_tuning": "self_tuning:SelfTuning",
    "lqr": "lqr:Lqr",
    "aimd": "aimd:Aimd",
    "proportional_rule": "proportional_rule:ProportionalRule",
    "static": "publishing.static:Static",
    "batch-aimd": "publishing.batch_aimd:BatchAimd",
    "auto": "publishing.auto:Auto",
}

ALIASES: Mapping[str, str] = {"state": "state_feedback", "hpa": "proportional_rule", "pi+ff": "pi_ff"}
"""Other names under which a controller is known."""

NAMES: tuple[str, ...] = tuple(_CLASSES)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a controller: what to write in a configuration, and what it means.

    `parts` are the fields of the nested configuration that the field holds, such as a region's gains.
    """

    name: str
    type: str
    default: Any
    required: bool
    meaning: str
    parts: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One controller of the catalogue."""

    name: str
    help: str
    text: str
    parameters: tuple[Parameter, ...]


def class_of(name: str) -> type[Any]:
    """The controller class called `name`.

    >>> class_of("pi").__name__
    'Pi'
    >>> class_of("pie")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: there is no controller 'pie'; there are: fixed, p, pi...
    """
    location = _CLASSES.get(ALIASES.get(name, name))
    if location is None:
        raise InvalidValue(f"there is no controller {name!r}; there are: {', '.join(NAMES)}")
    module, class_name = location.split(":")
    controller_class: type[Any] = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
    return controller_class


def make(name: str, **config: Any) -> Controller[Any]:
    """The controller called `name` with these parameters.

    >>> make("pi", kp=-0.0016, ki=0.0060)
    Pi(kp=-0.0016, ki=0.006)
    >>> make("pi", kp=1.0, kj=0.1)
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: controller 'pi' has no parameter 'kj'; it has: kp, ki
    """
    controller: Controller[Any] = build(class_of(name), f"controller {name!r}", config)
    return controller


def build(cls: type[Any], what: str, config: Mapping[str, Any]) -> Any:
    """An instance of the dataclass `cls`; `what` is how an error names it."""
    fields = dataclasses.fields(cls)
    known = [f.name for f in fields]
    for key in config:
        if key not in known:
            raise InvalidValue(f"{what} has no parameter {key!r}; it has: {', '.join(known) or 'none'}")
    missing = [f.name for f in fields if f.name not in config and _default(f) is MISSING]
    if missing:
        raise InvalidValue(f"{what} needs {', '.join(missing)}, got {', '.join(config) or 'nothing'}")
    return cls(**config)


def describe(name: str | None = None) -> tuple[Entry, ...]:
    """The whole catalogue, or the one entry called `name`.

    >>> entry = describe("p")[0]
    >>> entry.help
    'Command in proportion to the error; simple, and leaves an offset.'
    >>> [(p.name, p.type, p.required) for p in entry.parameters]
    [('kp', 'float', True), ('bias', 'float | None', False)]
    """
    if name is None:
        return tuple(_entry(known) for known in NAMES)
    class_of(name)  # refuses an unknown name
    return (_entry(ALIASES.get(name, name)),)


@functools.cache
def _entry(name: str) -> Entry:
    return entry_of(name, class_of(name))


def entry_of(name: str, cls: type[Any]) -> Entry:
    """The catalogue entry of a class that follows the convention above."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return Entry(name, text.split("\n", 1)[0], text, parameters_of(cls))


def parameters_of(cls: type[Any]) -> tuple[Parameter, ...]:
    """The fields of a controller, a wrapper or a nested configuration, as a user writes them."""
    hints = typing.get_type_hints(cls)
    return tuple(
        Parameter(
            name=f.name,
            type=_type_name(hints[f.name]),
            default=None if _default(f) is MISSING else _default(f),
            required=_default(f) is MISSING,
            meaning=f.metadata.get("help", ""),
            parts=_nested(hints[f.name]),
        )
        for f in dataclasses.fields(cls)
    )


def _nested(hint: Any) -> tuple[Parameter, ...]:
    for inner in (hint, *typing.get_args(hint)):
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            return parameters_of(inner)
    return ()


def _default(f: dataclasses.Field[Any]) -> Any:
    factory: Callable[[], Any] | Any = f.default_factory
    return f.default if factory is MISSING else factory()


def _type_name(hint: Any) -> str:
    """How a type is written down: without module names, a choice as its choices."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "None"
    if hint is Ellipsis:
        return "..."
    if origin is typing.Literal:
        return " | ".join(repr(choice) for choice in arguments)
    if origin is tuple:
        return f"tuple[{', '.join(_type_name(argument) for argument in arguments)}]"
    if arguments and (origin is typing.Union or type(hint).__name__ == "UnionType"):
        return " | ".join(_type_name(argument) for argument in arguments)
    if origin is not None:
        return _type_name(origin)
    return getattr(hint, "__name__", str(hint))
