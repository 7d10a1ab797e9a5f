"""flyball identify --by: many series of a Parquet file in one job, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flyball.cli import main


def telemetry(path: Path) -> Path:
    """Two loops with a = 0.2 and 0.6 beside one whose actuator never moved, sample by sample."""
    rng = np.random.default_rng(3)
    rows = []
    state = [0.0, 0.0, 0.0]
    for k in range(80):
        for loop, a in enumerate((0.2, 0.6, 0.5)):
            u = 4.0 if loop == 2 else float(rng.integers(1, 30))
            state[loop] = a * state[loop] + 3.0 * u + rng.normal(0, 0.1)
            rows.append({"loop_id": f"L{loop}", "time": k, "command": u, "measurement": state[loop]})
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_model_for_each_loop(tmp_path: Path) -> None:
    file = telemetry(tmp_path / "t.parquet")
    command = [sys.executable, "-m", "flyball", "identify", str(file), "--by", "loop_id", "--json"]
    answer = subprocess.run(
        [*command, "--out", str(tmp_path / "models")], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert (document["series"], document["fitted"]) == (3, 2)
    assert document["problems"] == {"the input is constant": 1}
    first, second, third = document["models"]
    assert [first["a"], second["a"]] == [pytest.approx(0.2, abs=0.01), pytest.approx(0.6, abs=0.01)]
    assert [first["b"], second["b"]] == [pytest.approx(3.0, abs=0.05)] * 2
    assert (first["delay"], first["align"], third["a"]) == (0, "same", None)
    assert pq.read_table(tmp_path / "models").num_rows == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--by", "loop"), "there is no column 'loop' for --by; there are: loop_id, time, command, measurement"),
        (("--by", "loop_id", "--test", "t.parquet"), "--by excludes --test and --plot"),
        (("--by", "loop_id", "--time", "when"), "there is no column 'when' for --time"),
        (("--out", "models"), "--out needs --by COL"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], complaint: str
) -> None:
    file = telemetry(tmp_path / "t.parquet")
    with pytest.raises(SystemExit) as end:
        main(["identify", str(file), *options])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
