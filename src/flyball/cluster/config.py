"""The configuration of a cluster: its queue, its nodes, and how soon things are noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

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
    capacity: Annotated[StrictInt, Field(ge=1)] = 100
    """How many clients it serves well, compared with the others."""
    zone: str = ""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parsed = BrokerUrl.parse(url)
        if parsed.scheme not in NODE_SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in NODE_SCHEMES)
            raise ValueError(f"must be the URL of a broker with queues ({known}), got {parsed}")
        return url


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
        urls = [node.url for node in self.nodes.values()]
        if len(set(urls)) < len(urls):
            twice = next(url for url in urls if urls.count(url) > 1)
            raise ValueError(f"nodes must have different URLs, got {BrokerUrl.parse(twice)} twice")
        return self

    @property
    def queue_name(self) -> str:
        return self.queue or self.name

    @property
    def rules(self) -> Rules:
        """All nodes are members for good: the brokers run whether the cluster uses them or not."""
        count = len(self.nodes)
        return Rules(
            mode=self.mode,
            auto=frozenset(self.auto),
            allowed_length=self.allowed_length,
            min_nodes=count,
            max_nodes=count,
        )

    def make_nodes(self) -> dict[str, Node]:
        return {
            name: Node(name, node.capacity, True, zone=node.zone, length=None, is_permanent=True)
            for name, node in self.nodes.items()
        }
