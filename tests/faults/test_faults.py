"""Every fault at every adapter, while publishers, a synchronous one, a listener and a consumer work there.

Nothing accepted is lost, nothing is confirmed that is not stored, all go on by themselves, and the books balance
at any moment. `flyball bench brokers --only faults` does the same with hundreds of seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.testing.fault_runs import FACES, Face, run_fault
from flyball.testing.faults import Fault, FaultSite, FaultUnavailable

SEED = 1
SERVER: tuple[Fault, ...] = ("freeze", "kill", "restart", "cut", "stall", "slow", "clock")
CASES: dict[str, tuple[Fault, ...]] = {
    "memory": ("full", "clock"),
    "sqlite": ("full", "locked", "disk", "permission", "clock"),
    "rabbitmq_queue": (*SERVER, "full", "alarm", "permission"),
    "rabbitmq_stream": (*SERVER, "alarm"),
    "rabbitmq_4_queue": ("freeze", "kill", "full"),
    "rabbitmq_4_stream": ("freeze", "kill"),
    "kafka_broker": SERVER,
}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in CASES.items() for fault in faults])
def test_nothing_is_lost_and_all_go_on(
    request: pytest.FixtureRequest, name: str, fault: Fault, tmp_path: Path
) -> None:
    site: FaultSite = request.getfixturevalue(name)
    faces: tuple[Face, ...] = FACES
    if name.startswith("rabbitmq") and fault == "permission":
        # a consumer that may no longer read ends, with an error that says so
        faces = tuple(face for face in FACES if face != "consumer")
    try:
        report = run_fault(site, fault, seed=SEED, folder=tmp_path, faces=faces)
    except FaultUnavailable as reason:
        pytest.skip(str(reason))
    assert report.accepted > 0
    assert report.ok, str(report)
