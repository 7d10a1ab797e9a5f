"""The configuration of a cluster: its queue, its nodes, and how soon things are noticed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, PositiveFloat, StrictInt, StrictStr, ValidationError, field_validator, model_validator

from flyball.brokers.core.names import check_name
from flyball.brokers.url import BrokerUrl
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Node
from flyball.control.record import Mode
from flyball.errors import InvalidValue
from flyball.loops.toml import describe_mistakes
from flyball.strict_model import StrictModel

Seconds: TypeAlias = Annotated[PositiveFloat, Field(allow_inf_nan=False)]
Name: TypeAlias = Annotated[StrictStr, Field(min_length=1)]

NODE_SCHEMES = ("amqp", "amqps", "sqlite")


class ClusterNode(StrictModel):
    """A broker that serves the cluster's queue."""

    url: Name
    capacity: Annotated[StrictInt, Field(ge=1)] | None = None
    """How many clients it serves well; None: it is measured."""
    zone: str = ""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parsed = BrokerUrl.parse(url)
        if parsed.scheme not in NODE_SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in NODE_SCHEMES)
            raise ValueError(f"must be the URL of a broker with queues ({known}), got {parsed}")
        return url


class ProcessNodes(StrictModel):
    """RabbitMQ nodes on this host, which are started when the cluster grows and stopped when it shrinks."""

    kind: Literal["process"] = "process"
    folder: Name
    """Where their data are, an absolute path; they stay there when a node is stopped."""
    capacity: Annotated[StrictInt, Field(ge=1)] | None = None
    version: StrictInt | None = None
    """Major version; None: the one that is installed."""
    timeout_s: Seconds = 180.0

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: str) -> str:
        if not Path(folder).is_absolute():
            raise ValueError(f"must be an absolute path, got {folder!r}")
        return folder


class CommandNodes(StrictModel):
    """Nodes that a command adds and removes. `{node}` and `{cluster}` in its words are replaced by the names.

    `add` prints the URL of the node as its last line; called again for a node that runs, it does the same.
    """

    kind: Literal["command"] = "command"
    add: Annotated[tuple[Name, ...], Field(min_length=1)]
    remove: Annotated[tuple[Name, ...], Field(min_length=1)]
    capacity: Annotated[StrictInt, Field(ge=1)] | None = None
    timeout_s: Seconds = 120.0


class ClusterConfig(StrictModel):
    """A clustered queue. `queue` is its name at every node, by default the cluster's."""

    name: Name
    nodes: Annotated[dict[Name, ClusterNode], Field(min_length=1)]
    queue: str = ""
    heartbeat_s: Seconds = 1.0
    """How often clients report and nodes are asked; five times as often while something changes."""
    session_timeout_s: Seconds = 6.0
    """A client that is silent for so long has left; a manager that is has a successor."""
    lost_after_s: Seconds = 2.0
    """A node that does not answer for so long is lost."""
    allowed_length: Annotated[StrictInt, Field(ge=0)] = 10_000
    """A queue that is longer hands its surplus to the others."""
    hosts: dict[Name, ClusterNode] = Field(default_factory=dict)
    """Brokers that run already and are used when the cluster grows."""
    provisioner: Annotated[ProcessNodes | CommandNodes, Field(discriminator="kind")] | None = None
    """What starts further nodes when the cluster grows."""
    min_nodes: Annotated[StrictInt, Field(ge=1)] | None = None
    """By default as many as `nodes`."""
    max_nodes: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    """By default as many as `nodes` and `hosts`; a provisioner needs it."""
    grow_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    """An overload that lasts so long asks for another node, also if nobody joins."""
    shrink_after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """A node that could be missed for so long is removed."""
    mode: Mode = "on"
    """advise: changes are only proposed; shadow: those of `auto` are logged as if they were carried out."""
    auto: tuple[Kind, ...] = tuple(Kind)
    """Kinds of change that need no approval."""

    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            try:
                super().__init__(**options)
            except ValidationError as error:
                raise InvalidValue(describe_mistakes(error, options, type(self), "cluster")) from None

    @field_validator("name", "queue")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_name(name) if name else name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.session_timeout_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"session_timeout_s must be >= 3 * heartbeat_s ({3 * self.heartbeat_s:g}), "
                f"got {self.session_timeout_s:g}"
            )
        both = sorted(set(self.nodes) & set(self.hosts))
        if both:
            raise ValueError(f"nodes and hosts must have different names, got {both[0]!r} twice")
        urls = [node.url for node in self.known_nodes.values()]
        if len(set(urls)) < len(urls):
            twice = next(url for url in urls if urls.count(url) > 1)
            raise ValueError(f"nodes must have different URLs, got {BrokerUrl.parse(twice)} twice")
        if self.provisioner is not None and self.max_nodes is None:
            raise ValueError("max_nodes must be given with a provisioner, got none")
        least, most = self._limits
        if most < max(least, len(self.nodes)):
            raise ValueError(
                f"max_nodes must be >= min_nodes and the number of nodes ({len(self.nodes)}), got {most}"
            )
        if self.provisioner is None and most > len(self.known_nodes):
            raise ValueError(
                f"max_nodes must be <= {len(self.known_nodes)}, the number of nodes and hosts, got {most}"
            )
        return self

    @property
    def queue_name(self) -> str:
        return self.queue or self.name

    @property
    def known_nodes(self) -> dict[str, ClusterNode]:
        """Members to begin with, and hosts."""
        return {**self.nodes, **self.hosts}

    @property
    def _limits(self) -> tuple[int, int]:
        least = len(self.nodes) if self.min_nodes is None else self.min_nodes
        return least, max(least, len(self.known_nodes)) if self.max_nodes is None else self.max_nodes

    @property
    def rules(self) -> Rules:
        least, most = self._limits
        # A node that is being added answers later than whoever starts it gives up.
        add_timeout_s = 120.0 if self.provisioner is None else self.provisioner.timeout_s + 60.0
        return Rules(
            mode=self.mode,
            auto=frozenset(self.auto),
            allowed_length=self.allowed_length,
            min_nodes=least,
            max_nodes=most,
            grow_after_s=self.grow_after_s,
            shrink_after_s=self.shrink_after_s,
            release_after_s=2 * self.heartbeat_s,
            add_timeout_s=add_timeout_s,
        )

    def make_nodes(self) -> dict[str, Node]:
        return {
            name: Node(
                name, node.capacity, node.capacity is not None, zone=node.zone, length=None, is_permanent=True
            )
            for name, node in self.nodes.items()
        }

    def find_capacity(self, name: str) -> int | None:
        """The configured capacity of a node; None: it is measured."""
        node = self.known_nodes.get(name) or self.provisioner
        return None if node is None else node.capacity

    def list_names(self) -> tuple[str, ...]:
        """Names of the nodes that the provisioner can add."""
        if self.provisioner is None:
            return ()
        names = (f"node-{number}" for number in range(1, self._limits[1] + 1))
        return tuple(name for name in names if name not in self.known_nodes)
