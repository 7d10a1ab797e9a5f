"""No wrong input ends in a traceback, in a result or in a file: each is one sentence and exit code 2."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from flyball.brokers import Message, connect
from flyball.cli import main
from flyball.consumer.consumer import Consumer
from flyball.lab import bench
from flyball.store import Outbox, SqliteDatabase
from tests.cli.wrong_inputs import CALLS, CONFIGS, Case, cases_of, commands, config_cases, json_cases, to_toml


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with one file of every kind. Whatever begins to work fails: no mistake may get so far."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the work began")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLYBALL_STATE", str(tmp_path / "folder"))
    for owner, work in (
        (subprocess.Popen, "__init__"),
        (Consumer, "run"),
        (Consumer, "__aenter__"),
        (bench, "run"),
    ):
        monkeypatch.setattr(owner, work, refuse)
    Path("folder").mkdir()
    Path("folder.svg").mkdir()
    Path("binary.bin").write_bytes(bytes(range(256)) * 8)
    Path("empty.txt").touch()
    Path("empty.toml").touch()
    Path("recording.csv").write_text("prefetch,rate\n" + "".join(f"{u % 7},{u * 13 % 17}\n" for u in range(60)))
    Path("cases.json").write_text("[]")
    Path("loops.toml").write_text(to_toml(CONFIGS["loops"][1]))
    Path("run.toml").write_text(to_toml(CONFIGS["run"][1]))
    asyncio.run(_fill("sqlite:///good.db"))
    with SqliteDatabase("groups.db") as database:
        Outbox(database)
    with SqliteDatabase("good.outbox.db") as database:
        Outbox(database)
    yield tmp_path
    assert asyncio.run(_depth("sqlite:///good.db")) == 3, "messages were lost"


async def _fill(url: str) -> None:
    async with await connect(url) as broker:
        await broker.declare("orders", "queue")
        sender = await broker.sender("orders")
        await sender.send_batch([Message(b"order %d" % number) for number in range(3)])
        await sender.close()


async def _depth(url: str) -> int:
    async with await connect(url, create=False) as broker:
        return await broker.depth("orders")


def _contents(folder: Path) -> dict[str, bytes | None]:
    """Names and contents of all files; a database may be written to when it is opened, and is counted instead."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() or ".db" in path.name else path.read_bytes()
        for path in folder.rglob("*")
        if not path.name.endswith(("-wal", "-shm"))
    }


def _mistakes(cases: list[Case], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is wrong with the answers to wrong inputs."""
    found = []
    for case in cases:
        for name, text in case.files.items():
            (folder / name).write_text(text)
        before = _contents(folder)
        with pytest.raises(SystemExit) as end:
            main(case.words)
        out, err = capsys.readouterr()
        after = _contents(folder)
        if end.value.code != 2:
            found.append(f"{case}: exit code {end.value.code}: {err or out}")
        elif out or len(err.splitlines()) != 1 or not err.startswith("flyball: ") or "Traceback" in err:
            found.append(f"{case}: not one sentence: {out}{err}")
        if after != before:
            changed = {name for name in {*before, *after} if before.get(name, 0) != after.get(name, 0)}
            found.append(f"{case}: changed {sorted(changed)}")
            for name in set(after) - set(before):
                (folder / name).unlink(missing_ok=True) if not (folder / name).is_dir() else None
        for name in case.files:
            (folder / name).unlink()
    return found


def test_every_command_has_a_correct_call() -> None:
    assert set(CALLS) == set(commands())


@pytest.mark.parametrize("name", CALLS)
def test_wrong_inputs_of_a_command(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _mistakes(list(cases_of(name, commands()[name])), folder, capsys) == []


@pytest.mark.parametrize("kind", CONFIGS)
def test_wrong_configs(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [case for case in config_cases() if case.words[-1].removesuffix(".toml").split("-")[0] == kind]
    cases += [case for case in config_cases() if case.words[-1].endswith(f"-{kind}.toml")]
    assert _mistakes(cases, folder, capsys) == []


def test_wrong_cases_of_an_assignment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _mistakes(list(json_cases()), folder, capsys) == []


def test_there_are_many() -> None:
    of_commands = sum(len(list(cases_of(name, command))) for name, command in commands().items())
    assert of_commands >= 500
    assert len(list(config_cases())) >= 300
