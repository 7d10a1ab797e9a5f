"""Wrong inputs for every command and every kind of config file, generated from the commands themselves.

Each command has a correct call below, which a mistake then spoils: every number out of its range, not a number,
infinite, empty; every name misspelt; every file missing, a folder, binary; every URL malformed; unknown,
missing arguments. A command without a correct call fails the test, and so does an option of an unknown kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.main import get_command

from flyball.cli import COMMANDS
from flyball.cli.application import make_application

Words = tuple[str, ...]

PLANT: Words = ("--a", "0.26", "--b", "59.73")
PI: Words = ("--controller", "pi", "--kp", "-0.0016", "--ki", "0.0060")

# command → a correct call of it; none of them is ever executed as it stands
CALLS: dict[str, Words] = {
    "demo": (),
    "run": ("run.toml",),
    "check": ("loops.toml",),
    "identify": ("recording.csv", "--input", "prefetch", "--output", "rate"),
    "design": (*PLANT, "--controller", "pi", "--settling", "8"),
    "verify": (*PLANT, *PI),
    "controllers": (),
    "simulate": (*PLANT, *PI, "--goal", "400"),
    "config schema": (),
    "config check": ("loops.toml",),
    "lab": ("s1_closed_loop",),
    "publish": ("sqlite:///good.db", "orders", "--count", "1"),
    "consume": ("sqlite:///good.db", "orders", "--count", "1"),
    "outbox list": ("good.outbox.db",),
    "outbox show": ("good.outbox.db", "1"),
    "outbox replay": ("good.outbox.db", "--all"),
    "outbox delete": ("good.outbox.db", "--all"),
    "tune": ("sqlite:///good.db", "--queue", "orders", "--handler", "json:loads", "--goal", "rate=4"),
    "broker up": ("rabbitmq",),
    "broker down": (),
    "broker status": (),
    "assign": ("cases.json",),
    "groups list": ("sqlite:///groups.db",),
    "groups show": ("sqlite:///groups.db", "shop"),
    "groups what-if": ("sqlite:///groups.db", "shop", "--leave", "m1"),
    "groups advise": ("sqlite:///groups.db", "shop"),
    "cluster create": ("sqlite:///cluster.db", "shop", "--node", "a=sqlite:///good.db"),
    "cluster describe": ("sqlite:///groups.db", "shop"),
    "cluster status": ("sqlite:///groups.db", "shop"),
    "cluster propose": ("sqlite:///groups.db", "shop"),
    "cluster approve": ("sqlite:///groups.db", "shop", "grow-1"),
    "cluster reject": ("sqlite:///groups.db", "shop", "grow-1"),
    "cluster stop": ("sqlite:///groups.db", "shop", "grow-1"),
    "cluster watch": ("sqlite:///groups.db", "shop", "--seconds", "0"),
    "cluster grow": ("sqlite:///groups.db", "shop"),
    "cluster shrink": ("sqlite:///groups.db", "shop"),
    "cluster delete": ("sqlite:///groups.db", "shop"),
    "cluster set": ("sqlite:///groups.db", "shop", "--mode", "on"),
    "cluster drain": ("sqlite:///groups.db", "shop", "a"),
    "cluster resume": ("sqlite:///groups.db", "shop", "a"),
    "queues": ("sqlite:///good.db",),
    "doctor": (),
    "bench": ("loops",),
}

FILES = ("missing.file", "folder", "binary.bin", "empty.txt", "no/such/folder.x")
BROKER_URLS = (
    "",
    "orders",
    "sqlite:/good.db",
    "sqlit:///good.db",
    "http://localhost/",
    "amqp://localhost:99999/",
    "amqp://localhost:0/",
    "amqp://localhost:port/",
    "amqp://localhost/?heartbeats_s=5",
    "amqp://localhost/?heartbeat_s=soon",
    "rabbitmq-stream://localhost:-1/",
    "kafka://localhost:99999",
    "kafka://",
    "kafka://localhost:9092/?nope=1",
    "sqlite://",
    "sqlite:///",
    "sqlite:///folder",
    "sqlite:///binary.bin",
    "sqlite:///no/such/folder/x.db",
    "sqlite:///good.db?nope=1",
    "sqlite:///good.db?max_body_bytes=-1",
    "sqlite:///good.db?lease_s=nan",
)
MISSING_DATABASE = "sqlite:///missing.db"
STORE_URLS = (
    "",
    "groups.db",
    "sqlit:///groups.db",
    "amqp://localhost/",
    "sqlite://",
    "sqlite:///folder",
    "sqlite:///binary.bin",
    MISSING_DATABASE,
    "postgresql://localhost:99999/x",
    "postgresql://localhost:port/x",
)
PICTURES = ("picture.pdf", "picture", "no/such/folder/x.svg", "", "folder.svg")

# (command, parameter) → wrong values of a text or a path that only the command itself understands
WRONG: dict[tuple[str, str], Words] = {
    ("run", "config"): FILES,
    ("check", "file"): FILES,
    ("identify", "files"): FILES,
    ("identify", "--test"): FILES,
    ("identify", "--input"): ("", "prefetsh", "time"),
    ("identify", "--output"): ("", "rat", "prefetch"),
    ("identify", "--delay"): ("", "-1", "1.5", "nan", "soon", "9" * 30),
    ("identify", "--align"): ("", "sam", "1"),
    ("identify", "--time"): ("seconds",),
    ("identify", "--out"): ("folder",),
    ("identify", "--by"): ("host",),
    ("config check", "file"): FILES,
    ("controllers", "name"): ("", "pj", "no-such"),
    ("publish", "url"): BROKER_URLS,
    ("publish", "channel"): ("", "no-such", "a\0b"),
    ("publish", "--file"): ("missing.file", "folder", "no/such/folder.x", ""),
    ("publish", "--header"): ("", "x", "=1"),
    ("publish", "--declare"): ("", "que", "topic"),
    ("publish", "--listen"): ("", "localhost", "localhost:port", "localhost:99999", ":-1"),
    ("publish", "--outbox"): ("", "folder", "binary.bin", "no/such/folder.db"),
    ("publish", "--token-file"): FILES,
    ("consume", "url"): (*BROKER_URLS, MISSING_DATABASE),
    ("consume", "channel"): ("", "no-such"),
    ("consume", "--config"): FILES,
    ("consume", "--from"): ("", "earlyest", "0"),
    ("consume", "--out"): ("", "folder", "no/such/folder.x"),
    ("tune", "url"): (*BROKER_URLS, MISSING_DATABASE, "missing.toml", "empty.toml"),
    ("tune", "--handler"): ("", "json", "json:", ":loads", "no_such:f", "json:no_such", "os:environ"),
    ("tune", "--goal"): ("", "400", "rate", "rate=", "rate=x", "rate=-1", "rate=0", "rate=nan", "rat=4"),
    ("tune", "--queue"): ("", "no-such"),
    ("tune", "--channel"): ("orders",),
    ("tune", "--group"): ("billing",),
    ("tune", "--signal"): ("", "stairs"),
    ("tune", "--controller"): ("", "litle"),
    ("tune", "--profile"): ("day",),
    ("tune", "--out"): ("folder", "no/such/folder.x", "", "loops.toml"),
    ("broker up", "kind"): ("", "rabitmq", "redis"),
    ("assign", "cases"): FILES,
    ("queues", "url"): (*BROKER_URLS, MISSING_DATABASE),
    ("lab", "names"): ("", "s1_closed_lop"),
    ("lab", "--out"): ("binary.bin", "binary.bin/x"),
    ("bench", "names"): ("", "loop"),
    ("bench", "--only"): ("", "nope"),
    ("bench", "--results"): ("binary.bin", "binary.bin/x"),
    ("groups show", "group"): ("", "shopp"),
    ("groups what-if", "group"): ("", "shopp"),
    ("groups what-if", "--join"): ("", "=x"),
    ("groups what-if", "--queues"): ("", "orders", "orders=", "orders=x", "orders=-1", "orders=nan"),
    ("groups what-if", "--strategy"): ("", "stiky"),
    ("groups advise", "group"): ("", "shopp"),
    ("simulate", "--controller"): ("", "pj"),
    ("simulate", "--set"): ("", "x", "=1", "nope=1"),
    ("design", "--poles"): ("", "x", "nan", "inf", "2", "0.5,", "0.5+0.3j"),
}
for _command in ("design", "verify", "simulate"):
    for _option in ("--a", "--b"):
        WRONG[_command, _option] = ("", "x", "nan", "inf", "-inf", "1,", "1e400", "0.1,x", "1e300")
for _command in ("design", "verify"):
    WRONG[_command, "--delay"] = ("", "-1", "1.5", "x", "nan", "9" * 30)
    WRONG[_command, "--controller"] = ("", "pj", "pii")
    WRONG[_command, "--derivative-filter"] = ("", "x", "-0.1", "1", "nan", "inf", "0.3")
for _option in ("--kp", "--ki", "--kd", "--ky", "--ku", "--covariance"):
    WRONG["verify", _option] = ("", "x", "nan", "inf", "1e308")
WRONG["verify", "--covariance"] += ("1", "1,0", "-1,0,1", "1,0,-1", "1,5,1", "nan,0,1")
WRONG["design", "--covariance"] = WRONG["verify", "--covariance"]
for _option in ("--settling", "--overshoot"):
    WRONG["design", _option] = ("", "x", "-1", "nan", "inf", "1e300")
for _command in ("identify", "design", "verify", "simulate", "tune"):
    WRONG[_command, "--plot"] = PICTURES
for _command in ("list", "show", "replay", "delete"):
    WRONG[f"outbox {_command}", "file"] = (*FILES, "good.db", "")
for _command in ("list", "show", "what-if", "advise"):
    WRONG[f"groups {_command}", "store"] = STORE_URLS

for _command in (
    *("create", "describe", "status", "drain", "resume"),
    *("propose", "approve", "reject", "stop", "watch", "set", "grow", "shrink", "delete"),
):
    WRONG[f"cluster {_command}", "store"] = tuple(url for url in STORE_URLS if url != MISSING_DATABASE)
    WRONG[f"cluster {_command}", "cluster"] = ("",) if _command == "create" else ("", "shopp")
    WRONG[f"cluster {_command}", "node"] = ("", "b")
for _command in ("approve", "reject", "stop"):
    WRONG[f"cluster {_command}", "proposal"] = ("", "grow", "grow-1")
for _command in ("create", "set"):
    WRONG[f"cluster {_command}", "--mode"] = ("", "of", "ON")
    WRONG[f"cluster {_command}", "--auto"] = ("", "groww", "GROW")
WRONG["cluster shrink", "node"] = ("", "b")
WRONG["cluster create", "--host"] = ("", "b", "b=", "a=sqlite:///b.db", "b=sqlite:///good.db", "b=nope")
for _option in ("--add-command", "--remove-command"):
    WRONG["cluster create", _option] = ("", "'", "true")
WRONG["cluster create", "--process"] = ("empty.txt", "empty.txt/inner", "")
WRONG["cluster create", "--node"] = ("", "a", "a=", "=sqlite:///good.db", "a=nope", "a=kafka://localhost:99999")
WRONG["cluster create", "--capacity"] = ("", "a", "a=", "a=x", "b=3", "a=-1", "a=0")

# Texts of which none is wrong.
ANY_TEXT = {
    ("publish", "--body"),
    ("publish", "--token"),  # without --listen, too: it may stand in the environment
    ("publish", "--key"),
    ("cluster create", "--queue"),
    ("publish", "--content-type"),
    ("consume", "--group"),
    ("groups what-if", "--leave"),
}

NOT_INTEGERS = ("", "x", "1.5", "nan", "inf", "1e3", "9" * 30, "-" + "9" * 30)
NOT_NUMBERS = ("", "x", "nan", "inf", "-inf", "1e400")


@dataclass(frozen=True, slots=True)
class Case:
    """One wrong call; `files` are written before it."""

    words: Words
    files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(word or "''" for word in self.words)


def commands() -> dict[str, Any]:
    """Every command by its name, sub-commands by both."""
    found = {}
    for name in COMMANDS:
        command: Any = get_command(make_application(name))
        chosen = command.commands[name]
        for sub, inner in getattr(chosen, "commands", {"": chosen}).items():
            found[f"{name} {sub}".strip()] = inner
    return found


def cases_of(name: str, command: Any) -> Iterator[Case]:
    """Every mistake in a call of one command."""
    call = CALLS[name]
    start = tuple(name.split())
    yield Case((*start, *call, "--no-such-option"))
    yield Case((*start, *call, "--jsn"))
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
    if not any(argument.nargs == -1 for argument in arguments):
        yield Case((*start, *call, *("one-too-many",) * (1 + sum(not a.required for a in arguments))))
    required = [parameter for parameter in command.params if parameter.required]
    for parameter in required:
        yield Case((*start, *_without(call, parameter, arguments)))
    for parameter in command.params:
        if parameter.is_flag if hasattr(parameter, "is_flag") else False:
            yield Case((*start, *call, f"{parameter.opts[0]}=perhaps"))
            continue
        for value in wrong_values(name, parameter):
            yield Case((*start, *_with(call, parameter, arguments, value)))
        if parameter not in arguments:
            yield Case((*start, *call, parameter.opts[0]))  # the value is missing
            yield Case((*start, *call, f"{parameter.opts[0]}x", "1"))


def wrong_values(name: str, parameter: Any) -> Iterator[str]:
    """Values that the parameter must not have: by its type and range, or from the table."""
    label = parameter.opts[0]
    kind = _plain_type(parameter.type_descriptor.annotation)
    if kind in (int, float):
        yield from NOT_INTEGERS if kind is int else NOT_NUMBERS
        if parameter.min is not None:
            yield str(parameter.min - 1)
        if parameter.max is not None:
            yield str(parameter.max + 1)
        if kind is int and label.startswith("-"):
            yield "-5"
    elif (name, label) in ANY_TEXT:
        return
    yield from WRONG[name, label] if kind not in (int, float) else WRONG.get((name, label), ())


def _plain_type(annotation: Any) -> type:
    for kind in (int, float, bool, str, Path):
        if annotation is kind or kind.__name__ in str(annotation).replace("[", " ").replace("]", " ").split():
            return kind
    return str if "str" in str(annotation) else Path


def _with(call: Words, parameter: Any, arguments: list[Any], value: str) -> Words:
    """The call with another value of the parameter."""
    if parameter in arguments:
        given = [word for word in call if not word.startswith("-")][: len(arguments)]
        place = arguments.index(parameter)
        head = call[:place] if place <= len(given) else call
        return (*head, value, *call[place + 1 :])
    if parameter.opts[0] in call:
        place = call.index(parameter.opts[0])
        return (*call[: place + 1], value, *call[place + 2 :])
    return (*call, parameter.opts[0], value)


def _without(call: Words, parameter: Any, arguments: list[Any]) -> Words:
    """The call without a parameter that is required; of arguments it is the last one that is missing then."""
    if parameter in arguments:
        place = arguments.index(parameter)
        return (*call[:place], *call[place + 1 :])
    place = call.index(parameter.opts[0])
    return (*call[:place], *call[place + 2 :])


# ── config files ─────────────────────────────

LIMITS = [1.0, 360.0]
CONFIGS: dict[str, tuple[Words, dict[str, Any]]] = {
    "loops": (
        ("config", "check"),
        {
            "loop": [
                {
                    "name": "prefetch",
                    "goal": 400.0,
                    "period_s": 5.0,
                    "mode": "shadow",
                    "limits": LIMITS,
                    "command": 4.0,
                    "controller": {"name": "pi", "kp": -0.0016, "ki": 0.006},
                    "filter": [{"name": "ewma", "keep": 0.5}],
                    "blocking": True,
                }
            ],
            "telemetry": {"sqlite": {"path": "loops.db", "max_rows": 1000}, "memory": {"capacity": 10}},
        },
    ),
    "consumer": (
        ("consume", "--config"),
        {
            "consumer": {
                "url": "sqlite:///good.db",
                "queue": "orders",
                "handler": "json:loads",
                "goal": "rate=400",
                "controller": {"name": "pi", "kp": -0.0016, "ki": 0.006},
                "mode": "on",
                "concurrency": 4,
                "handler_timeout_s": 5.0,
                "retries": 2,
                "window": 4,
                "max_window": 100.0,
                "period_s": 1.0,
                "pacing": False,
            }
        },
    ),
    "group": (
        ("consume", "--config"),
        {
            "consumer": {
                "url": "sqlite:///good.db",
                "handler": "json:loads",
                "group": {
                    "name": "shop",
                    "topics": {"orders": 8},
                    "store": "sqlite:///groups.db",
                    "strategy": "sticky",
                    "heartbeat_s": 1.0,
                    "session_timeout_s": 6.0,
                    "release_timeout_s": 10.0,
                    "options": {"band": 0.05, "max_moves": 4},
                },
            }
        },
    ),
    "run": (
        ("run",),
        {
            "folder": "data",
            "broker": "sqlite:///run.db",
            "source": {"kind": "demo", "seed": 3, "events": 6000, "per_second": 3000.0},
            "pipeline": {
                "columns": "id bigint, kind string, ip string, load double null, event_time double",
                "event_time": "event_time",
                "watermark_s": 5.0,
                "max_rows": 1000,
                "lanes": {"count": 2, "balance": True, "interval_s": 2.0, "queue_bytes": 64_000_000},
                "monitors": [{"name": "high", "column": "load", "quantile": 0.95, "initial": 3.0}],
                "tier1": [{"keep": "kind = 'performance'"}],
                "rules": [{"name": "busy", "aggregate": "max", "column": "load", "window_s": 10.0, "above": 2.0}],
            },
        },
    ),
}
CONFIGS["tune"] = (("tune",), CONFIGS["run"][1])
CONFIGS["check"] = (("check",), CONFIGS["run"][1])

NOT_TOML = {
    "text": "this is no TOML",
    "json": '{"loop": []}',
    "half": "[loop",
    "twice": "x = 1\nx = 2",
    "deep": "x = " + "[" * 3000 + "]" * 3000,
    "other": "[server]\nport = 1",
    "bom": "\ufeff",
    "control": "x = '\x01'",
}


def config_cases() -> Iterator[Case]:
    """Every key of every kind of config misspelt, of the wrong type, and NaN where it is a number."""
    for kind, (call, document) in CONFIGS.items():
        for name, text in NOT_TOML.items():
            yield Case((*call, f"{name}-{kind}.toml"), {f"{name}-{kind}.toml": text})
        for number, spoilt in enumerate(_spoil(document)):
            path = f"{kind}-{number}.toml"
            yield Case((*call, path), {path: to_toml(spoilt)})


def _spoil(value: Any) -> Iterator[Any]:
    """The value with one mistake in it, for every place where there can be one."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "orders":  # a topic, which may have any name
                others = {name: other for name, other in value.items() if name != key}
                yield {**others, f"{key}x": item}
            for spoilt in [*_spoil(item), *([[]] if isinstance(item, dict) else [])]:
                yield {**value, key: spoilt}
        yield {**value, "no_such_key": 1} if "orders" not in value else 3
        return
    if isinstance(value, list):
        yield "text"
        if value == LIMITS:
            return  # the highest may be infinite
        for place, item in enumerate(value):
            for spoilt in _spoil(item):
                yield [*value[:place], spoilt, *value[place + 1 :]]
        return
    if isinstance(value, bool):
        yield from ("perhaps", 17, [])
    elif isinstance(value, float | int):
        yield from ("many", {}, float("nan"), float("inf"), True if isinstance(value, float) else 10**30)
    else:
        yield from (17, [], {}, True, "")


def to_toml(document: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in document.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


NOT_CASES = ("", "{", "[", "3", '"x"', "{}", "[1]", '[{"id": 1}]', "null", "[[]]", "NaN", "\x00", "[" * 3000)


def json_cases() -> Iterator[Case]:
    for number, text in enumerate(NOT_CASES):
        yield Case(("assign", f"cases-{number}.json"), {f"cases-{number}.json": text})
