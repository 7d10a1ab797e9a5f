"""Checks of what a config says about columns. A complaint begins with the key of the config that it is about."""

from __future__ import annotations

from flyball.errors import InvalidValue
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.sql.expressions import Scope, Typed, condition, value


def checked_condition(key: str, text: str, scope: Scope) -> str:
    """The condition as Spark SQL."""
    try:
        return condition(text, scope)
    except InvalidValue as error:
        raise InvalidValue(f"{key}: {error}") from None


def checked_value(key: str, text: str, scope: Scope) -> Typed:
    try:
        return value(text, scope)
    except InvalidValue as error:
        raise InvalidValue(f"{key}: {error}") from None


def check_column(key: str, name: str, columns: Columns, hint: str = "") -> None:
    if name not in columns.names:
        text = f"{key} names the column {name!r}, which is none of {', '.join(columns.names)}"
        raise InvalidValue(f"{text}; {hint}" if hint else text)


def check_type(key: str, name: str, columns: Columns, types: tuple[str, ...], needed: str) -> None:
    """The column exists and has one of these types; `needed` says who needs what."""
    check_column(key, name, columns)
    if columns.types[name] not in types:
        raise InvalidValue(f"{key} names the column {name!r}, which is {columns.types[name]}; {needed}")
