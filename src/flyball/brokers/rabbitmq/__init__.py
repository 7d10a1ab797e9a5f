"""Adapter `amqp://` and `amqps://`: classic and quorum queues of RabbitMQ, through pika."""

from flyball.brokers.rabbitmq.broker import connect as connect
