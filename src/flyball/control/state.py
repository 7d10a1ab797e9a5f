"""Controller states as plain data, and back: what a store keeps and a restarted loop continues from.

A state is a frozen dataclass of numbers, strings, None, tuples and further such states. `to_plain` turns it
into dictionaries and lists that JSON can carry; `from_plain` turns them back into an equal value. Floats
survive exactly: JSON prints the shortest digits that read back as the same double, and what JSON cannot print
(NaN, infinities) is stored as a word.

A field is stored under its name, or under `stored_as` of its metadata: a field that got another name still reads
what was stored under the old one.

The stored form names no classes, so reading one can never run foreign code: the types come from whoever
restores it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar, overload

from flyball.errors import InvalidValue

T = TypeVar("T")

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(state: Any) -> Any:
    """Dictionaries, lists, numbers, strings and None that stand for `state`.

    >>> from flyball.control.controllers.pi import PiState
    >>> to_plain(PiState(command=0.1, integral=None))
    {'command': 0.1, 'integral': None}
    """
    if state is None or isinstance(state, bool | int | str):
        return state
    if isinstance(state, float):
        if math.isfinite(state):
            return float(state)
        return "nan" if math.isnan(state) else "inf" if state > 0 else "-inf"
    if isinstance(state, tuple):
        return [to_plain(item) for item in state]
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return {_key(f): to_plain(getattr(state, f.name)) for f in dataclasses.fields(state)}
    raise InvalidValue(
        f"a state holds numbers, strings, None, tuples and frozen dataclasses of them, got {type(state).__name__}"
    )


@overload
def from_plain(like: type[T], data: Any) -> T: ...
@overload
def from_plain(like: T, data: Any) -> T: ...
def from_plain(like: Any, data: Any) -> Any:
    """The state that `to_plain` wrote as `data`.

    `like` is its class, or any state of the same controller, such as `controller.initial(command)`. Use the
    latter for wrapped controllers: their class alone does not say what they wrap.

    >>> from flyball.control.controllers.pi import PiState
    >>> from_plain(PiState, {"command": 0.1, "integral": 2.5})
    PiState(command=0.1, integral=2.5)
    >>> from_plain(PiState, {"command": 0.1, "sum": 2.5})
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: the stored state does not fit PiState: it has command, sum, expected ...
    """
    if isinstance(like, type):
        return _restore(like, data, None)
    return _restore(type(like), data, like)


def _restore(hint: Any, data: Any, example: Any) -> Any:
    if isinstance(data, dict):
        return _restore_dataclass(_dataclass_in(hint, data, example), data, example)
    if isinstance(data, list):
        items = _item_hints(hint, len(data))
        examples = example if isinstance(example, tuple) and len(example) == len(data) else (None,) * len(data)
        return tuple(_restore(h, d, e) for h, d, e in zip(items, data, examples, strict=True))
    if isinstance(data, str) and data in _WORDS and not _allows(hint, str):
        return _WORDS[data]
    return data


def _restore_dataclass(cls: Any, data: dict[str, Any], example: Any) -> Any:
    hints = _hints(cls)
    keys = {_key(f): f.name for f in dataclasses.fields(cls)}
    if set(data) != set(keys):
        raise InvalidValue(
            f"the stored state does not fit {cls.__name__}: it has {', '.join(data)}, expected {', '.join(keys)}"
        )
    same = example if isinstance(example, cls) else None
    return cls(**{name: _restore(hints[name], data[key], getattr(same, name, None)) for key, name in keys.items()})


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _key(field: dataclasses.Field[Any]) -> str:
    key: str = field.metadata.get("stored_as", field.name)
    return key


def _dataclass_in(hint: Any, data: dict[str, Any], example: Any) -> type[Any]:
    """The dataclass meant by a type hint (of several, the one with these fields), or else that of the example."""
    meant = [member for member in _members(hint) if isinstance(member, type) and dataclasses.is_dataclass(member)]
    if not meant and dataclasses.is_dataclass(example) and not isinstance(example, type):
        return type(example)
    if not meant:
        raise InvalidValue(f"cannot tell which state {hint} stands for: restore like controller.initial(command)")
    return next((cls for cls in meant if {_key(f) for f in dataclasses.fields(cls)} == set(data)), meant[0])


def _members(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(member for part in typing.get_args(hint) for member in _members(part))
    return (hint,)


def _item_hints(hint: Any, size: int) -> tuple[Any, ...]:
    for member in _members(hint):
        if typing.get_origin(member) is tuple:
            items = typing.get_args(member)
            if len(items) == 2 and items[1] is Ellipsis:
                return (items[0],) * size
            if len(items) == size:
                return items
    return (Any,) * size


def _allows(hint: Any, wanted: type[Any]) -> bool:
    return any(member is wanted or typing.get_origin(member) is typing.Literal for member in _members(hint))
