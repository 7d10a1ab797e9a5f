"""Read a TOML file into a pydantic model; every mistake is one sentence with location, value and remedy.

>>> from pydantic import BaseModel
>>> class Tank(BaseModel, extra="forbid"):
...     level: float
>>> check({"levle": 3.0, "level": 2.0}, Tank, "tank.toml")
Traceback (most recent call last):
    ...
flyball.loops.toml.ConfigError: tank.toml: there is no key levle (here 3.0); did you mean level?
>>> check({"level": "high"}, Tank, "tank.toml")
Traceback (most recent call last):
    ...
flyball.loops.toml.ConfigError: tank.toml: level = 'high': input should be a valid number, ...
"""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flyball.errors import InvalidValue

M = TypeVar("M", bound=BaseModel)


class ConfigError(InvalidValue):
    """A configuration file cannot be used; the message names the file, the key, the value and the remedy.

    The message describes the first mistake; `mistakes` are all of them, a sentence each.
    """

    def __init__(self, message: str, mistakes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.mistakes = tuple(mistakes) or (message,)


def load_toml(path: Path | str, model: type[M]) -> M:
    """The content of a TOML file as an instance of `model`."""
    return check(read_toml(path), model, str(path), Path(path).parent)


def read_toml(path: Path | str) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a TOML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: its arrays or tables are nested too deeply; nest them less") from None


def check(data: dict[str, Any], model: type[M], source: str, folder: Path | None = None) -> M:
    """`data` as an instance of `model`; `source` is how an error names the origin of the data.

    Validators find `folder`, from which relative paths start, in their context.
    """
    try:
        return model.model_validate(data, context={"folder": folder or Path()})
    except ValidationError as error:
        raise ConfigError(
            describe_mistakes(error, data, model, source),
            [f"{source}: {sentence}" for sentence in _list_mistakes(error, data, model)],
        ) from None


def describe_mistakes(error: ValidationError, data: dict[str, Any], model: type[BaseModel], source: str) -> str:
    """One sentence for what is wrong with `data`, its first mistake in full."""
    mistakes = _list_mistakes(error, data, model)
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    return f"{source}: {mistakes[0]}{more}"


def _list_mistakes(error: ValidationError, data: dict[str, Any], model: type[BaseModel]) -> list[str]:
    """A sentence for every mistake: one for each key, and a key that is misspelt is not missing as well."""
    found = error.errors(include_url=False)
    misspelt = {
        (*mistake["loc"][:-1], near)
        for mistake in found
        if mistake["type"] == "extra_forbidden"
        for near in difflib.get_close_matches(str(mistake["loc"][-1]), _known_keys(model, mistake["loc"]), n=1)
    }
    sentences: dict[str, str] = {}
    for mistake in found:
        absent = mistake["type"] == "missing"
        if not (absent and tuple(mistake["loc"]) in misspelt):
            sentences.setdefault(_path(mistake["loc"], data, absent=absent), _sentence(mistake, data, model))
    return list(sentences.values())


def _sentence(mistake: Any, data: Any, model: type[BaseModel]) -> str:
    kind, location, value = mistake["type"], mistake["loc"], mistake["input"]
    context = mistake.get("ctx", {})
    key = _path(location, data, absent=kind == "missing")
    if kind == "extra_forbidden":
        known = _known_keys(model, location)
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        return f"there is no key {key} (here {_short(value)}); " + (
            f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        )
    if kind == "missing":
        return f"{key} is missing; add it"
    if kind == "union_tag_not_found":
        return f'{key} = {_short(value)}: its {_tag(context)} is missing; add {_tag(context)} = "…"'
    if kind == "union_tag_invalid":
        names = context["expected_tags"].replace("'", "")
        return f"{key}.{_tag(context)} = {context['tag']!r}: is one of {names}"
    message = mistake["msg"].removeprefix("Value error, ").removesuffix(".")
    # Our own checks already show the offending value; pydantic's do not.
    if kind == "value_error":
        return f"{key}: {message}" if key else message
    if kind in ("tuple_type", "list_type") and isinstance(value, dict) and len(location) == 1:
        return f"{key} is one table, and there may be several: write [[{key}]], with two brackets"
    message = message[:1].lower() + message[1:]
    # What the value is says something only where its type is wrong.
    wrong_type = f", not {_kind_of(value)}" if kind.endswith(("_type", "_parsing")) else ""
    return f"{key} = {_short(value)}: {message}{wrong_type}"


def _tag(context: Any) -> str:
    """The key that chooses between models: where pydantic names a function instead of a key, it is `name`."""
    key = str(context["discriminator"]).strip("'")
    return key if key.isidentifier() else "name"


def _kind_of(value: Any) -> str:
    words = {str: "text", bool: "true or false", dict: "a table", list: "a list", int: "a whole number"}
    return words.get(type(value), "this value")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _path(location: Sequence[int | str], data: Any, *, absent: bool) -> str:
    """The location as a user would write it. A tag that chose a member of a union is no part of the data.

    `absent`: the last part is missing in the data and is meant all the same.
    """
    text = ""
    for index, part in enumerate(location):
        if isinstance(part, int):
            item = data[part] if isinstance(data, list) and part < len(data) else None
            name = item.get("name") if isinstance(item, dict) else None
            text += f"[{name}]" if isinstance(name, str) else f"[number {part + 1}]"
            data = item
            continue
        inside = isinstance(data, dict) and part in data
        if inside or (absent and index == len(location) - 1):
            text += f".{part}" if text else str(part)
        if inside:
            data = data[part]
    return text


def _known_keys(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """The keys that are allowed where an unknown one was found."""
    here: list[type[BaseModel]] = [model]
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        inside = [m.model_fields[part] for m in here if part in m.model_fields]
        if inside:
            here = [found for field in inside for found in _models_in((field.annotation, *field.metadata))]
        else:  # the tag that chose one model of several
            here = [m for m in here if any(part in typing.get_args(f.annotation) for f in m.model_fields.values())]
    return [name for m in here for name in m.model_fields]


def _models_in(annotations: Sequence[Any]) -> Iterator[type[BaseModel]]:
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        else:
            yield from getattr(annotation, "models", ())
            yield from _models_in(typing.get_args(annotation))
