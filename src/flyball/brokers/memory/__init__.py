"""Adapter `memory://`: queues and logs inside this process, for tests and trials."""

from flyball.brokers.memory.broker import connect as connect
