"""Kafka's jars and a Java to run them: fetched once by coordinates, then stored in a cache folder.

Maven fetches them if it is installed, otherwise the Ivy of PySpark, so that pip and a Java are enough. Both use
the repository of their own settings. If several processes need them at the same time, one fetches and the others
wait; a folder appears in the cache only when it is complete.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

from flyball.errors import install_command
from flyball.file_lock import lock_file
from flyball.java import JavaMissing, java_home
from flyball.paths import cache_folder
from flyball.servers import ServerMissing

KAFKA_VERSION = "4.3.1"
_COORDINATES = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
_MAIN_JAR = f"kafka_2.13-{KAFKA_VERSION}.jar"
_FETCH_TIMEOUT_S = 600.0


def find_java() -> Path:
    """Find the program `java` to run Kafka with: the same as for Spark."""
    try:
        return java_home(needed_by="Kafka") / "bin" / "java"
    except JavaMissing as error:
        raise ServerMissing(str(error)) from None


def kafka_jars() -> Path:
    """Return the folder with all jars of the Kafka broker; fetch them if necessary."""
    try:
        folder = cache_folder("kafka")
        jars = folder / KAFKA_VERSION
        if (jars / _MAIN_JAR).exists():
            return jars
        with lock_file(folder / f"{KAFKA_VERSION}.lock"):
            if not (jars / _MAIN_JAR).exists():  # else another process fetched them while this one waited
                _fetch(jars)
    except ServerMissing:
        raise
    except OSError as error:
        raise ServerMissing(
            f"cannot store Kafka's jars in the cache ({error}); set FLYBALL_CACHE to a writable folder"
        ) from None
    return jars


def _fetch(jars: Path) -> None:
    """Fetch into a temporary folder and rename it, so that an incomplete folder is never seen."""
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="fetching-") as scratch:
        fetched = Path(scratch) / "jars"
        fetched.mkdir()
        command = _fetch_command(Path(scratch), fetched)
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ServerMissing(
                f"{command[0]} did not fetch Kafka's jars within {_FETCH_TIMEOUT_S:.0f} s; check that its "
                "repository can be reached"
            ) from None
        if answer.returncode != 0 or not (fetched / _MAIN_JAR).exists():
            raise ServerMissing(
                f"{command[0]} could not fetch Kafka's jars (exit code {answer.returncode}): "
                f"{_first_error(answer.stdout + answer.stderr)}"
            )
        if jars.exists():  # incomplete: rename needs the name to be free
            shutil.rmtree(jars)
        fetched.rename(jars)


def _first_error(output: str) -> str:
    lines = [
        line for line in output.splitlines() if "ERROR" in line or "UNRESOLVED" in line
    ] or output.splitlines()
    return lines[0].strip() if lines else "no output"


def _fetch_command(scratch: Path, into: Path) -> Sequence[str]:
    maven = shutil.which("mvn")
    if maven:
        return _maven_command(maven, scratch, into)
    return _ivy_command(_ivy_jar(), scratch, into)


def _maven_command(maven: str, scratch: Path, into: Path) -> Sequence[str]:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _COORDINATES
    )
    pom = scratch / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>flyball</groupId><artifactId>kafka-jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    return [maven, "-q", "-B", "-f", str(pom), *goal]


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder).glob("jars/ivy-*.jar")):
            return jar
    raise ServerMissing(
        "cannot fetch Kafka's jars: install Maven, or PySpark (which contains Ivy): " + install_command("spark")
    )


def _ivy_command(ivy: Path, scratch: Path, into: Path) -> Sequence[str]:
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->master,runtime"/>'
        for group, name, version in _COORDINATES
    )
    module, settings = scratch / "ivy.xml", scratch / "ivysettings.xml"
    module.write_text(
        dedent(f"""\
        <ivy-module version="2.0"><info organisation="flyball" module="kafka-jars"/>
        <configurations><conf name="default"/></configurations>
        <dependencies>{dependencies}</dependencies></ivy-module>""")
    )
    settings.write_text(
        dedent("""\
        <ivysettings><settings defaultResolver="maven"/>
        <resolvers><ibiblio name="maven" m2compatible="true" usepoms="true"/></resolvers></ivysettings>""")
    )
    options = ["-settings", str(settings), "-cache", str(scratch / "ivy-cache"), "-ivy", str(module)]
    retrieve = ["-retrieve", f"{into}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
    return [str(find_java()), "-jar", str(ivy), *options, "-confs", "default", *retrieve]
