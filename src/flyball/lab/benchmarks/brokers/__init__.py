"""Brokers: throughput behind the port beside the raw client's, and the embedded broker's own figures."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from flyball.lab.bench import BenchContext, Row

GROUPS = tuple(module.name for module in pkgutil.iter_modules(__path__))


def run(context: BenchContext) -> Iterator[Row]:
    for group in filter(context.wants, GROUPS):
        yield from importlib.import_module(f"{__name__}.{group}").cases(context)
