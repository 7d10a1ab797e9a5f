"""The two ways to run a pipeline behind one face: lanes in one Spark application, or each in one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from flyball.errors import InvalidValue
from flyball.pipeline.app import Pipeline
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.ledger import Totals
from flyball.pipeline.process_app import ProcessPipeline
from flyball.pipeline.submitted import on_submitted_master
from flyball.pipeline.tier_two import AlertHandler


class RunningPipeline(Protocol):
    """What a pipeline can be asked, whichever way it runs."""

    def start(self) -> None: ...

    @property
    def totals(self) -> Totals: ...

    @property
    def ended(self) -> bool:
        """Everything up to the end of the input has been put in order."""

    def set_lanes(self, count: int) -> None:
        """Run so many lanes; results of lanes that leave are not lost."""

    def check(self) -> None:
        """Raise if a part has failed."""

    def drain(self) -> None:
        """Wait until everything that is in the input log now has gone all the way through."""

    def stop(self) -> None: ...


def open_pipeline(
    url: str, config: PipelineConfig, folder: Path, on_alert: AlertHandler = lambda _alert: None
) -> RunningPipeline:
    """The pipeline, not started yet, in the way that the config chooses."""
    config = on_submitted_master(config)
    _keep_runner(config.chosen_runner, folder)
    if config.chosen_runner == "process":
        return ProcessPipeline(url, config, folder, on_alert)
    return Pipeline(url, config, folder, on_alert)


def _keep_runner(runner: str, folder: Path) -> None:
    """The two number their work differently: one cannot go on where the other stopped."""
    file = folder / "runner"
    begun = file.read_text().strip() if file.exists() else runner
    if begun != runner:
        raise InvalidValue(
            f"runner = {runner!r}, but what is in {folder} was begun with runner = {begun!r}: keep that, or "
            "choose another folder and other logs"
        )
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(runner + "\n")
