"""The configuration of one member of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, PositiveFloat, StrictInt, StrictStr, ValidationError, field_validator, model_validator

from flyball.errors import InvalidValue
from flyball.groups.policy.client_mode import COORDINATED
from flyball.groups.policy.consistent_hash import VIRTUAL_NODES
from flyball.groups.policy.rules import GroupRules
from flyball.loops.toml import describe_mistakes
from flyball.store.url import describe_url_mistake
from flyball.strict_model import StrictModel

Strategy: TypeAlias = Literal[
    "sticky",
    "load",
    "averagely",
    "averagely-by-circle",
    "consistent-hash",
    "by-config",
    "by-machine-room",
    "machine-room-nearby",
]
Seconds: TypeAlias = Annotated[PositiveFloat, Field(allow_inf_nan=False)]
Name: TypeAlias = Annotated[StrictStr, Field(min_length=1)]


class StrategyOptions(StrictModel):
    """What some strategies need besides the group. Lists of a topic are for its queues 0, 1, 2, … in turn."""

    racks: dict[Name, Annotated[list[Name], Field(min_length=1)]] = Field(default_factory=dict)
    """sticky: the rack of each queue; members should be in the racks of their queues."""
    band: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05
    """load: tolerated utilisation above the mean."""
    max_moves: Annotated[StrictInt, Field(ge=0)] = 4
    """load: moves in one decision, at most."""
    brokers: dict[Name, Annotated[list[Name], Field(min_length=1)]] = Field(default_factory=dict)
    """RocketMQ's strategies: the broker of each queue; `by-machine-room` reads room@broker, nearby room-broker."""
    rooms: list[Name] = Field(default_factory=list)
    """by-machine-room: the rooms whose queues are read."""
    inner: Literal["averagely", "averagely-by-circle", "consistent-hash"] = "averagely"
    """machine-room-nearby: the strategy within a room."""
    virtual_nodes: Annotated[StrictInt, Field(ge=1)] = VIRTUAL_NODES
    """consistent-hash: points of a member on the ring."""
    queues: dict[Name, list[Annotated[StrictInt, Field(ge=0)]]] = Field(default_factory=dict)
    """by-config: the queues of this member, by topic; of several members that name a queue the first has it."""


class ViewOptions(StrictModel):
    """mode = "client": where members learn of each other, and how well."""

    replicas: Annotated[StrictInt, Field(ge=1, le=100)] = 3
    lag_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How old what a replica shows is, in the mean: from nothing to twice that, each by its own lag."""
    loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of heartbeats, notices and fetches that are lost."""


class GroupConfig(StrictModel):
    """One member of a group: what it reads, and through which store the members agree.

    `topics`: {"orders": 8} are the queues orders.0 … orders.7; ["orders"] leaves the number to the broker (the
    partitions of a Kafka topic). `store` is a database that all members share: "sqlite:///groups.db" on one host,
    "postgresql://user@host/database" on several. `member` is an id that stays the
    same over restarts: a member that returns within `session_timeout_s` has its queues again. Without one, every
    start is a new member. All members of a group should agree on everything but `member`, `rack` and `topics`.
    `mode`: "broker": one coordinator grants queues. "client": every member computes its own from `views`, as
    RocketMQ's clients do; queues may then be read twice or by nobody for a while.
    """

    name: Name
    topics: dict[Name, Annotated[StrictInt, Field(ge=1)]] | list[Name]
    store: StrictStr
    strategy: Strategy = "sticky"
    options: StrategyOptions = StrategyOptions()
    mode: Literal["broker", "client"] = "broker"
    views: ViewOptions = ViewOptions()
    member: Name | None = None
    rack: Name | None = None
    heartbeat_s: Seconds = 1.0
    session_timeout_s: Seconds = 6.0
    """A member that is silent for so long has lost its queues."""
    coalesce_s: Seconds = 1.0
    """After a plan was made, changes are collected for so long before the next."""
    rebalance_s: Seconds = 20.0
    """A plan is made at least so often, also when nothing changed."""
    release_timeout_s: Seconds = 10.0
    """The longest that messages in flight may delay a hand-over."""

    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            try:
                super().__init__(**options)
            except ValidationError as error:
                raise InvalidValue(describe_mistakes(error, options, type(self), "group")) from None

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: dict[str, int] | list[str]) -> dict[str, int] | list[str]:
        if not topics:
            raise ValueError("must name at least one topic, got none")
        if len(set(topics)) < len(topics):
            raise ValueError(f"must differ, got {topics!r:.60}")
        return topics

    @field_validator("store")
    @classmethod
    def _check_store(cls, store: str) -> str:
        mistake = describe_url_mistake(store)
        if mistake is not None:
            raise ValueError(mistake)
        return store

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.session_timeout_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"session_timeout_s must be >= 3 * heartbeat_s ({3 * self.heartbeat_s:g}), "
                f"got {self.session_timeout_s:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.mode == "client" and self.strategy in COORDINATED:
            raise ValueError(
                "strategy must need no assignment before, such as 'averagely', with mode 'client', "
                f"got {self.strategy!r}"
            )
        if self.mode == "broker" and self.views != ViewOptions():
            raise ValueError("views are for mode 'client', got them with mode 'broker'")
        return self

    @property
    def rules(self) -> GroupRules:
        """What a coordinator needs of it."""
        options = self.options
        return GroupRules(
            strategy=self.strategy,
            coalesce_s=self.coalesce_s,
            rebalance_s=self.rebalance_s,
            racks={topic: tuple(racks) for topic, racks in options.racks.items()},
            band=options.band,
            max_moves=options.max_moves,
            brokers={topic: tuple(brokers) for topic, brokers in options.brokers.items()},
            rooms=tuple(options.rooms),
            inner=options.inner,
            virtual_nodes=options.virtual_nodes,
        )

    @property
    def queue_counts(self) -> dict[str, int | None]:
        """The number of queues of each topic; None: as many as the broker has."""
        return dict(self.topics) if isinstance(self.topics, dict) else dict.fromkeys(self.topics)
