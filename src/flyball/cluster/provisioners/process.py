"""RabbitMQ nodes on this host. They outlive the process that started them, and keep their data when they stop.

The folder has one folder for each node, with its data and `node.json`: ports, pid and start time. A node that
another manager started is found there.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from flyball.cluster.config import ProcessNodes
from flyball.file_lock import lock_file
from flyball.servers.ports import accepts
from flyball.servers.rabbitmq import Ports, RabbitMqNode


class ProcessProvisioner:
    """See `Provisioner`."""

    def __init__(self, nodes: ProcessNodes) -> None:
        self._folder, self._version = Path(nodes.folder), nodes.version

    async def add(self, node: str) -> str:
        return await asyncio.to_thread(self._start, node)

    async def remove(self, node: str) -> None:
        await asyncio.to_thread(self._stop, node)

    def _start(self, name: str) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        with lock_file(self._folder / f"{name}.lock"):
            server = self._find(name) or RabbitMqNode(
                name=name, folder=self._folder / name, plugins=(), version=self._version
            )
            if not server.running:
                if accepts(server.ports.amqp):
                    server.ports = Ports.free()  # somebody took its port meanwhile
                self._save(server)
                server.start()
                self._save(server)
                server.detach()
            return server.amqp_url

    def _stop(self, name: str) -> None:
        if not self._folder.is_dir():
            return
        with lock_file(self._folder / f"{name}.lock"):
            server = self._find(name)
            if server is not None:
                server.stop()
                self._save(server)

    def _find(self, name: str) -> RabbitMqNode | None:
        path = self._folder / name / "node.json"
        return RabbitMqNode.from_record(json.loads(path.read_text())) if path.exists() else None

    def _save(self, server: RabbitMqNode) -> None:
        folder = self._folder / server.name
        folder.mkdir(exist_ok=True)
        draft = folder / "node.json.new"
        draft.write_text(json.dumps(server.record(), indent=2) + "\n")
        draft.replace(folder / "node.json")
