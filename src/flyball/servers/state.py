"""Servers that outlive the command that started them: `flyball broker up` records them, `down` ends them.

The record is one JSON file in the state folder (`.flyball/servers` below the working folder, or FLYBALL_STATE). A
server is in it before it starts, so that it is known however this program ends. A process counts as ours only if
its pid still has the recorded start time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from flyball.errors import InvalidValue
from flyball.file_lock import lock_file
from flyball.servers import Server
from flyball.servers.ports import accepts

Kind: TypeAlias = Literal["rabbitmq", "kafka"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def state_folder() -> Path:
    return Path(os.environ.get("FLYBALL_STATE") or Path.cwd() / ".flyball") / "servers"


def up(
    kind: str,
    nodes: int,
    folder: Path,
    port: int | None = None,
    version: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Server]:
    """Start servers and record them; if one fails, nothing of it is left, and those before it keep running.

    `port`: the port for clients; None: a free one. `version`: the major version of RabbitMQ, which is fetched if
    necessary; None: the one that is installed.
    """
    if kind not in KINDS:
        raise InvalidValue(f"unknown server {kind!r}; choose from {', '.join(KINDS)}")
    if not 1 <= nodes <= 32:
        raise InvalidValue(f"--nodes must be an integer from 1 to 32, got {nodes}")
    if port is not None:
        if not 1 <= port <= 65_535:
            raise InvalidValue(f"--port must be an integer from 1 to 65535, got {port}")
        if nodes != 1:
            raise InvalidValue(f"--port needs --nodes 1, got --nodes {nodes}")
        if accepts(port):
            raise InvalidValue(f"port {port} is in use; choose another one, or omit --port")
    if version is not None:
        if kind != "rabbitmq":
            raise InvalidValue(f"--version is for rabbitmq, got {kind} --version {version}")
        from flyball.servers import rabbitmq_packages

        rabbitmq_packages.namespace_command(version, progress)
    progress(f"starting {nodes} × {kind} …")
    started = []
    with _records(folder) as known:
        for _ in range(nodes):
            number = 1 + max((int(name.rpartition("-")[2]) for name in known), default=0)
            name = f"{kind}-{number}"
            server = _new(kind, name, folder / name, port, version)
            known[name] = {"kind": kind, **server.record()}
            _save(folder, known)
            try:
                server.start()
            except BaseException:
                shutil.rmtree(folder / name, ignore_errors=True)
                del known[name]
                _save(folder, known)
                raise
            known[name] = {"kind": kind, **server.record()}  # with its processes
            _save(folder, known)
            server.detach()
            started.append(server)
    return started


def status(folder: Path) -> list[Server]:
    """Return all recorded servers, running or not."""
    with _records(folder) as known:
        return [_from_record(record) for record in known.values()]


def down(folder: Path) -> list[str]:
    """Stop all recorded servers, remove their data and records; return their names."""
    with _records(folder) as known:
        names = list(known)
        for name in names:
            _from_record(known[name]).stop()
            shutil.rmtree(folder / name, ignore_errors=True)
            del known[name]
            _save(folder, known)
    return names


def _new(kind: str, name: str, folder: Path, port: int | None, version: int | None) -> Server:
    if kind == "rabbitmq":
        from flyball.servers.rabbitmq import Ports, RabbitMqNode

        return RabbitMqNode(name=name, folder=folder, ports=Ports.free(port), version=version)
    from flyball.servers.kafka import KafkaPorts, KafkaServer

    return KafkaServer(
        name=name,
        folder=folder,
        ports=KafkaPorts.free(port),
        fixed_ports=port is not None,
    )


def _from_record(record: dict[str, Any]) -> Server:
    details = {key: value for key, value in record.items() if key != "kind"}
    if record["kind"] == "rabbitmq":
        from flyball.servers.rabbitmq import RabbitMqNode

        return RabbitMqNode.from_record(details)
    from flyball.servers.kafka import KafkaServer

    return KafkaServer.from_record(details)


@contextmanager
def _records(folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Read the records, under a lock that excludes other commands."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / "lock"):
        path = folder / "servers.json"
        try:
            known = json.loads(path.read_text()) if path.exists() else {}
        except ValueError:
            raise InvalidValue(f"{path} is not valid JSON; end its servers by hand and remove it") from None
        yield known


def _save(folder: Path, known: dict[str, dict[str, Any]]) -> None:
    draft = folder / "servers.json.new"
    draft.write_text(json.dumps(known, indent=2) + "\n")
    draft.chmod(0o600)
    draft.replace(folder / "servers.json")
