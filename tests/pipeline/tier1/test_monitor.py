"""Thresholds that follow the input: they find the true quantile, do not raise themselves, and survive kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import BrokerError
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.source.datasource import LogStreamReader
from flyball.pipeline.source.lane_options import LaneOptions
from flyball.pipeline.split.shares import END, ShareEnd
from flyball.pipeline.split.ticks import Tick
from flyball.pipeline.tier1.monitor import Monitor
from tests.pipeline.run.test_inline import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 29
BATCH = 500  # below the sample's size: every event is in it, so plain Python knows the threshold exactly
LEVEL = 0.8
INITIAL = 0.25
RATE_INITIAL = 7.0


def config(max_rows: int = BATCH, **change: Any) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "columns": "id bigint, kind string, load double, event_time double",
            "event_time": "event_time",
            "max_rows": max_rows,
            "monitors": [
                {
                    "name": "high_load",
                    "column": "load",
                    "quantile": LEVEL,
                    "where": "kind = 'host'",
                    "window_s": 1e6,
                    "initial": INITIAL,
                },
                {"name": "dns_rate", "kind": "rate", "where": "kind = 'dns'", "initial": RATE_INITIAL},
            ],
            "tier1": [{"keep": "load > monitor.high_load"}, {"set": {"rate": "monitor.dns_rate"}}],
            **change,
        }
    )


def random_bodies(count: int) -> list[bytes]:
    """Loads of hosts rise while the run lasts; DNS events have loads too, which no threshold may follow."""
    rng = random.Random(SEED)
    bodies = []
    for number in range(count):
        kind = rng.choice(["host", "dns"])
        load = rng.random() + number / count if kind == "host" else rng.uniform(5, 9)
        event = {"id": number, "kind": kind, "load": round(load, 6), "event_time": 1000 + number / 100}
        bodies.append(json.dumps(event).encode())
    return bodies


def reference(bodies: Sequence[bytes], batch: int = BATCH) -> list[int]:
    """Ids of the results: batch by batch, by the exact quantile of all hosts' loads in the batches before."""
    seen: list[float] = []
    threshold = INITIAL
    kept = []
    for first in range(0, len(bodies), batch):
        events = [json.loads(body) for body in bodies[first : first + batch]]
        kept += [event["id"] for event in events if event["load"] > threshold]
        seen = sorted([*seen, *(event["load"] for event in events if event["kind"] == "host")])
        threshold = seen[max(0, -int(-len(seen) * LEVEL // 1) - 1)]
    return kept


def entries(url: str, log: str) -> Iterator[entry.Entry]:
    with open_log_reader(url, log) as reader:
        for chunk in reader.read_bodies(0, *reader.bounds(0)):
            yield from map(entry.decode, chunk.bodies)


def rows(url: str) -> list[dict[str, Any]]:
    return [row for one in entries(url, "results") for row in entry.in_order(one).to_pylist()]


def thresholds(url: str) -> list[float]:
    return [one.header["values"]["high_load"] for one in entries(url, "results.monitor")]


def run(pipeline: InlinePipeline) -> None:
    pipeline.start()
    try:
        pipeline.drain()
    finally:
        pipeline.stop()


def test_results_are_those_of_exact_thresholds_and_a_restart_keeps_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(4000)
    publish(url, bodies[:2000])
    run(InlinePipeline(url, config(), tmp_path, spark=spark))
    publish(url, [*bodies[2000:], END_OF_INPUT])
    run(InlinePipeline(url, config(), tmp_path, spark=spark))
    found = rows(url)
    assert [row["id"] for row in found] == reference(bodies)
    # 100 events a second, half of them DNS; the first batch goes by the initial value.
    assert found[0]["rate"] == RATE_INITIAL
    assert found[-1]["rate"] == pytest.approx(50, rel=0.1)


def test_a_threshold_from_a_sample_is_the_true_quantile_and_does_not_raise_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    rng = random.Random(SEED)
    loads = [rng.expovariate(1) for _ in range(60_000)]
    events = [
        {"id": number, "kind": "host", "load": load, "event_time": 1000 + number / 100}
        for number, load in enumerate(loads)
    ]
    publish(url, [*(json.dumps(event).encode() for event in events), END_OF_INPUT])
    settings = config(max_rows=6000, lanes={"count": 3})
    run(InlinePipeline(url, settings, tmp_path, spark=spark))
    found = thresholds(url)
    true = sorted(loads)[int(LEVEL * len(loads))]
    assert len(found) > 5
    # About 1000 of a batch's events are sampled: the first threshold has a standard deviation of 0.06.
    # Had the sample been taken behind the filter, the second threshold would be 1.6 higher than the first.
    assert found[0] == pytest.approx(true, abs=0.3)
    assert found[-1] == pytest.approx(true, abs=0.1)
    assert max(found) - min(found) < 0.4


class Killed(Exception):
    """Stands for kill -9: nothing after it happens."""


def test_a_batch_that_is_repeated_goes_by_its_first_thresholds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies in batch 3 between its results and its entry of the monitor's log; the next run repeats that batch."""
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(3000)
    publish(url, [*bodies, END_OF_INPUT])
    append = LogSinks.append

    def dying(self: LogSinks, to: str, producer: str, batch: int, what: Sequence[bytes]) -> None:
        append(self, to, producer, batch, what)
        if (to, batch) == ("results.lane-1", 3):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LogSinks, "append", dying)
        pipeline = InlinePipeline(url, config(), tmp_path, spark=spark)
        with pytest.raises(Exception, match="the query tier1 failed"):
            run(pipeline)
    assert len(thresholds(url)) == 3
    run(InlinePipeline(url, config(), tmp_path, spark=spark))
    assert [row["id"] for row in rows(url)] == reference(bodies)


RUN = """
import sys
from pathlib import Path
from flyball.pipeline.run.inline import InlinePipeline
from tests.pipeline.tier1.test_monitor import config, run
if __name__ == "__main__":
    run(InlinePipeline(sys.argv[1], config(), Path(sys.argv[2])))
"""


def batches_done(url: str) -> int:
    try:
        return len(thresholds(url))
    except BrokerError:
        return 0


def test_kill_9_leaves_the_same_thresholds_as_no_kill(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(10_000)
    publish(url, [*bodies, END_OF_INPUT])
    root = Path(__file__).parents[3]
    killed = subprocess.Popen(
        [sys.executable, "-c", RUN, url, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while killed.poll() is None and batches_done(url) < 6:
        time.sleep(0.01)
    time.sleep(random.Random(SEED).uniform(0, 0.3))
    assert killed.poll() is None, killed.communicate()[1]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert 6 <= batches_done(url) < 20
    run(InlinePipeline(url, config(), tmp_path, spark=spark))
    assert [row["id"] for row in rows(url)] == reference(bodies)


def test_a_lane_on_its_own_knows_the_rate_of_all_lanes(tmp_path: Path) -> None:
    """A lane that is a process gets a quarter of the events, and has a monitor of its own."""
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    publish(url, random_bodies(4000))
    ticks = [
        Tick(
            n,
            (200 * n + 200,),
            {0: ((0, 200 * n, 200 * n + 50),), 1: ((0, 200 * n + 50, 200 * n + 200),)},
            (),
            (),
            (),
            {0: 50 * (n + 1), 1: 150 * (n + 1)},
        )
        for n in range(20)
    ]
    sinks = LogSinks(url)
    sinks.open()
    sinks.add("results.ticks", "splitter")
    sinks.append("results.ticks", "splitter", 0, [tick.to_json() for tick in ticks])
    settings = config(monitors=[{"name": "all", "kind": "rate", "initial": 1.0}], tier1=[])
    options = {"url": url, "log": "events", "columns": settings.columns, "event_time": "event_time"}
    lane = LaneOptions(result_queue="results", lane=0, sample=("event_time",))
    reader = LogStreamReader(options | {"_pipeline": lane.to_json()})
    end = reader.latestOffset(start := reader.initialOffset(), None)  # type: ignore[arg-type] # not looked at
    rows = [
        row for part in reader.partitions(start, end) for chunk in reader.read(part) for row in chunk.to_pylist()
    ]
    ends = [ShareEnd.from_json(row["_body"]) for row in rows if row["_kind"] == END]
    monitor = Monitor(sinks, url, "results.monitor", settings.monitors, settings.source_columns, "event_time")
    monitor.open()
    monitor.take(None, 0, ends)  # type: ignore[arg-type] # without conditions Spark has nothing to do
    sinks.close()
    (found,) = entries(url, "results.monitor")
    assert found.header["values"]["all"] == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column": "lode"}, r"monitors\[high_load\].column names the column 'lode', which is none of"),
        ({"column": "kind"}, "which is string; a quantile needs a number"),
        ({"where": "kid = 'host'"}, r"monitors\[high_load\].where: .* did you mean 'kind'"),
        ({"quantile": None}, "a monitor of kind quantile needs quantile; add it, such as quantile = 0.99"),
        ({"kind": "rate"}, "a monitor of kind rate counts events and has no column; leave it out"),
        ({"name": "hi load"}, "should match pattern"),
        ({"name": "dns_rate"}, "two monitors have the same name: dns_rate, dns_rate; rename one"),
        ({"name": "high_lode"}, "no 'monitor.high_load' here; did you mean 'monitor.high_lode'"),
    ],
)
def test_a_wrong_monitor_is_refused_with_its_name(change: dict[str, Any], message: str) -> None:
    high = {"name": "high_load", "column": "load", "quantile": 0.9, "where": "kind = 'host'", "initial": 1.0}
    rate = {"name": "dns_rate", "kind": "rate", "initial": 1.0}
    with pytest.raises(ValueError, match=message):
        config(monitors=[{**high, **change}, rate])


def test_a_monitor_without_an_initial_value_is_refused() -> None:
    with pytest.raises(ValueError, match="initial"):
        config(monitors=[{"name": "high_load", "column": "load", "quantile": 0.9}])


def test_rules_do_not_go_by_monitors() -> None:
    rule = {"name": "busy", "column": "load", "above": 1, "where": "load > monitor.high_load"}
    with pytest.raises(ValueError, match=r"no 'monitor.high_load' here; tier 1 can use what") as refused:
        config(rules=[rule])
    assert "rules[busy].where" in str(refused.value)
