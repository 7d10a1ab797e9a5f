"""Webhooks against a real HTTP server: in order, at least once, repeats recognisable, bad messages set aside."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flyball.backoff import delays_s
from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.sinks import Sinks
from tests.pipeline.sinks.logs import Logs, alert, config, write


@dataclass
class Hook:
    """A server that notes every request it answers with 200; `judge` says what to answer."""

    url: str = ""
    judge: Callable[[dict[str, Any], int], int] = lambda _document, _attempt: 200
    taken: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def hook() -> Iterator[Hook]:
    found = Hook()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = self.headers["Idempotency-Key"]
            found.headers.append(dict(self.headers))
            found.attempts[key] = found.attempts.get(key, 0) + 1
            status = found.judge(document, found.attempts[key])
            if status == 0:  # hangs up without an answer
                self.close_connection = True
                return
            if status == 200:
                found.taken.append((key, document))
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/alerts?from=test"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings(url: str, **change: Any) -> PipelineConfig:
    return config([{"kind": "webhook", "of": "alerts", "url": url, **change}])


def filled(folder: Path, alerts: int) -> str:
    url = f"sqlite:///{folder / 'broker.db'}"
    logs = Logs(url)
    logs.alerts(0, alerts)
    logs.close()
    return url


def undelivered(url: str) -> list[dict[str, Any]]:
    with open_log_reader(url, "lyon.webhook-alerts.undelivered") as reader:
        return [json.loads(body) for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]


def test_each_alert_is_posted_once_in_order_with_a_key_of_its_own(tmp_path: Path) -> None:
    url = filled(tmp_path, 20)
    with hook() as there:
        write(url, settings(there.url, headers={"Authorization": "Bearer x"}), tmp_path)
        write(url, settings(there.url), tmp_path)
        assert [document for _, document in there.taken] == [alert(number) for number in range(20)]
        assert len({key for key, _ in there.taken}) == 20
        assert there.headers[0]["Authorization"] == "Bearer x"
        assert there.headers[0]["Content-Type"] == "application/json"
    assert undelivered(url) == []


def test_failing_and_hanging_servers_are_tried_again_and_refusals_set_aside(tmp_path: Path) -> None:
    """Alert 3 fails twice, 5 is hung up on, 7 is refused for good, 9 fails for ever, 11 is answered too late."""
    url = filled(tmp_path, 14)
    late = threading.Event()

    def judge(document: dict[str, Any], attempt: int) -> int:
        number = int(document["window_start"])
        if number == 11 and attempt == 1:
            late.wait(30)
        return {3: 503 if attempt < 3 else 200, 5: 0 if attempt == 1 else 200, 7: 422, 9: 500}.get(number, 200)

    with hook() as there:
        there.judge = judge
        write(url, settings(there.url, tries=4, timeout_s=0.5), tmp_path)
        late.set()
        posted = [int(document["window_start"]) for _, document in there.taken]
        attempts = {int(key.split("-")[-2]): count for key, count in there.attempts.items()}
    # The late answer of 11 comes on the server's side after the client had hung up and tried again.
    assert [number for number in range(14) if number in posted] == [n for n in range(14) if n not in (7, 9)]
    assert (attempts[3], attempts[5], attempts[7], attempts[9], attempts[11]) == (3, 2, 1, 4, 2)
    letters = undelivered(url)
    assert [json.loads(letter["body"]) for letter in letters] == [alert(7), alert(9)]
    assert letters[0]["error"] == "answered 422 Unprocessable Entity"
    assert letters[1]["error"].startswith("answered 500")


def test_a_sink_that_waits_for_its_server_can_be_stopped_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled(tmp_path, 3)
    first_try = threading.Event()

    def long_waits(attempts: int, **_: Any) -> Iterator[float]:
        first_try.set()
        return delays_s(attempts, first_s=600.0, longest_s=600.0)

    with monkeypatch.context() as patch:
        patch.setattr("flyball.pipeline.sinks.webhook.delays_s", long_waits)
        logs = LogSinks(url)
        logs.open()
        sinks = Sinks(url, settings("http://127.0.0.1:9/"), tmp_path, logs)  # nobody listens there
        sinks.start()
        assert first_try.wait(60)
        sinks.stop()  # would wait for ten minutes
        sinks.check()
        logs.close()
    with hook() as there:
        write(url, settings(there.url), tmp_path)
        assert [document for _, document in there.taken] == [alert(number) for number in range(3)]


RUN = """
import sys
from pathlib import Path
from tests.pipeline.sinks.logs import write
from tests.pipeline.sinks.test_webhook import settings
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write(f"sqlite:///{folder / 'broker.db'}", settings(sys.argv[2]), folder)
"""


def test_after_kill_9_nothing_is_missing_and_repeats_have_the_same_key(tmp_path: Path) -> None:
    seed = 43
    rng = random.Random(seed)
    filled(tmp_path, 120)
    root = Path(__file__).parents[3]
    killed = 0
    with hook() as there:
        for _ in range(40):
            process = subprocess.Popen(
                [sys.executable, "-c", RUN, str(tmp_path), there.url],
                env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
                stderr=subprocess.PIPE,
            )
            goal = len(there.taken) + rng.randint(15, 50)
            while process.poll() is None and len(there.taken) < goal:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
            error = process.communicate()[1]
            if process.returncode == 0:
                break
            assert process.returncode == -signal.SIGKILL, error
            killed += 1
        by_key = dict(there.taken)
        assert killed >= 2, f"seed {seed}"
        assert len(there.taken) - len(by_key) <= killed  # at most the one under way comes again
        assert list(by_key.values()) == [alert(number) for number in range(120)]
