"""Adapter `rabbitmq-stream://`: streams of RabbitMQ, through rstream."""

from flyball.brokers.rabbitmq_stream.broker import connect as connect
