"""Augment: add columns from a lookup table, by the value of a column or by the subnet it lies in.

The table goes to every worker whole (a broadcast join), so events neither move nor change their order. A subnet is
looked up by joins on equal numbers only, one for each length of prefix in the table; the longest with a hit wins.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from flyball.errors import InvalidValue
from flyball.pipeline.config.base import NearPath
from flyball.pipeline.sql.column_checks import check_column
from flyball.pipeline.sql.columns import Column, Columns
from flyball.pipeline.sql.lookup import LookupTable, read_lookup
from flyball.pipeline.sql.subnets import as_number
from flyball.pipeline.tier1.steps.base import OWN, TierOneStep, is_event

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Augment(TierOneStep):
    """Events without a row in the table get nulls."""

    step: Literal["lookup"] = "lookup"
    lookup: Annotated[NearPath, Field(description="CSV file with a header; relative to the config file")]
    on: Annotated[str, Field(description="column of the events that is looked up")]
    key: Annotated[str | None, Field(description="column of the table with equal values")] = None
    subnet: Annotated[str | None, Field(description="column of the table with subnets such as 10.1.0.0/16")] = None
    add: Annotated[str, Field(description="columns of the table to add: name and type, as in columns")]

    _read: LookupTable | None = PrivateAttr(default=None)
    _frames: dict[tuple[str, str], DataFrame] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.key is None) == (self.subnet is None):
            raise ValueError("a lookup needs either key or subnet: the column of the table that is compared")
        return self

    @cached_property
    def _added(self) -> Columns:
        return Columns.parse(self.add)

    def _table(self, columns: Columns) -> LookupTable:
        """Read once: all batches see the same table."""
        if self._read is None:
            kind = columns.types[self.on] if self.subnet is None else "subnet"
            self._read = read_lookup(self.lookup, self.key or self.subnet or "", kind, self._added)
        return self._read

    def output(self, columns: Columns) -> Columns:
        check_column("on", self.on, columns)
        if self.subnet is not None and columns.types[self.on] != "string":
            raise InvalidValue(f"on: the column {self.on!r} is {columns.types[self.on]}; an address is a string")
        for item in self._added.items:
            if item.name in columns.names:
                raise InvalidValue(f"add: the events have a column {item.name!r} already; use another name")
        try:
            self._table(columns)
        except InvalidValue as error:
            raise InvalidValue(f"lookup: {error}") from None
        return columns.plus(*(Column(item.name, item.sql_type, required=False) for item in self._added.items))

    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        table = self._table(columns)
        after = self.output(columns)
        if self.subnet is None:
            joined = self._joined(rows, table, columns.types[self.on], f"`{self.on}`", "_found")
            found = {name: f"_found.`{name}`" for name in self._added.names}
        else:
            joined, found = self._by_subnet(rows, table)
        texts = [f"{found[name]} AS `{name}`" if name in found else f"`{name}`" for name in after.names]
        return joined.selectExpr(*texts, *OWN)

    def _by_subnet(self, rows: DataFrame, table: LookupTable) -> tuple[DataFrame, dict[str, str]]:
        rows = rows.selectExpr("*", f"{as_number(f'`{self.on}`')} AS _address")
        lengths = sorted({subnet.prefixlen for subnet in table.keys}, reverse=True)
        for length in lengths:
            chosen = [place for place, subnet in enumerate(table.keys) if subnet.prefixlen == length]
            part = LookupTable(
                tuple(int(table.keys[place].network_address) for place in chosen),
                tuple(table.values[place] for place in chosen),
            )
            masked = f"_address - pmod(_address, {2 ** (32 - length)}L)"
            rows = self._joined(rows, part, "bigint", masked, f"_found{length}")
        hits = " ".join(f"WHEN _found{length} IS NOT NULL THEN _found{length}.`{{0}}`" for length in lengths)
        types = self._added.types
        return rows, {
            name: f"CASE {hits.format(name)} END" if lengths else f"CAST(NULL AS {kind})"
            for name, kind in types.items()
        }

    def _joined(self, rows: DataFrame, table: LookupTable, key_type: str, key_sql: str, name: str) -> DataFrame:
        """The rows with a struct `name` of the added columns, null where the table has no such key."""
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        spark = rows.sparkSession
        place = (spark.sparkContext.applicationId, name)
        if place not in self._frames:  # made once for all batches
            self._frames[place] = spark.createDataFrame(_arrow(table, key_type, self._added, name))
        on = F.expr(f"CASE WHEN {is_event()} THEN {key_sql} END")
        return rows.join(F.broadcast(self._frames[place]), on == F.col("_key"), "left").drop("_key")


def _arrow(table: LookupTable, key_type: str, added: Columns, name: str) -> pa.Table:
    """The table with the added columns as one struct. Spark keeps an Arrow table of this size in its plan, and
    needs no job of its own to hand it to the workers."""
    import pyarrow as pa

    fields = [
        pa.array([row[place] for row in table.values], kind)
        for place, kind in enumerate(added.event_schema().types)
    ]
    found = pa.StructArray.from_arrays(fields, names=list(added.names))
    key = Columns((Column("key", key_type, required=True),)).event_schema().field(0).type
    return pa.table({"_key": pa.array(table.keys, key), name: found})
