"""Adapter `kafka://`: topics of Kafka, through confluent-kafka."""

from flyball.brokers.kafka.broker import connect as connect
