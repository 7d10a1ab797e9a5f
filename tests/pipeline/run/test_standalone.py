"""The same pipeline on a standalone master with two workers, brought there by spark-submit."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

import flyball
from flyball.java import java_home
from tests.pipeline.run.test_inline import COLUMNS, WATERMARK_S, expected, random_bodies, results

SPARK_HOME = Path(pyspark.__file__).parent
MAIN = Path(flyball.__file__).with_name("__main__.py")
# Short lives: compiling thoroughly does not pay.
BRIEF = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

LINE = f"""
folder = "data"

[source]
kind = "file"
path = "{{events}}"

[pipeline]
columns = "{COLUMNS}"
event_time = "event_time"
watermark_s = {WATERMARK_S}
lanes = {{{{ count = 2, timeout_s = 600.0 }}}}
{{more}}

[[pipeline.tier1]]
keep = "load > 0.5"
"""


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


def submit(config: Path, *arguments: str) -> subprocess.Popen[str]:
    """`spark-submit ARGUMENTS …/__main__.py run CONFIG`, as the documentation has it."""
    settings = [f"spark.{role}.extraJavaOptions={BRIEF}" for role in ("driver", "executor")]
    flags = [part for setting in settings for part in ("--conf", setting)]
    return subprocess.Popen(
        [SPARK_HOME / "bin" / "spark-submit", *arguments, *flags, MAIN, "run", config, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def counted(run: subprocess.Popen[str]) -> dict[str, Any]:
    """The document that it prints at its end: spark-submit mixes standard error into what comes before."""
    answer, stderr = run.communicate()
    assert run.returncode == 0, answer[-3000:] + stderr[-3000:]
    document: dict[str, Any] = json.loads(answer[answer.index("\n{\n") :])
    return document


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def spark_process(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A master or a worker of the Spark that pip installed; the path is its log."""
    log = folder / f"{name}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=BRIEF),
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


def wait_for(log: Path, text: str, times: int = 1) -> None:
    for _ in range(600):
        if log.read_text().count(text) >= times:
            return
        time.sleep(0.2)
    raise AssertionError(f"no {text!r} in {log}: {log.read_text()[-2000:]}")


@contextmanager
def cluster_of_two(folder: Path) -> Iterator[str]:
    """A master with two workers of two cores each; their URL. Workers ask for their master until it is there."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as cluster:
        log = cluster.enter_context(
            spark_process(folder, "master", "org.apache.spark.deploy.master.Master", *here, "--port", str(port))
        )
        wait_for(log, "I have been elected leader")
        for number in (1, 2):
            size = ("--cores", "2", "--memory", "2400m", "--work-dir", str(folder / f"work-{number}"))
            worker = "org.apache.spark.deploy.worker.Worker"
            cluster.enter_context(spark_process(folder, f"worker-{number}", worker, *here, *size, master))
        wait_for(log, "Registering worker", times=2)
        yield master


def applications(folder: Path) -> list[set[str]]:
    """Of each application the workers that ran an executor of it, which alone runs Python readers."""
    found: dict[str, set[str]] = {}
    for executor in folder.glob("work-*/app-*/*"):
        found.setdefault(executor.parent.name, set()).add(executor.parent.parent.name)
    return sorted(found.values(), key=len)


def test_results_are_the_same_on_a_master_with_two_workers(tmp_path: Path) -> None:
    bodies = random_bodies(random.Random(23), 0, 3000)
    (tmp_path / "events").write_bytes(b"".join(body + b"\n" for body in bodies))
    with cluster_of_two(tmp_path) as master:
        # Both at the same time. The default on a cluster is a lane an application, and a config's master wins.
        runs = {}
        for name, more, arguments in (
            ("inline", 'runner = "inline"', ("--master", master, "--total-executor-cores", "2")),
            ("default", f'master = "{master}"', ("--master", "local[1]")),
        ):
            (tmp_path / name).mkdir()
            config = tmp_path / name / "line.toml"
            config.write_text(LINE.format(events=tmp_path / "events", more=more))
            runs[name] = submit(config, *arguments)
        for name, run in runs.items():
            document = counted(run)
            assert (document["lost"], document["duplicated"], document["waiting"]) == (0, 0, 0)
            assert results(f"sqlite:///{tmp_path / name / 'data' / 'broker.db'}") == expected(bodies)
    assert (tmp_path / "default" / "data" / "runner").read_text() == "process\n"
    assert applications(tmp_path)[-1] == {"work-1", "work-2"}
    assert len(applications(tmp_path)) == 3  # one inline, and two lanes
