"""flyball doctor: true versions, and for what is missing the command that adds it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest

from flyball.cli import doctor, main


def test_installed_packages_are_listed_with_versions() -> None:
    run = subprocess.run([sys.executable, "-m", "flyball", "doctor", "--json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    features = json.loads(run.stdout)["features"]
    found = {part["name"]: part["version"] for feature in features for part in feature["parts"]}
    for package in ("numpy", "pika", "confluent-kafka", "simpy", "typer"):
        assert found[package] == metadata.version(package)
    for feature in features:
        assert feature["ready"] == (feature["missing"] == []) == (feature["add"] is None)


def test_a_missing_feature_has_the_command_that_adds_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = metadata.version

    def without_pika(name: str) -> str:
        if name == "pika":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", without_pika)
    (rabbitmq,) = [feature for feature in doctor.examine() if feature.missing == ("pika",)]
    assert rabbitmq.add == "pip install 'flyball-control[rabbitmq]'"
    assert [feature.ready for feature in doctor.examine() if "Kafka (kafka://)" in feature.feature] == [True]
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "pika (missing)" in printed
    assert "pip install 'flyball-control[rabbitmq]'  # RabbitMQ queues and streams" in printed


@pytest.mark.parametrize(
    ("missing", "add"),
    [
        (set(), "pip install 'flyball-control[java]'"),
        ({"pyspark"}, "pip install 'flyball-control[spark,java]'"),
    ],
)
def test_a_missing_java_can_be_added_by_pip(monkeypatch: pytest.MonkeyPatch, missing: set[str], add: str) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in missing:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(doctor, "_java", lambda: doctor.Part("Java 17 or newer", None))
    (spark,) = [feature for feature in doctor.examine() if "Spark (flyball run" in feature.feature]
    assert not spark.ready
    assert spark.add == add
