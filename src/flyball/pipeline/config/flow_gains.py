"""The file between `flyball tune` and a pipeline: gains of flow control, and the model they were checked on."""

from __future__ import annotations

import tomllib
from pathlib import Path

from flyball.control.gains import Gains
from flyball.control.models import Arx
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue


def write_gains(path: Path, gains: Gains, model: Arx, r2: float) -> None:
    lines = [
        "# Written by flyball tune. Name this file in the pipeline's config: lanes.flow",
        "[controller]",
        f"kp = {gains.kp!r}",
        f"ki = {gains.ki!r}",
        "",
        "[model]",
        f"a = {model.a[0]!r}",
        f"b = {model.b[0]!r}",
        f"delay = {model.delay}",
        f"r2 = {r2!r}",
    ]
    path.write_text("\n".join(lines) + "\n")


def read_gains(path: Path) -> dict[str, float]:
    """kp and ki, once it is clear that they hold the model beside them."""
    try:
        found = tomllib.loads(path.read_text())
        gains = Gains(float(found["controller"]["kp"]), float(found["controller"]["ki"]))
        model = Arx(
            (float(found["model"]["a"]),), (float(found["model"]["b"]),), delay=int(found["model"]["delay"])
        )
    except OSError as error:
        raise InvalidValue(f"flow: the file {str(path)!r} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidValue(
            f"flow: {str(path)!r} is not what `flyball tune` writes ({error!r}); let it write the file again"
        ) from None
    verdict = verify(model, gains)
    if not verdict.accepted:
        raise InvalidValue(f"flow: the gains in {str(path)!r} are refused: {verdict.reason}")
    return {"kp": gains.kp, "ki": gains.ki}
