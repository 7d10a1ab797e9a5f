"""The lines of a file: as they are, however they fall into the chunks that are read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.cli import bodies
from flyball.cli.bodies import Lines
from flyball.cli.load import Stop


def read_lines(path: Path, most: int) -> list[bytes]:
    async def main() -> list[bytes]:
        stop, lines, found = Stop(), Lines(str(path), None), []
        while batch := await lines.take(most, stop):
            assert len(batch) <= most
            found += batch
        lines.close()
        return found

    return asyncio.run(main())


@given(
    st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))), st.booleans()
)
def test_lines_across_chunks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], unfinished: bool
) -> None:
    file = tmp_path_factory.mktemp("lines") / "file"
    file.write_bytes(b"".join(line + b"\r\n" for line in lines) + b"end" * unfinished)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_CHUNK_BYTES", 4)
        assert read_lines(file, 3) == lines + [b"end"] * unfinished


def test_one_long_line_costs_no_more_than_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_CHUNK_BYTES", 256)

    def cpu_s(content: bytes, lines: int) -> float:
        file = tmp_path / "file"
        file.write_bytes(content)
        started_s = time.process_time()
        assert len(read_lines(file, 100)) == lines
        return time.process_time() - started_s

    short = cpu_s((b"x" * 255 + b"\n") * 8192, 8192)
    long = cpu_s(b"x" * (256 * 8192), 1)
    assert long < 5 * short, "the start of the line was copied with every chunk"
