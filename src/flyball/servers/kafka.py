"""A real Kafka broker on this machine: one node that is broker and controller (KRaft), on loopback.

For tests, trials and benchmarks. It has its own data folder and its own free ports, is ready when a topic
could be created, and can be frozen, killed and started again on the same data.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flyball.errors import require
from flyball.processes.process import OwnProcess, tail
from flyball.servers import ServerFailed
from flyball.servers.kafka_jars import find_java, kafka_jars
from flyball.servers.local import LocalServer
from flyball.servers.ports import LOOPBACK, accepts, free_ports

_START_S = 90.0
_STARTS = 3


@dataclass(frozen=True, slots=True)
class KafkaPorts:
    client: int
    controller: int
    internal: int

    @classmethod
    def free(cls, client: int | None = None) -> KafkaPorts:
        """Choose free ports; `client` may be given."""
        chosen = free_ports(3)
        return cls(*chosen) if client is None else cls(client, *chosen[1:])


@dataclass(slots=True)
class KafkaServer(LocalServer):
    """One Kafka broker, with logins and TLS as asked."""

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name → password: if there are any, clients must log in (SASL, mechanism PLAIN)."""
    certificate: Path | None = None
    """A PEM file of private key and certificate chain: if given, clients must use TLS."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further broker properties; they override those chosen here."""
    heap_mb: int = 512
    ports: KafkaPorts = field(default_factory=KafkaPorts.free)
    fixed_ports: bool = False
    """Fail if a port is in use, instead of choosing others."""

    @property
    def url(self) -> str:
        """The broker URL; with users, it logs in as the first one."""
        login = ""
        for name, password in list(self.users.items())[:1]:
            login = f"{quote(name, safe='')}:{quote(password, safe='')}@"
        return f"kafka://{login}{LOOPBACK}:{self.ports.client}/" + ("?tls=1" if self.certificate else "")

    @property
    def urls(self) -> dict[str, str]:
        return {"kafka": self.url}

    def start(self) -> None:
        """Start with the existing data, if there are any, and wait until topics can be created."""
        if self.running:
            return
        java = [str(find_java()), f"-Xmx{self.heap_mb}m", "-Xms128m", "-XX:+UseSerialGC"]
        java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{kafka_jars()}/*"]
        try:
            for starts_left in reversed(range(_STARTS)):
                folder = self._prepared_folder(java)
                log = folder / "server.log"
                said_before = log.stat().st_size if log.exists() else 0
                command = [*java, "kafka.Kafka", str(folder / "server.properties")]
                self._server = self._spawn(command, os.environ, log)
                if self._becomes_ready(self._server):
                    return
                # Another program may take a port between our choosing it and Kafka's binding it: choose again.
                port_taken = _says_port_taken(log.read_bytes()[said_before:])
                if not starts_left or not port_taken or self.fixed_ports:
                    raise ServerFailed(f"Kafka broker {self.name} did not start; the end of its log: {tail(log)}")
                self._server.kill()
                self.ports = KafkaPorts.free()
        except BaseException:
            self.stop()
            raise

    def record(self) -> dict[str, object]:
        return LocalServer.record(self) | {"ports": asdict(self.ports), "tls": self.certificate is not None}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> KafkaServer:
        """Find the broker that another process started and recorded."""
        server = cls(name=record["name"], folder=Path(record["folder"]), ports=KafkaPorts(**record["ports"]))
        server._server = OwnProcess.find(record["server"])
        return server

    def _prepared_folder(self, java: list[str]) -> Path:
        folder = self._own_folder()
        properties = folder / "server.properties"
        properties.touch(mode=0o600)  # it may hold passwords
        chosen = self._properties(folder / "data") | dict(self.settings)
        properties.write_text("".join(f"{key}={value}\n" for key, value in chosen.items()))
        if not (folder / "data" / "meta.properties").exists():
            self._format(java, properties)
        return folder

    def _properties(self, data: Path) -> dict[str, str]:
        ports = self.ports
        security = ("SASL_" if self.users else "") + ("SSL" if self.certificate else "PLAINTEXT")
        client, controller, internal = (f"://{LOOPBACK}:{port}" for port in asdict(ports).values())
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{ports.controller}",
            "listeners": f"CLIENT{client},CONTROLLER{controller},INTERNAL{internal}",
            "advertised.listeners": f"CLIENT{client},INTERNAL{internal}",
            "listener.security.protocol.map": f"CLIENT:{security},CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
            "log.dirs": str(data),
            # One node: nothing can be replicated, and internal topics need no spread.
            "default.replication.factor": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "auto.create.topics.enable": "false",
            "message.max.bytes": str(32 << 20),
            # A killed broker may register again once its old session is over: after 2 s, not 9.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # Members of a group are noticed and balanced in about a second instead of five.
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "3000",
            "group.consumer.min.heartbeat.interval.ms": "500",
            "group.consumer.heartbeat.interval.ms": "500",
            "group.consumer.min.session.timeout.ms": "3000",
            "group.consumer.session.timeout.ms": "6000",
        }
        if self.users:
            logins = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            properties["listener.name.client.sasl.enabled.mechanisms"] = "PLAIN"
            properties["listener.name.client.plain.sasl.jaas.config"] = f"{module} required {logins};"
        if self.certificate:
            properties["listener.name.client.ssl.keystore.type"] = "PEM"
            properties["listener.name.client.ssl.keystore.location"] = str(self.certificate)
        return properties

    def _format(self, java: list[str], properties: Path) -> None:
        cluster = "-"
        while cluster.startswith("-"):  # the tool would take it for an option
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_START_S, check=False)
        if answer.returncode:
            said = (answer.stderr or answer.stdout).strip().splitlines() or ["nothing was said"]
            raise ServerFailed(f"the data folder of Kafka broker {self.name} could not be prepared: {said[0]}")

    def _becomes_ready(self, server: OwnProcess) -> bool:
        """Wait until the controller can create a topic: an open port is not enough."""
        kafka, admin = require("confluent_kafka", "kafka"), require("confluent_kafka.admin", "kafka")
        deadline = time.monotonic() + _START_S
        client = None
        while server.alive and time.monotonic() < deadline:
            if not accepts(self.ports.internal):
                time.sleep(0.05)
                continue
            client = client or admin.AdminClient(
                {"bootstrap.servers": f"{LOOPBACK}:{self.ports.internal}", "log_level": 0}
            )
            probe = f"flyball-ready-{secrets.token_hex(4)}"
            try:
                client.create_topics([admin.NewTopic(probe, 1, 1)], request_timeout=5)[probe].result()
                client.delete_topics([probe], request_timeout=5)[probe].result()
            except kafka.KafkaException:
                time.sleep(0.1)
                continue
            return True
        return False


def _says_port_taken(log: bytes) -> bool:
    """Whether Kafka's log says that another program had one of its ports.

    Kafka ends with the same exit code whatever is wrong, and the other program may have let go of the port by the
    time we look: only the words of the operating system in the log tell (EADDRINUSE, as Java prints it).
    """
    return b"Address already in use" in log
