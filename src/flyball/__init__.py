"""Flyball: feedback control for message queues and Spark streams.

Every setting on a message's way is the actuator of a loop: sensor → controller → actuator. The packages, in the
order in which a message passes them::

    publisher ─▶ brokers ─▶ consumer: groups share queues among several
                    │
                    └─────▶ pipeline: source ─▶ split ─▶ tier1 ─▶ combine ─▶ tier2 ─▶ sinks

    control   pure mathematics: identification, design, verification, controllers, guard
    loops     steps controllers on a clock;  twin runs the same policies in virtual time
    store     state that must survive;       servers starts real brokers for tests and trials
    cluster   several brokers as one queue: cluster:// where a broker's URL is asked for
    app       what `flyball run` puts together;  demo what `flyball demo` adds
    lab       benchmarks and experiments;    testing what tests share;  cli the command `flyball`

`docs/architecture.md` says what each package holds and may import, and walks through the code.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, without the time that loading it takes

if TYPE_CHECKING:
    from flyball.brokers import Message as Message
    from flyball.brokers import connect as connect
    from flyball.cluster.cluster_store import create_cluster as create_cluster
    from flyball.cluster.config import ClusterConfig as ClusterConfig
    from flyball.cluster.config import ClusterNode as ClusterNode
    from flyball.consumer.consumer import Consumer as Consumer
    from flyball.consumer.external import RegulatedChannel as RegulatedChannel
    from flyball.consumer.external import RegulatedConsumer as RegulatedConsumer
    from flyball.consumer.external import regulate as regulate
    from flyball.consumer.policy.goals import Capacity as Capacity
    from flyball.consumer.policy.goals import DrainBy as DrainBy
    from flyball.consumer.policy.goals import Latency as Latency
    from flyball.consumer.policy.goals import Rate as Rate
    from flyball.consumer.policy.retry import RetryPolicy as RetryPolicy
    from flyball.control.controllers.pi import Pi as Pi
    from flyball.errors import FlyballError as FlyballError
    from flyball.groups.config import GroupConfig as GroupConfig
    from flyball.loops.loop import Loop as Loop
    from flyball.loops.runner import Runner as Runner
    from flyball.loops.runner import run as run
    from flyball.pipeline.config.pipeline import PipelineConfig as PipelineConfig
    from flyball.pipeline.run.open import Pipeline as Pipeline
    from flyball.publisher.options import OrderingConfig as OrderingConfig
    from flyball.publisher.options import OutboxConfig as OutboxConfig
    from flyball.publisher.options import ReceiptConfig as ReceiptConfig
    from flyball.publisher.publisher import Publisher as Publisher
    from flyball.publisher.sync import SyncPublisher as SyncPublisher

__version__ = "0.1.0"

__all__ = [
    "Capacity",
    "ClusterConfig",
    "ClusterNode",
    "Consumer",
    "DrainBy",
    "FlyballError",
    "GroupConfig",
    "Latency",
    "Loop",
    "Message",
    "OrderingConfig",
    "OutboxConfig",
    "Pi",
    "Pipeline",
    "PipelineConfig",
    "Publisher",
    "Rate",
    "ReceiptConfig",
    "RegulatedChannel",
    "RegulatedConsumer",
    "RetryPolicy",
    "Runner",
    "SyncPublisher",
    "__version__",
    "connect",
    "create_cluster",
    "regulate",
    "run",
]

# Public name → module that defines it: imported on first use, so that `import flyball` stays instant. A type
# checker sees the imports above and no `__getattr__`, so that a misspelt name is an error for it.
_MODULES: dict[str, str] = {
    "Capacity": "flyball.consumer.policy.goals",
    "ClusterConfig": "flyball.cluster.config",
    "ClusterNode": "flyball.cluster.config",
    "Consumer": "flyball.consumer.consumer",
    "DrainBy": "flyball.consumer.policy.goals",
    "FlyballError": "flyball.errors",
    "GroupConfig": "flyball.groups.config",
    "Latency": "flyball.consumer.policy.goals",
    "Loop": "flyball.loops.loop",
    "Message": "flyball.brokers",
    "OrderingConfig": "flyball.publisher.options",
    "OutboxConfig": "flyball.publisher.options",
    "Pi": "flyball.control.controllers.pi",
    "Pipeline": "flyball.pipeline.run.open",
    "PipelineConfig": "flyball.pipeline.config.pipeline",
    "Publisher": "flyball.publisher.publisher",
    "Rate": "flyball.consumer.policy.goals",
    "ReceiptConfig": "flyball.publisher.options",
    "RegulatedChannel": "flyball.consumer.external",
    "RegulatedConsumer": "flyball.consumer.external",
    "RetryPolicy": "flyball.consumer.policy.retry",
    "Runner": "flyball.loops.runner",
    "SyncPublisher": "flyball.publisher.sync",
    "connect": "flyball.brokers",
    "create_cluster": "flyball.cluster.cluster_store",
    "regulate": "flyball.consumer.external",
    "run": "flyball.loops.runner",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        try:
            module = _MODULES[name]
        except KeyError:
            raise AttributeError(f"module 'flyball' has no attribute {name!r}") from None
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
