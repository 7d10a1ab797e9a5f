"""The same pipeline on a standalone master with two workers."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flyball.java import java_home
from flyball.pipeline.marks import END_OF_INPUT
from tests.pipeline.test_app import expected, publish, random_bodies, results

# In a process of its own: a JVM has one Spark context, and the other tests keep theirs.
RUN = """
import sys
from pathlib import Path
from flyball.pipeline.runner import open_pipeline
from tests.pipeline.test_app import config
url, folder, master, runner = sys.argv[1:]
changed = {"master": master, "runner": runner or None}
pipeline = open_pipeline(url, config(count=2, timeout_s=600.0).model_copy(update=changed), Path(folder))
pipeline.start()
try:
    pipeline.drain()
finally:
    pipeline.stop()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def spark_process(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A master or a worker of the Spark that pip installed; the path is its log."""
    import pyspark

    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
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
    """A master with two workers of one core each; their URL."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as cluster:
        log = cluster.enter_context(
            spark_process(folder, "master", "org.apache.spark.deploy.master.Master", *here, "--port", str(port))
        )
        wait_for(log, "I have been elected leader")
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "1200m", "--work-dir", str(folder / f"work-{number}"))
            worker = "org.apache.spark.deploy.worker.Worker"
            cluster.enter_context(spark_process(folder, f"worker-{number}", worker, *here, *size, master))
        wait_for(log, "Registering worker", times=2)
        yield master


def test_results_are_the_same_on_a_master_with_two_workers(tmp_path: Path) -> None:
    bodies = random_bodies(random.Random(23), 0, 3000)
    root = Path(__file__).parents[2]
    places = os.pathsep.join([str(root), str(root / "src")])
    executors = 0
    with cluster_of_two(tmp_path) as master:
        for runner in ("inline", ""):  # the default is a lane an application
            folder = tmp_path / (runner or "default")
            folder.mkdir()
            url = f"sqlite:///{folder / 'broker.db'}"
            publish(url, [*bodies, END_OF_INPUT])
            run = subprocess.run(
                [sys.executable, "-c", RUN, url, str(folder), master, runner],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": places, "SPARK_LOCAL_IP": "127.0.0.1"},
                check=False,
            )
            assert run.returncode == 0, run.stderr[-3000:]
            assert results(url) == expected(bodies)
            # Executors of both workers ran Python readers, not a driver: of one application, then of two.
            before, executors = executors, len(list(tmp_path.glob("work-*/app-*/*")))
            assert executors - before == 2
    assert (folder / "runner").read_text() == "process\n"
    assert len(list(tmp_path.glob("work-*/app-*"))) == 4
