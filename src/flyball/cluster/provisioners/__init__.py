"""What starts and stops nodes: `process` on this host, `command` anywhere.

Brokers that run anyway (`nodes` and `hosts` of the configuration) need none: they are used, or not.
"""

from __future__ import annotations

from typing import Protocol

from flyball.cluster.config import ClusterConfig, CommandNodes, ProcessNodes
from flyball.errors import FlyballError


class ProvisioningFailed(FlyballError, RuntimeError):
    """A node could not be added or removed; the message says what was said about it."""


class Provisioner(Protocol):
    """Both calls may be repeated for the same node: a manager that takes over does not know how far they came."""

    async def add(self, node: str) -> str:
        """Make the node run and return its URL; what was on its disk is there again."""

    async def remove(self, node: str) -> None:
        """Stop it."""


def make_provisioner(config: ClusterConfig) -> Provisioner | None:
    match config.provisioner:
        case ProcessNodes() as nodes:
            from flyball.cluster.provisioners.process import ProcessProvisioner

            return ProcessProvisioner(nodes)
        case CommandNodes() as nodes:
            from flyball.cluster.provisioners.command import CommandProvisioner

            return CommandProvisioner(nodes, config.name)
        case None:
            return None
