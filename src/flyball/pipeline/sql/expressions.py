"""User expressions: read, checked against the declared columns, and written anew as Spark SQL.

What reaches Spark is not the user's text but what this file understood of it: literals, columns, operators and the
functions of `functions.py`, each with checked types. So an expression cannot do anything else, and a mistake is
found before Spark starts. One function is our own: in_subnet(ip, '92.126.10.0/24').

A value that cannot be computed (a text that is no number, a division by zero, an overflow) is null and never an
error: one odd event must not stop a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flyball.errors import InvalidValue, require
from flyball.pipeline.sql.compiler import NULL, Compiler, Scope, Typed, short
from flyball.pipeline.sql.functions import BOOLEAN

__all__ = ["Scope", "Typed", "aggregate", "condition", "value"]

_LONGEST_TEXT = 10_000


def condition(text: str, scope: Scope) -> str:
    """A condition as Spark SQL.

    >>> scope = Scope({"load": "double", "ip": "string"})
    >>> condition("load > 2 AND ip <> 'x'", scope)
    "((`load` > 2) AND (`ip` <> 'x'))"
    >>> condition("lode > 2", scope)
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: 'lode > 2': there is no column 'lode'; did you mean 'load'? ...
    >>> condition("load + 2", scope)
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: 'load + 2' is double, not true or false; write a condition such as load > 0
    """
    found = value(text, scope)
    if found.type not in (BOOLEAN, NULL):
        example = f"{next(iter(scope.columns), 'load')} > 0"
        raise InvalidValue(f"{text!r} is {found.type}, not true or false; write a condition such as {example}")
    return found.sql


def value(text: str, scope: Scope) -> Typed:
    """An expression as Spark SQL, with its type.

    >>> value("load / 2", Scope({"load": "bigint"}))
    Typed(sql='try_divide(CAST(`load` AS DOUBLE), 2)', type='double')
    """
    return _guarded(text, lambda: Compiler(scope).compile(_parsed(text)))


def aggregate(text: str, scope: Scope) -> Typed:
    """An aggregate over the events of a window, such as max(load) or count(*).

    >>> aggregate("max(load * 2)", Scope({"load": "double"}))
    Typed(sql='max(try_multiply(`load`, 2))', type='double')
    """
    return _guarded(text, lambda: Compiler(scope).aggregate(_parsed(text)))


def _guarded(text: str, work: Callable[[], Typed]) -> Typed:
    try:
        return work()
    except RecursionError:
        raise InvalidValue(f"{short(text)!r} is nested too deeply; split it into several steps") from None
    except InvalidValue as error:
        raise InvalidValue(f"{short(text)!r}: {error}") from None


def _parsed(text: str) -> Any:
    sqlglot = require("sqlglot", "spark")
    if len(text) > _LONGEST_TEXT:
        raise InvalidValue(f"has {len(text)} characters; {_LONGEST_TEXT} are the most")
    try:
        # As a query, for alone some words (load …) would begin a statement.
        statements = sqlglot.parse(f"SELECT {text}\n", read="spark")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0].split(". Line")[0].rstrip(".")
        raise InvalidValue(f"is not SQL ({reason}); correct it") from None
    statement: Any = statements[0] if len(statements) == 1 else None
    if type(statement).__name__ != "Select":
        raise InvalidValue("is not one expression; write one condition or value, without a semicolon")
    used = {name for name, part in statement.args.items() if part}
    if used != {"expressions"} or len(statement.expressions) != 1:
        raise InvalidValue("is not one expression; write one condition or value, not a query")
    return statement.expressions[0]
