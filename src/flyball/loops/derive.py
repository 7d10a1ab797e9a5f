"""Pydantic models derived from the frozen dataclasses of `control`.

A controller defines once its parameters, their meaning and their valid values; everything a
configuration file needs (models, errors, the JSON schema) follows from that. Numbers are strict: text in a
number is a mistake, not something to guess at.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from flyball.control.controllers.fixed import Fixed
from flyball.strict_model import StrictModel


class Derived(StrictModel):
    """Base of all derived models; `build` makes the dataclass they were derived from."""

    @model_validator(mode="after")
    def _can_be_built(self) -> Derived:
        self.build(**({"inner": Fixed()} if "inner" in _field_names(_source(type(self))) else {}))
        return self

    def build(self, **others: Any) -> Any:
        """The dataclass; `others` are fields that a file does not hold, such as a wrapper's inner controller."""
        source = _source(type(self))
        written = self.model_fields_set & set(_field_names(source))
        return source(**{key: _build(getattr(self, key)) for key in written}, **others)


def _build(value: Any) -> Any:
    if isinstance(value, Derived):
        return value.build()
    if isinstance(value, tuple):
        return tuple(_build(item) for item in value)
    return value


_SOURCES: dict[type[Derived], type[Any]] = {}
_MODELS: dict[tuple[type[Any], tuple[str, ...]], type[Derived]] = {}


def _source(model: type[Derived]) -> type[Any]:
    return _SOURCES[model]


def _field_names(source: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(source)]


def derive(source: type[Any], names: tuple[str, ...] = ()) -> type[Derived]:
    """The model of a dataclass. With `names` it has a key `name`, which must be one of them."""
    if (source, names) in _MODELS:
        return _MODELS[source, names]
    hints = typing.get_type_hints(source)
    fields: dict[str, Any] = {}
    if names:
        fields["name"] = (Literal[names], ...)
    for field in dataclasses.fields(source):
        if field.name == "inner":
            continue
        options: dict[str, Any] = {"description": field.metadata.get("help")}
        if field.default is not dataclasses.MISSING:
            options["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            options["default_factory"] = field.default_factory
        fields[field.name] = (_strict(hints[field.name]), Field(**options))
    model = create_model(
        source.__name__, __base__=Derived, __doc__=(source.__doc__ or "").split("\n")[0], **fields
    )
    _SOURCES[model], _MODELS[source, names] = source, model
    return model


def _strict(hint: Any) -> Any:
    """The type of a field as a file may hold it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (float, int, bool, str):
        return Annotated[hint, Strict()]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return derive(hint)
    if origin is tuple:
        return tuple[tuple(_strict(a) if a is not Ellipsis else a for a in arguments)]  # type: ignore[misc]  # a type computed at run time
    if origin in (Union, types.UnionType):
        return Union[tuple(_strict(argument) for argument in arguments)]  # noqa: UP007 – computed at run time
    return hint


class OneOf:
    """Marks a field that holds one of several named configurations; validation builds the chosen dataclass."""

    def __init__(
        self, sources: Callable[[], Mapping[tuple[str, ...], type[Any]]], build: Callable[[Derived], Any]
    ) -> None:
        self._sources = sources
        self._build = build

    @property
    def models(self) -> Sequence[type[Derived]]:
        return [derive(source, names) for names, source in self._sources().items()]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source  # the field is typed by what is built; the file holds one of the models
        models: Any = Union[tuple(self.models)]  # noqa: UP007 – computed at run time
        choice: Any = Annotated[models, Field(discriminator="name")]
        return core_schema.no_info_after_validator_function(self._build, handler.generate_schema(choice))


class OneFrom:
    """Marks a field that holds the parameters of one dataclass, or `false` for none at all."""

    def __init__(self, source: type[Any]) -> None:
        self._source = source

    @property
    def models(self) -> Sequence[type[Derived]]:
        return [derive(self._source)]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        del source
        (model,) = self.models

        def build(value: Any, validate: Callable[[Any], Any]) -> Any:
            return None if value is False else validate(value).build()

        return core_schema.no_info_wrap_validator_function(build, handler.generate_schema(model))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"const": False}]}
