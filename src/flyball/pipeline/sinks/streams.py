"""What a sink can be given: the results, the alerts and the other logs of a pipeline, as rows and as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flyball.errors import InvalidValue, require
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.marks import is_mark
from flyball.pipeline.sql.columns import Column, Columns
from flyball.pipeline.tier2 import rules

if TYPE_CHECKING:
    import pyarrow as pa

    from flyball.pipeline.config.pipeline import PipelineConfig

_ORIGIN = Columns((Column("_partition", "bigint", required=True), Column("_offset", "bigint", required=True)))
"""Where in the input an event stood: it names a result whatever became of its columns."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A log whose messages a sink writes. `packed`: a message holds many rows."""

    log: str
    columns: Columns
    packed: bool = False

    def documents(self, bodies: Sequence[bytes]) -> list[bytes]:
        """A JSON object for each row."""
        if not self.packed:
            return [body for body in bodies if not is_mark(body)]
        orjson = require("orjson", "spark")
        return [orjson.dumps(row) for row in self.rows(bodies).to_pylist()]

    def rows(self, bodies: Sequence[bytes]) -> pa.Table:
        import pyarrow as pa

        schema = self.columns.event_schema()
        if not self.packed:
            orjson = require("orjson", "spark")
            found = [orjson.loads(body) for body in self.documents(bodies)]
            return pa.Table.from_pylist([_fitting(one, schema) for one in found], schema=schema)
        parts = [entry.in_order(entry.decode(body)).select(schema.names).cast(schema) for body in bodies]
        return pa.concat_tables([schema.empty_table(), *parts])


def stream_of(config: PipelineConfig, name: str) -> Stream:
    """By what a log is for (results, alerts, late, dead-letter), or by the name of a rule's channel."""
    called = {"results": config.results, "late": config.late, "dead-letter": config.dead_letter}
    channels = [rule.to or config.alerts for rule in config.rules]
    log = {**called, "alerts": config.alerts}.get(name, name)
    if log in channels:
        writers = [rule for rule, channel in zip(config.rules, channels, strict=True) if channel == log]
        return Stream(log, rules.columns_of(writers, config.result_columns))
    if log == config.dead_letter:
        return Stream(log, _ORIGIN.plus(*Columns.parse("error string, body string").items))
    if log in (config.results, config.late):
        return Stream(log, config.result_columns.plus(*_ORIGIN.items), packed=log == config.results)
    known = [*called, *("alerts" if channel == config.alerts else channel for channel in dict.fromkeys(channels))]
    raise InvalidValue(f"of = {name!r}: the pipeline has no such log to write; there are: {', '.join(known)}")


def _fitting(document: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    return {name: document.get(name) for name in schema.names}
