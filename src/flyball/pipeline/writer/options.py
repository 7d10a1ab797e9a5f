"""The sink's options and the columns of its rows, checked before a row is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flyball.brokers import check_url
from flyball.errors import InvalidValue
from flyball.message import check_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_DEFAULTS = {
    "channel": "",
    "declare": "",
    "partitions": "1",
    "exactly_once": "true",
    "on_refused": "fail",
    "dead_letters": "",
    "outage_s": "600",
    "write_id": "",
}
_SPARKS = {"checkpointlocation", "queryname"}
"""Options of Spark that it hands on to the sink."""
_WRITE_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,100}")

_TYPES: dict[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (
        "map<string,string>",
        "map<string,binary>",
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
    ),
    "id": ("string",),
    "timestamp": ("timestamp",),
    "channel": ("string",),
}
"""The columns that the sink understands, and their types as Spark writes them."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a query or a batch job says about where its rows go.

    >>> SinkOptions.parse({"url": "sqlite:///x.db", "channel": "alerts", "onRefused": "skip"})
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: option on_refused of the sink flyball must be fail or deadletter, got 'skip'
    """

    url: str
    channel: str
    """empty: the column `channel` names it"""
    declare: Literal["", "queue", "log"]
    partitions: int
    exactly_once: bool
    dead_letters: str | None
    """the channel for rows that the broker refuses for good; None: such a row ends the query"""
    outage_s: float
    write_id: str

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        given = _by_name(options)
        url = given.get("url", "")
        if not url:
            raise _wrong("url", "the broker's URL, such as amqp://localhost/ or sqlite:////data/events.db", url)
        parsed = check_url(url)
        if parsed.scheme == "memory":
            raise InvalidValue(
                "option url of the sink flyball must be a broker that Spark's processes can reach, got memory://: "
                "use sqlite:///… for trials on one machine"
            )
        channel = given["channel"]
        declare = given["declare"]
        if channel:
            check_name(channel)
        if declare not in ("", "queue", "log"):
            raise _wrong("declare", "queue or log", declare)
        if not given["partitions"].isdecimal() or int(given["partitions"]) < 1:
            raise _wrong("partitions", "an integer >= 1", given["partitions"])
        if int(given["partitions"]) > 1 and declare != "log":
            raise InvalidValue(
                f"option partitions of the sink flyball is for logs that it declares, got "
                f"{given['partitions']!r}: add declare = log, or leave it out"
            )
        exactly_once = given["exactly_once"].lower()
        if exactly_once not in ("true", "false"):
            raise _wrong("exactly_once", "true or false", given["exactly_once"])
        if given["write_id"] and not _WRITE_ID.fullmatch(given["write_id"]):
            raise _wrong("write_id", "1 to 100 letters, digits and _ . : -", given["write_id"])
        return cls(
            url,
            channel,
            declare,  # type: ignore[arg-type]  # one of the three
            int(given["partitions"]),
            exactly_once == "true",
            _dead_letters(given),
            _seconds(given["outage_s"]),
            given["write_id"],
        )


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Options by the names they have here: Spark's style (`onRefused`) and letter case do not matter."""
    names = {name.replace("_", ""): name for name in ("url", *_DEFAULTS)}
    given = dict(_DEFAULTS)
    for name, value in options.items():
        plain = name.lower().replace("_", "")
        if plain == "path":
            raise InvalidValue(
                f"the sink flyball writes to a channel, not to the path {value!r}: set option channel"
            )
        if plain in names:
            given[names[plain]] = value
        elif plain not in _SPARKS:
            known = ", ".join(sorted(names.values()))
            raise InvalidValue(f"the sink flyball has no option {name!r}; it has {known}")
    return given


def _dead_letters(given: Mapping[str, str]) -> str | None:
    on_refused, channel = given["on_refused"].lower(), given["dead_letters"]
    if on_refused not in ("fail", "deadletter"):
        raise _wrong("on_refused", "fail or deadletter", given["on_refused"])
    if on_refused == "fail":
        if channel:
            raise InvalidValue(
                f"option dead_letters of the sink flyball is {channel!r}, but nothing goes there: "
                "add on_refused = deadletter, or leave it out"
            )
        return None
    if channel:
        return check_name(channel)
    if not given["channel"]:
        raise InvalidValue(
            "on_refused = deadletter of the sink flyball needs the option dead_letters, a channel, where the "
            "column 'channel' names the others"
        )
    return check_name(f"{given['channel']}.dead-letter")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise _wrong("outage_s", "a number of seconds >= 0", text)
    return value


def _wrong(name: str, wanted: str, value: str) -> InvalidValue:
    return InvalidValue(f"option {name} of the sink flyball must be {wanted}, got {value!r}")


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse rows that are not messages, with what would make them some."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, found in types.items():
        if name not in _TYPES:
            raise InvalidValue(
                f"the sink flyball has no column {name!r}; it has {', '.join(_TYPES)}: "
                "select those, such as df.selectExpr('to_json(struct(*)) AS value')"
            )
        if found not in _TYPES[name]:
            raise InvalidValue(
                f"column {name} of the sink flyball must be {' or '.join(_TYPES[name])}, got {found}: cast it"
            )
    if "value" not in types:
        raise InvalidValue(
            "the sink flyball needs a column 'value' of type binary or string, "
            "such as df.selectExpr('to_json(struct(*)) AS value')"
        )
    if options.channel and "channel" in types:
        raise InvalidValue(
            f"the sink flyball has both an option channel = {options.channel!r} and a column 'channel': "
            "leave one of them out"
        )
    if not options.channel and "channel" not in types:
        raise InvalidValue(
            "the sink flyball needs the option 'channel', the name of a queue or log, or a column of that name"
        )


def check_not_overwriting(overwrite: bool, remedy: str) -> None:
    if overwrite:
        raise InvalidValue(f"the sink flyball cannot overwrite what is in a channel: {remedy}")
