"""`regulate`: a goal for a program that keeps its own client, pika or confluent-kafka.

    channel = regulate(connection.channel(), goal="rate=400")        # pika
    channel.basic_consume("orders", on_message)                      # as before; ack as before
    channel.start_consuming()

    consumer = regulate(confluent_consumer, goal="rate=400")         # confluent-kafka
    while message := consumer.poll(1.0):                             # as before
        handle(message)
        consumer.done(message)                                       # new: the message has left the window; a
                                                                     # commit of the message says it, too

What is returned passes everything else on to the client. Nothing runs beside the program: with pika the loop is
called by deliveries, acknowledgements and the connection's own timer, whichever comes first once a step is due (a
BlockingConnection runs no timer while deliveries are pending), with Kafka inside `poll` and `consume`.
"""

from __future__ import annotations

from typing import Any, overload

from flyball.consumer.external.kafka_consumer import KafkaConsumer, KafkaMessage, M, RegulatedConsumer
from flyball.consumer.external.pika_channel import OnMessage, PikaChannel, RegulatedChannel
from flyball.consumer.external.regulated import RegulatedStats
from flyball.consumer.policy.controller import ControllerOption
from flyball.consumer.policy.goals import Goal
from flyball.errors import InvalidValue

__all__ = [
    "KafkaConsumer",
    "KafkaMessage",
    "OnMessage",
    "PikaChannel",
    "RegulatedChannel",
    "RegulatedConsumer",
    "RegulatedStats",
    "regulate",
]


@overload
def regulate(
    client: PikaChannel,
    *,
    goal: str | Goal,
    controller: ControllerOption = None,
    max_window: int = 64,
    period_s: float = 1.0,
) -> RegulatedChannel: ...
@overload
def regulate(
    client: KafkaConsumer[M],
    *,
    goal: str | Goal,
    controller: ControllerOption = None,
    max_window: int = 64,
    period_s: float = 1.0,
) -> RegulatedConsumer[M]: ...
def regulate(
    client: Any,
    *,
    goal: str | Goal,
    controller: ControllerOption = None,
    max_window: int = 64,
    period_s: float = 1.0,
) -> RegulatedChannel | RegulatedConsumer[Any]:
    """The same client with a window that holds `goal`.

    A pika channel must be open and must not consume yet; the wrapper sets its prefetch to `max_window`, keeps what
    exceeds the window unacknowledged and untouched, and hands it to the callback as the window allows. A
    confluent-kafka consumer must not commit by itself.
    """
    kind = type(client)
    if hasattr(client, "basic_consume") and hasattr(client, "basic_ack"):
        return RegulatedChannel(client, goal=goal, controller=controller, max_window=max_window, period_s=period_s)
    if hasattr(client, "consume") and hasattr(client, "poll") and hasattr(client, "assignment"):
        return RegulatedConsumer(
            client, goal=goal, controller=controller, max_window=max_window, period_s=period_s
        )
    raise InvalidValue(
        f"regulate takes a pika channel or a confluent-kafka Consumer, got {kind.__module__}.{kind.__qualname__}"
    )
