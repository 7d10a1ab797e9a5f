"""Turns the tree of a parsed expression into Spark SQL, node by node, with checked types."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from flyball.errors import InvalidValue
from flyball.pipeline.sql.functions import AGGREGATES, ALIASES, ANY, BOOLEAN, FUNCTIONS, NUMBER, STRING
from flyball.pipeline.sql.subnets import in_subnet, network

NULL = "null"
_MONITOR = "monitor"
_NUMBERS = ("bigint", "double")
_INT64 = range(-(2**63), 2**63)

# class of the parser → SQL operator
_COMPARISONS = {"EQ": "=", "NEQ": "<>", "GT": ">", "GTE": ">=", "LT": "<", "LTE": "<=", "NullSafeEQ": "<=>"}
_ARITHMETIC = {"Add": "try_add", "Sub": "try_subtract", "Mul": "try_multiply", "Mod": "try_mod"}
_PATTERNS = {"Like": "LIKE", "ILike": "ILIKE"}
_BACKSLASH = "\\"
_ESCAPES = (r"\\", r"\%", r"\_")
"""What a pattern may have backslashes in; pairs first, for their second one escapes nothing."""


class Typed(NamedTuple):
    """Spark SQL, and the type it has: a column's, or null."""

    sql: str
    type: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression can refer to: columns with their types, and values of monitors (monitor.NAME)."""

    columns: Mapping[str, str]
    monitors: Mapping[str, float] = field(default_factory=dict)


class Compiler:
    """What it does not know, it refuses."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def compile(self, node: Any) -> Typed:
        name = type(node).__name__
        if name in _COMPARISONS:
            return self._comparison(node, _COMPARISONS[name])
        if name in _ARITHMETIC or name == "Div":
            return self._arithmetic(node, name)
        if name in _PATTERNS:
            return self._pattern(node, _PATTERNS[name])
        method = getattr(self, f"_{name.lower()}", None)
        if method is not None:
            found: Typed = method(node)
            return found
        called = _called(node)
        if called is not None:
            return self._function(*called)
        raise InvalidValue(
            f"{node.sql('spark')!r} cannot be used here; use columns, values, operators and functions"
        )

    def aggregate(self, node: Any) -> Typed:
        called = _called(node)
        if called is None or called[0] not in AGGREGATES:
            raise InvalidValue(f"is not an aggregate; use one of {', '.join(AGGREGATES)}, such as max(load)")
        name, arguments = called
        if name == "count" and [type(argument).__name__ for argument in arguments] in (["Star"], []):
            return Typed("count(1)", "bigint")
        if len(arguments) != 1:
            raise InvalidValue(f"{name} takes one value")
        inner = self.compile(arguments[0])
        if name in ("sum", "avg", "stddev"):
            _expect(inner, NUMBER, name)
        kinds = {"count": "bigint", "avg": "double", "stddev": "double"}
        # Sums of whole numbers as doubles: rather the last digits than an overflow.
        sql = f"CAST({inner.sql} AS DOUBLE)" if name == "sum" else inner.sql
        return Typed(AGGREGATES[name].format(sql), "double" if name == "sum" else kinds.get(name, inner.type))

    # ── leaves ────────────────────────────────────────────────────────────────────────────────────────────────

    def _column(self, node: Any) -> Typed:
        if node.table == _MONITOR:
            return self._monitor(node.name)
        if node.table or type(node.this).__name__ != "Identifier":
            raise InvalidValue(f"{node.sql('spark')!r} is not a column; write its name alone")
        if node.name not in self._scope.columns:
            near = difflib.get_close_matches(node.name, self._scope.columns, n=1)
            known = ", ".join(f"{name} {kind}" for name, kind in self._scope.columns.items())
            guess = f"did you mean {near[0]!r}? ({known})" if near else f"there are: {known}"
            raise InvalidValue(f"there is no column {node.name!r}; {guess}")
        return Typed(f"`{node.name}`", self._scope.columns[node.name])

    def _monitor(self, name: str) -> Typed:
        known = self._scope.monitors
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            there_are = (
                f"there are: {', '.join(known)}" if known else "tier 1 can use what [[pipeline.monitors]] declares"
            )
            guess = f"did you mean 'monitor.{near[0]}'?" if near else there_are
            raise InvalidValue(f"there is no 'monitor.{name}' here; {guess}")
        return Typed(f"{known[name]!r}D", "double")

    def _literal(self, node: Any) -> Typed:
        if node.is_string:
            return Typed(_quoted(node.this), STRING)
        if node.this.isdecimal():
            if int(node.this) not in _INT64:
                raise InvalidValue(f"{node.this} is too large for a whole number; write it as {node.this}.0")
            return Typed(node.this if int(node.this) < 2**31 else f"{node.this}L", "bigint")
        return Typed(f"{float(node.this)!r}D", "double")

    def _rawstring(self, node: Any) -> Typed:
        return Typed(_quoted(node.this), STRING)

    def _boolean(self, node: Any) -> Typed:
        return Typed("true" if node.this else "false", BOOLEAN)

    def _null(self, _node: Any) -> Typed:
        return Typed("NULL", NULL)

    # ── operators ─────────────────────────────────────────────────────────────────────────────────────────────

    def _paren(self, node: Any) -> Typed:
        return self.compile(node.this)

    def _and(self, node: Any) -> Typed:
        return self._logic(node, "AND")

    def _or(self, node: Any) -> Typed:
        return self._logic(node, "OR")

    def _logic(self, node: Any, operator: str) -> Typed:
        sides = [_expect(self.compile(side), BOOLEAN, operator) for side in (node.left, node.right)]
        return Typed(f"({sides[0].sql} {operator} {sides[1].sql})", BOOLEAN)

    def _not(self, node: Any) -> Typed:
        return Typed(f"(NOT {_expect(self.compile(node.this), BOOLEAN, 'NOT').sql})", BOOLEAN)

    def _neg(self, node: Any) -> Typed:
        inner = _expect(self.compile(node.this), NUMBER, "−")
        return Typed(f"try_subtract(0, {inner.sql})", inner.type)

    def _is(self, node: Any) -> Typed:
        other = type(node.expression).__name__
        if other == "Null":
            return Typed(f"({self.compile(node.this).sql} IS NULL)", BOOLEAN)
        if other == "Boolean":
            inner = _expect(self.compile(node.this), BOOLEAN, "IS")
            return Typed(f"({inner.sql} IS {'true' if node.expression.this else 'false'})", BOOLEAN)
        raise InvalidValue(f"{node.sql('spark')!r}: after IS comes NULL, TRUE or FALSE")

    def _comparison(self, node: Any, operator: str) -> Typed:
        left, right = self.compile(node.left), self.compile(node.right)
        _common([left, right], operator)
        return Typed(f"({left.sql} {operator} {right.sql})", BOOLEAN)

    def _between(self, node: Any) -> Typed:
        parts = [self.compile(node.args[name]) for name in ("this", "low", "high")]
        _common(parts, "BETWEEN")
        return Typed(f"({parts[0].sql} BETWEEN {parts[1].sql} AND {parts[2].sql})", BOOLEAN)

    def _in(self, node: Any) -> Typed:
        if not node.expressions or node.args.get("query") is not None:
            raise InvalidValue(f"{node.sql('spark')!r}: after IN comes a list of values")
        subject, *values = (self.compile(part) for part in (node.this, *node.expressions))
        _common([subject, *values], "IN")
        return Typed(f"({subject.sql} IN ({', '.join(one.sql for one in values)}))", BOOLEAN)

    def _pattern(self, node: Any, operator: str) -> Typed:
        left, right = (_expect(self.compile(side), STRING, operator) for side in (node.this, node.expression))
        if _is_text(node.expression):
            if _BACKSLASH in reduce(lambda text, escape: text.replace(escape, ""), _ESCAPES, node.expression.this):
                raise InvalidValue(
                    f"{operator} {node.expression.this!r}: a backslash in a pattern stands before %, _ or another "
                    "backslash; write two for one"
                )
            return Typed(f"({left.sql} {operator} {right.sql})", BOOLEAN)
        # Spark fails at a pattern with any other backslash, and the pattern is a value of an event.
        rest = reduce(lambda sql, escape: f"replace({sql}, {_quoted(escape)}, '')", _ESCAPES, right.sql)
        proper = f"NOT contains({rest}, {_quoted(_BACKSLASH)})"
        return Typed(f"(CASE WHEN {proper} THEN {left.sql} {operator} {right.sql} END)", BOOLEAN)

    def _arithmetic(self, node: Any, name: str) -> Typed:
        word = {"Add": "+", "Sub": "−", "Mul": "*", "Mod": "%", "Div": "/"}[name]
        left, right = (_expect(self.compile(side), NUMBER, word) for side in (node.left, node.right))
        if name == "Div":
            return Typed(f"try_divide(CAST({left.sql} AS DOUBLE), {right.sql})", "double")
        return Typed(f"{_ARITHMETIC[name]}({left.sql}, {right.sql})", _common([left, right], word))

    def _dpipe(self, node: Any) -> Typed:
        left, right = (_expect(self.compile(side), STRING, "||") for side in (node.left, node.right))
        return Typed(f"concat({left.sql}, {right.sql})", STRING)

    def _case(self, node: Any) -> Typed:
        if node.this is not None:
            raise InvalidValue("write CASE WHEN condition THEN value … END")
        whens = [_expect(self.compile(branch.this), BOOLEAN, "WHEN") for branch in node.args["ifs"]]
        thens = [self.compile(branch.args["true"]) for branch in node.args["ifs"]]
        default = node.args.get("default")
        otherwise = [] if default is None else [self.compile(default)]
        kind = _common([*thens, *otherwise], "CASE")
        text = " ".join(f"WHEN {when.sql} THEN {then.sql}" for when, then in zip(whens, thens, strict=True))
        return Typed(f"(CASE {text}{''.join(f' ELSE {one.sql}' for one in otherwise)} END)", kind)

    def _trycast(self, node: Any) -> Typed:
        kinds = {
            "TEXT": "string",
            "VARCHAR": "string",
            "BIGINT": "bigint",
            "DOUBLE": "double",
            "BOOLEAN": "boolean",
        }
        kind = kinds.get(node.args["to"].this.name)
        if kind is None:
            raise InvalidValue(f"{node.sql('spark')!r}: cast to string, bigint, double or boolean")
        return Typed(f"try_cast({self.compile(node.this).sql} AS {kind.upper()})", kind)

    _cast = _trycast

    # ── functions ─────────────────────────────────────────────────────────────────────────────────────────────

    def _function(self, name: str, nodes: Sequence[Any]) -> Typed:
        if name == "in_subnet":
            return self._in_subnet(nodes)
        function = FUNCTIONS.get(name)
        if function is None:
            if name in AGGREGATES:
                raise InvalidValue(f"{name}(…) looks at many events; only a rule can do that")
            known = [*FUNCTIONS, "in_subnet"]
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
            raise InvalidValue(f"there is no function {name!r}; {guess}")
        takes = len(function.takes)
        if len(nodes) < takes - function.optional or (len(nodes) > takes and not function.repeats):
            raise InvalidValue(f"{name} got {len(nodes)} values; write {function.usage(name)}")
        arguments = [self.compile(node) for node in nodes]
        kinds = [*function.takes, *([function.takes[-1]] * (len(nodes) - takes))]
        for argument, kind in zip(arguments, kinds, strict=False):
            _expect(argument, kind, name)
        free = [argument for argument, kind in zip(arguments, kinds, strict=False) if kind == ANY]
        same = _common(free, name) if free else arguments[0].type
        texts = [argument.sql for argument in arguments]
        for place, kind in enumerate(kinds[: len(texts)]):
            if kind == NUMBER and place:  # counts and places: Spark wants whole numbers there
                texts[place] = (
                    texts[place] if function.result == "double" and name == "power" else _whole(texts[place])
                )
        rest = "".join(f", {text}" for text in texts[1:])
        sql = function.sql.format(*texts, all=", ".join(texts), rest=rest)
        return Typed(sql, same if function.result == "same" else function.result)

    def _in_subnet(self, nodes: Sequence[Any]) -> Typed:
        if len(nodes) != 2 or not _is_text(nodes[1]):
            raise InvalidValue("write in_subnet(column, 'a.b.c.d/n')")
        address = _expect(self.compile(nodes[0]), STRING, "in_subnet")
        return Typed(in_subnet(address.sql, network(nodes[1].this)), BOOLEAN)


def short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}…"


def _called(node: Any) -> tuple[str, list[Any]] | None:
    """Name and arguments of a function call."""
    from sqlglot import expressions as tree

    if isinstance(node, tree.Anonymous):
        return str(node.this).lower(), list(node.expressions)
    if not isinstance(node, tree.Func):
        return None
    arguments: list[Any] = []
    for name in node.arg_types:
        part = node.args.get(name)
        if isinstance(part, list):
            arguments += part
        elif isinstance(part, tree.Expression):
            arguments.append(part)
        elif part is not None and not isinstance(part, bool):  # a flag is the parser's own note
            raise InvalidValue(f"{node.sql('spark')!r} cannot be used here")
    name = node.sql_name().lower()
    if name == "log" and len(arguments) == 2 and arguments[0].sql() == "10":  # what the parser makes of log10
        return "log10", arguments[1:]
    return ALIASES.get(name, name), arguments


def _is_text(node: Any) -> bool:
    return type(node).__name__ == "Literal" and bool(node.is_string)


def _whole(sql: str) -> str:
    return sql if sql.isdecimal() else f"try_cast({sql} AS INT)"


def _quoted(text: str) -> str:
    r"""As a text of Spark SQL.

    >>> print(_quoted("it's a \\ sign"))
    'it\'s a \\ sign'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _kind(kind: str) -> str:
    return NUMBER if kind in _NUMBERS else kind


def _expect(found: Typed, kind: str, where: str) -> Typed:
    if kind not in (ANY, _kind(found.type)) and found.type != NULL:
        wanted = {BOOLEAN: "a condition", NUMBER: "a number", STRING: "a text"}[kind]
        raise InvalidValue(
            f"{where} needs {wanted}, not {found.type} ({_plain(found.sql)}); cast it if it is meant"
        )
    return found


def _common(parts: Sequence[Typed], where: str) -> str:
    """The type that all parts have."""
    kinds = [part.type for part in parts if part.type != NULL]
    if len({_kind(kind) for kind in kinds}) > 1:
        types = " with ".join(f"{part.type} ({_plain(part.sql)})" for part in parts if part.type != NULL)
        raise InvalidValue(f"{where} mixes {types}; make them alike, for example by CAST(… AS double)")
    if "double" in kinds:
        return "double"
    return kinds[0] if kinds else NULL


def _plain(sql: str) -> str:
    return short(sql.replace("`", ""))
