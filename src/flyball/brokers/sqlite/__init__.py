"""Adapter `sqlite:///path`: the embedded broker. Durable, shared by processes, no server."""

from flyball.brokers.sqlite.broker import check_exists as check_exists
from flyball.brokers.sqlite.broker import connect as connect
