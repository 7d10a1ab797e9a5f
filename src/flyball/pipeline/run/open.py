"""`Pipeline`: one name for the two ways to run a pipeline, lanes in one Spark application or each in its own."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from flyball.errors import InvalidValue
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.totals import Totals
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.run.processes import ProcessPipeline
from flyball.pipeline.run.spark_submit import on_submitted_master
from flyball.pipeline.tier2.stage import AlertHandler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PipelineRunner(Protocol):
    """What both runners do: `InlinePipeline` and `ProcessPipeline`."""

    def start(self) -> None: ...

    @property
    def totals(self) -> Totals: ...

    @property
    def ended(self) -> bool: ...

    def set_lanes(self, count: int) -> None: ...

    def set_balance(self, balance: bool) -> None: ...

    def pids(self) -> dict[str, int]: ...

    def restarts(self) -> dict[str, int]: ...

    def check(self) -> None: ...

    def drain(self) -> None: ...

    def stop(self) -> None: ...


class Pipeline:
    """A pipeline, run in the way that its config chooses (`runner`).

        with Pipeline("sqlite:///broker.db", config, "pipeline-data") as pipeline:
            pipeline.drain()

    Entering starts it; leaving stops it, and raises if a part had failed. `start`, `check` and `stop` are for
    programs that cannot use a block. `folder` holds the checkpoints: the same folder and broker continue the same
    run. `on_alert` is called with every alert. `spark` is a session to run in; without one the pipeline starts its
    own and ends it.
    """

    def __init__(
        self,
        url: str,
        config: PipelineConfig,
        folder: Path | str,
        on_alert: AlertHandler = lambda _alert: None,
        *,
        spark: SparkSession | None = None,
    ) -> None:
        config = on_submitted_master(config)
        self._folder = Path(folder)
        self.runner: Literal["inline", "process"] = config.chosen_runner
        _check_runner(self.runner, self._folder)
        self._run: PipelineRunner
        if self.runner == "inline":
            self._run = InlinePipeline(url, config, self._folder, on_alert, spark)
        elif spark is not None:
            raise InvalidValue(
                "with runner = 'process' each lane starts a Spark session of its own: leave spark out, or choose "
                "runner = 'inline'"
            )
        else:
            self._run = ProcessPipeline(url, config, self._folder, on_alert)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.stop()

    def start(self) -> None:
        """Start all parts; returns when they run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _runner_file(self._folder).write_text(self.runner + "\n")
        self._run.start()

    @property
    def totals(self) -> Totals:
        """Where the events went that have passed tier 1."""
        return self._run.totals

    @property
    def ended(self) -> bool:
        """Whether everything up to the end of the input has been put in order."""
        return self._run.ended

    def set_lanes(self, count: int) -> None:
        """Change the number of lanes while it runs; results of lanes that leave are not lost."""
        self._run.set_lanes(count)

    def set_balance(self, balance: bool) -> None:
        """Share events by the lanes' delays from now on, or in equal parts (runner process only)."""
        self._run.set_balance(balance)

    def pids(self) -> dict[str, int]:
        """Process ids of the parts that run now, by role; empty with runner inline, which has one process."""
        return self._run.pids()

    def restarts(self) -> dict[str, int]:
        """How often each part had to be started again: by process (runner process) or by query (inline)."""
        return self._run.restarts()

    def check(self) -> None:
        """Raise if a part has failed for good."""
        self._run.check()

    def drain(self) -> None:
        """Wait until everything that is in the input log now has gone all the way through."""
        self._run.drain()

    def stop(self) -> None:
        """End all parts; what they have committed is kept."""
        self._run.stop()


def _check_runner(runner: str, folder: Path) -> None:
    """The two number their work differently: one cannot continue where the other stopped."""
    file = _runner_file(folder)
    before = file.read_text().strip() if file.exists() else runner
    if before != runner:
        raise InvalidValue(
            f"runner = {runner!r}, but the run in {folder} was begun with runner = {before!r}: keep that, or "
            "choose another folder and other logs"
        )


def _runner_file(folder: Path) -> Path:
    return folder / "runner"
