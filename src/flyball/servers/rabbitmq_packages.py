"""A newer RabbitMQ than the system's: Debian's packages, fetched once, and unpacked in a cache folder.

Nothing is installed. Its Erlang needs a newer C library than the system may have, so it runs in a mount namespace
of its own, in which /usr is the unpacked one; everything else (files, processes, network) is the system's. That
needs root or user namespaces; the download needs apt. Packages come from the mirror of apt's own sources, with
apt's settings, and are verified by Debian's keys. If several processes need them at the same time, one fetches and
the others wait; a folder appears in the cache only when it is complete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from flyball.errors import InvalidValue
from flyball.file_lock import lock_file
from flyball.paths import cache_folder
from flyball.servers import ServerMissing

SUITES = {4: "forky"}
"""Major version → the Debian suite that has it."""
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
_SERVERS = Path("lib/rabbitmq/lib")
# The server, and the programs that its scripts call: here no package counts as installed.
_PACKAGES = ("rabbitmq-server", "dash", "coreutils", "sed", "grep", "mawk", "findutils", "procps", "util-linux")
_LINKS = {"bin/sh": "dash", "bin/awk": "mawk"}  # else made by scripts of the packages, which are not run
_UNUSED = ("share/doc", "share/man", "share/locale", "share/info")
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_FETCH_TIMEOUT_S = 900.0
_IN_NAMESPACE = 'mount --bind "$0" /usr && exec "$@"'

Progress = Callable[[str], None]


def installed_version() -> str | None:
    """Return the version of the system's own RabbitMQ; None if there is none, or it is not known."""
    return _version(Path("/usr"))


def fetched_version(major: int) -> str | None:
    """Return the version in the cache, None if there is none."""
    try:
        return _version(_unpacked(major))
    except OSError:
        return None


def namespace_command(major: int, progress: Progress = lambda _: None) -> list[str]:
    """Return the start of a command line that runs the rest with RabbitMQ `major`; fetch it if necessary.

    It is empty if the system's own RabbitMQ has that version.
    """
    if (installed_version() or "").partition(".")[0] == str(major):
        return []
    return _with_usr(_usr(major, progress))


def _usr(major: int, progress: Progress) -> Path:
    """Return the folder that takes the place of /usr; fetch it if necessary."""
    if major not in SUITES:
        raise InvalidValue(f"the version of RabbitMQ must be {' or '.join(map(str, SUITES))}, got {major}")
    _check_namespace(major)
    try:
        usr = _unpacked(major)
        if usr.exists():
            return usr
        with lock_file(usr.with_suffix(".lock")):
            if not usr.exists():  # else another process fetched it while this one waited
                _fetch(usr, SUITES[major], progress)
    except ServerMissing:
        raise
    except OSError as error:
        raise ServerMissing(
            f"cannot store RabbitMQ {major} in the cache ({error}); set FLYBALL_CACHE to a writable folder"
        ) from None
    return usr


def _unpacked(major: int) -> Path:
    return cache_folder("rabbitmq") / str(major)


def _version(usr: Path) -> str | None:
    # The name of the folder has it; asking RabbitMQ starts an Erlang machine and takes a second.
    folders = sorted((usr / _SERVERS).glob("rabbitmq_server-*"))
    return folders[-1].name.removeprefix("rabbitmq_server-") if folders else None


def _with_usr(usr: Path) -> list[str]:
    # Each program becomes the next (exec), so that the pid and the signals are the server's.
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *user, "--", "sh", "-c", _IN_NAMESPACE, str(usr)]


def _check_namespace(major: int) -> None:
    if shutil.which("unshare") is None:
        raise ServerMissing(f"RabbitMQ {major} needs Linux and the program unshare, or must be installed")
    answer = subprocess.run([*_with_usr(Path("/usr")), "true"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise ServerMissing(
            f"RabbitMQ {major} runs in a mount namespace of its own, which is refused here: "
            f"{answer.stderr.strip()}"
        )


def _fetch(usr: Path, suite: str, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir=usr.parent, prefix="fetching-") as scratch:
        apt = _apt(Path(scratch), suite)
        progress(f"fetching the list of packages of Debian {suite} …")
        _run([*apt, "update", "--error-on=any"])
        progress("fetching RabbitMQ and what it needs (about 100 MB) …")
        _run([*apt, "install", "--download-only", "--yes", *_PACKAGES])
        root = Path(scratch) / "root"
        archives = sorted(Path(scratch).glob("cache/archives/*.deb"))
        progress(f"unpacking {len(archives)} packages …")
        for archive in archives:
            _run(["dpkg-deb", "--extract", str(archive), str(root)])
        unpacked = root / "usr"
        for name, program in _LINKS.items():
            if not (unpacked / name).is_symlink():
                (unpacked / name).symlink_to(program)
        for name in _UNUSED:
            shutil.rmtree(unpacked / name, ignore_errors=True)
        if _version(unpacked) is None:
            raise ServerMissing(f"the packages of Debian {suite} contain no RabbitMQ server")
        unpacked.rename(usr)


def _apt(scratch: Path, suite: str) -> list[str]:
    """Return apt-get with one source, and with lists, packages and status of its own."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ServerMissing(f"{program} is needed to fetch RabbitMQ; it is part of Debian and Ubuntu")
    (scratch / "sources.list").write_text(f"deb [signed-by={_KEYS}] {_mirror()} {suite} main\n")
    (scratch / "status").touch()
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True)
    options = {
        "Dir::State": scratch / "state",
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::SourceList": scratch / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Sandbox::User": "root",  # another user could not write here
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "30",
    }
    return ["apt-get", "--quiet", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _mirror() -> str:
    """Return the address of the mirror that this system uses."""
    form = "$(REPO_URI) $(RELEASE)"
    for line in _run(["apt-get", "indextargets", "--format", form, "Identifier: Packages"]).splitlines():
        uri, release = line.split()
        if "-" not in release:  # not the updates or security fixes of a suite
            return uri
    raise ServerMissing("apt has no source of packages here")


def _run(command: Sequence[str]) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ServerMissing(f"{command[0]} did not end within {_FETCH_TIMEOUT_S:.0f} s") from None
    if answer.returncode:
        lines = (answer.stderr or answer.stdout).strip().splitlines() or ["no output"]
        raise ServerMissing(f"{command[0]} could not fetch RabbitMQ (exit code {answer.returncode}): {lines[0]}")
    return answer.stdout
