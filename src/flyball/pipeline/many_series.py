"""A model for each of many series, in one Spark job.

The rows of a Parquet file are brought together by series (one shuffle), a partition at a time is sorted in memory,
and `control.identify_many` fits all series of a partition at once. So the work grows with the number of samples
and the memory does not: partitions stay about the same size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flyball.errors import InvalidValue, require

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_ROWS_PER_PARTITION = 1_000_000
_RESULT = (
    "a double, b double, c double, a_error double, b_error double, delay bigint, align string, "
    "r2 double, r2_free_run double, rmse double, samples bigint, problem string"
)


@dataclass(frozen=True, slots=True)
class Recording:
    """A Parquet file (or a folder of them) and the columns that matter."""

    path: Path
    by: str
    time: str
    input: str
    output: str

    def rows(self) -> int:
        """How many rows there are, once it is clear that the columns can be used."""
        dataset: Any = require("pyarrow.dataset", "spark")
        errors: Any = require("pyarrow", "spark").lib.ArrowException
        types: Any = require("pyarrow.types", "spark")
        if not self.path.exists():
            raise InvalidValue(f"there is no file {str(self.path)!r}; give the path of a recording in Parquet")
        try:
            found = dataset.dataset(self.path, format="parquet")
            rows = int(found.count_rows())
        except (errors, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidValue(f"{self.path} is not Parquet that can be read ({reason}); write it again") from None
        for option, name in (("by", self.by), ("time", self.time), ("input", self.input), ("output", self.output)):
            if name not in found.schema.names:
                raise InvalidValue(
                    f"{self.path}: there is no column {name!r} for --{option}; there are: "
                    f"{', '.join(found.schema.names)}"
                )
        for option, name in (("input", self.input), ("output", self.output)):
            kind = found.schema.field(name).type
            if not (types.is_floating(kind) or types.is_integer(kind)):
                raise InvalidValue(f"{self.path}: the column {name!r} for --{option} is {kind}, not a number")
        if rows == 0:
            raise InvalidValue(f"{self.path} has no rows; record some samples")
        return rows


def identify_series(
    spark: SparkSession,
    recording: Recording,
    out: Path,
    *,
    delay: int | Literal["auto"] = "auto",
    align: Literal["same", "next", "auto"] = "auto",
    offset: bool = True,
) -> None:
    """Write a row for each series, with its model or the problem with it, to the folder `out`, as Parquet."""
    partitions = max(2, math.ceil(recording.rows() / _ROWS_PER_PARTITION))
    rows = spark.read.parquet(str(recording.path)).selectExpr(
        f"`{recording.by}` AS key",
        f"`{recording.time}` AS time",
        f"CAST(`{recording.input}` AS DOUBLE) AS u",
        f"CAST(`{recording.output}` AS DOUBLE) AS y",
    )
    key = rows.schema["key"].dataType.simpleString()
    models = (
        rows.where("key IS NOT NULL")
        .repartition(partitions, "key")
        .mapInArrow(_fitting(delay, align, offset), f"key {key}, {_RESULT}")
        .withColumnRenamed("key", recording.by)
    )
    models.write.mode("errorifexists").parquet(str(out))


def _fitting(
    delay: int | Literal["auto"], align: Literal["same", "next", "auto"], offset: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        taken = list(batches)
        if any(batch.num_rows for batch in taken):
            table = pa.Table.from_batches(taken)
            yield from _fit_partition(table, delay, align, offset).to_batches(max_chunksize=10_000)

    return fit


def _fit_partition(table: pa.Table, delay: Any, align: Any, offset: bool) -> pa.Table:
    import pyarrow as pa

    from flyball.control.identification.many import identify_many

    encoded = table["key"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    times = table["time"].to_numpy()
    order = np.lexsort((times, codes))
    codes = codes[order]
    starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    u, y = (table[name].to_numpy().astype(float)[order] for name in ("u", "y"))
    fits = identify_many(u, y, starts.astype(np.int64), delay=delay, align=align, offset=offset)
    bad = fits.problem != ""
    named_next = _is_next(fits.lag, delay, align)
    columns = {"key": encoded.dictionary.take(pa.array(codes[starts]))}
    for name in ("a", "b", "c", "a_error", "b_error"):
        columns[name] = pa.array(getattr(fits, name), mask=bad)
    columns["delay"] = pa.array(fits.lag - named_next, pa.int64(), mask=bad)
    columns["align"] = pa.array(np.where(named_next, "next", "same").astype(object), pa.string(), mask=bad)
    for name in ("r2", "r2_free_run", "rmse"):
        columns[name] = pa.array(getattr(fits, name), mask=bad)
    columns["samples"] = pa.array(fits.samples, pa.int64())
    columns["problem"] = pa.array(fits.problem, pa.string(), mask=~bad)
    return pa.table(columns)


def _is_next(lag: Any, delay: Any, align: Any) -> Any:
    """Which lags are called "next": where both are open, the pair with the smaller delay (as in `identify`)."""
    if align != "auto":
        return np.full(lag.size, align == "next")
    return lag != delay if isinstance(delay, int) else lag > 0
