"""Nodes that a command adds and removes: a script around docker compose, kubectl, a cloud's tool.

`{node}` and `{cluster}` in the words of the command are replaced; both names are also in its environment, as
FLYBALL_NODE and FLYBALL_CLUSTER. It ends in time, or it is killed with all that it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from flyball.brokers.url import BrokerUrl
from flyball.cluster.config import NODE_SCHEMES, CommandNodes
from flyball.cluster.provisioners import ProvisioningFailed
from flyball.errors import InvalidValue

_SHOWN = 1000
"""Characters of its output in an error."""
_READ = 65_536


class CommandProvisioner:
    """See `Provisioner`."""

    def __init__(self, nodes: CommandNodes, cluster: str) -> None:
        self._nodes, self._cluster = nodes, cluster

    async def add(self, node: str) -> str:
        output = await self._run(self._nodes.add, node)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        try:
            scheme = BrokerUrl.parse(last).scheme
        except InvalidValue:
            scheme = ""
        if scheme not in NODE_SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in NODE_SCHEMES)
            raise ProvisioningFailed(
                f"the command that adds {node} must print the URL of the node ({known}) as its last line, "
                f"got {last[-_SHOWN:]!r}"
            )
        return last

    async def remove(self, node: str) -> None:
        await self._run(self._nodes.remove, node)

    async def _run(self, command: Sequence[str], node: str) -> str:
        words = [word.replace("{node}", node).replace("{cluster}", self._cluster) for word in command]
        environment = {**os.environ, "FLYBALL_NODE": node, "FLYBALL_CLUSTER": self._cluster}
        # Files, not pipes: what it starts may keep them open, and write as much as it likes.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                child = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProvisioningFailed(f"{words[0]!r} cannot be run for {node}: {error.strerror}") from None
            try:
                async with asyncio.timeout(self._nodes.timeout_s):
                    code = await child.wait()
            except TimeoutError:
                raise ProvisioningFailed(
                    f"{' '.join(words)!r} did not end in {self._nodes.timeout_s:g} s; it said: {_said(out, err)}"
                ) from None
            finally:
                if child.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
                    await child.wait()
            if code:
                raise ProvisioningFailed(
                    f"{' '.join(words)!r} ended with exit code {code}; it said: {_said(out, err)}"
                )
            return _tail(out, _READ)


def _said(out: IO[bytes], err: IO[bytes]) -> str:
    """The end of what it wrote for people, on one line."""
    return " ".join((_tail(err, _SHOWN).strip() or _tail(out, _SHOWN).strip() or "nothing").split())


def _tail(file: IO[bytes], length: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - length))
    return file.read().decode(errors="replace")
