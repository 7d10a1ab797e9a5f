"""The columns of an event stream: what users declare, and what the source adds.

Users declare columns as in SQL: "kind string, ip string, load double". Every declared column is required unless
marked "null". The source adds four of its own, whose names start with an underscore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flyball.errors import InvalidValue

if TYPE_CHECKING:
    import pyarrow as pa

# SQL name → (Spark's name, Python types of a JSON value that fits)
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("string", (str,)),
    "bigint": ("bigint", (int,)),
    "long": ("bigint", (int,)),
    "double": ("double", (float, int)),
    "boolean": ("boolean", (bool,)),
}

NUMBERS = ("bigint", "double")

EVENT, MALFORMED, MARK = "event", "malformed", "mark"
END_MARK = b"end"
"""`_body` of the mark that ends the results: it runs ahead of the events, so that all windows close."""

OWN_COLUMNS = "_kind string, _partition int, _offset bigint, _error string, _body binary"
"""_kind is event, malformed or mark; _error says why a malformed one is, _body is what it was."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    sql_type: str
    required: bool

    @property
    def python_types(self) -> tuple[type, ...]:
        return _TYPES[self.sql_type][1]


@dataclass(frozen=True, slots=True)
class Columns:
    """Declared columns, in order.

    >>> columns = Columns.parse("kind string, load double null")
    >>> columns.spark_ddl
    'kind string, load double, _kind string, _partition int, _offset bigint, _error string, _body binary'
    >>> Columns.parse("load decimal")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: column 'load' has the unknown type 'decimal'; use one of string, bigint, ...
    """

    items: tuple[Column, ...]
    values: Mapping[str, float] = field(default_factory=dict, hash=False)
    """what the monitors say, for expressions: monitor.NAME"""

    @classmethod
    def parse(cls, text: str) -> Columns:
        items: list[Column] = []
        for part in text.split(","):
            words = part.split()
            null = len(words) == 3 and words[2].lower() == "null"
            if len(words) != 2 and not null:
                raise InvalidValue(
                    f"{part.strip()!r} is not a column: write its name, its type and, if it may be absent, null"
                )
            name, kind = words[0], words[1].lower()
            if kind not in _TYPES:
                raise InvalidValue(
                    f"column {name!r} has the unknown type {words[1]!r}; use one of {', '.join(_TYPES)}"
                )
            if not name.isidentifier() or name.startswith("_"):
                raise InvalidValue(
                    f"{name!r} cannot name a column: letters, digits and _, not starting with _ or a digit"
                )
            if name in (item.name for item in items):
                raise InvalidValue(f"column {name!r} is declared twice")
            items.append(Column(name, _TYPES[kind][0], required=not null))
        return cls(tuple(items))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)

    @property
    def types(self) -> dict[str, str]:
        return {item.name: item.sql_type for item in self.items}

    @property
    def text(self) -> str:
        """As a user would declare them."""
        return ", ".join(f"{item.name} {item.sql_type}{'' if item.required else ' null'}" for item in self.items)

    def only(self, names: Sequence[str]) -> Columns:
        return replace(self, items=tuple(item for item in self.items if item.name in names))

    def knowing(self, values: Mapping[str, float]) -> Columns:
        """With these values of the monitors."""
        return replace(self, values=values)

    def plus(self, *added: Column) -> Columns:
        """With more columns; one of the same name is replaced in its place.

        >>> Columns.parse("id bigint, load double").plus(Column("load", "string", False)).text
        'id bigint, load string null'
        """
        items = {item.name: item for item in (*self.items, *added)}
        return replace(self, items=tuple(items.values()))

    @property
    def spark_ddl(self) -> str:
        return ", ".join([*(f"{item.name} {item.sql_type}" for item in self.items), OWN_COLUMNS])

    def event_schema(self) -> pa.Schema:
        """What is parsed out of a body."""
        import pyarrow as pa

        arrow = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
        return pa.schema([(item.name, arrow[item.sql_type]) for item in self.items])

    def row_schema(self) -> pa.Schema:
        """What the source hands to Spark."""
        import pyarrow as pa

        own = [
            ("_kind", pa.string()),
            ("_partition", pa.int32()),
            ("_offset", pa.int64()),
            ("_error", pa.string()),
            ("_body", pa.binary()),
        ]
        return pa.schema([*self.event_schema(), *(pa.field(name, kind) for name, kind in own)])
