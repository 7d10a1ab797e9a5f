"""The events of the demo: DNS queries and host measurements, seeded, slightly out of order, a few malformed.

Event number i depends on the seed and on i alone, so that a run that was killed continues with the very events
it would have had, and a test can compute what a run must find.

* Event time advances by 1 / `PER_SECOND` an event; each event then lies up to `DISORDER_S` in the past.
* Half of the events are DNS queries, half host measurements with a load average.
* In some 10 s windows the hosts of 92.126.11.0/24 are busy and exceed a load of 2.
* One in two hundred is malformed: cut off, not JSON at all, a field missing, or text where a number belongs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

COLUMNS = "id bigint, kind string, ip string, name string null, load double null, event_time double"
START_S = 1_700_000_000.0
PER_SECOND = 100
DISORDER_S = 3.0
WINDOW_S = 10

_BUSY_ONE_IN = 3
_MALFORMED_ONE_IN = 200
_NAMES = ("a.root", "b.root", "www.example", "mail.example", "cdn.example")


def event(seed: int, number: int) -> bytes:
    """The body of event `number`."""
    rng = random.Random(f"{seed}/{number}")
    event_time = round(START_S + number / PER_SECOND - rng.uniform(0.0, DISORDER_S), 3)
    ip = f"92.126.{rng.randint(8, 15)}.{rng.randint(1, 254)}"
    fields: dict[str, object] = {"id": number, "kind": "dns", "ip": ip}
    if rng.random() < 0.5:
        fields["name"] = rng.choice(_NAMES)
    else:
        fields["kind"] = "performance"
        fields["load"] = round(_load(seed, ip, event_time, rng), 3)
    fields["event_time"] = event_time
    if rng.randrange(_MALFORMED_ONE_IN) == 0:
        return _damaged(fields, rng)
    return json.dumps(fields).encode()


def events(seed: int, first: int = 0, count: int | None = None) -> Iterator[bytes]:
    """Events from number `first` on; for ever, or `count` of them."""
    number = first
    while count is None or number < first + count:
        yield event(seed, number)
        number += 1


def _load(seed: int, ip: str, event_time: float, rng: random.Random) -> float:
    window = int(event_time // WINDOW_S)
    busy = random.Random(f"{seed}/window/{window}").randrange(_BUSY_ONE_IN) == 0
    if ip.startswith("92.126.11.") and busy:
        return rng.uniform(1.0, 4.0)
    # Elsewhere a high load is normal and no reason for an alert.
    return rng.uniform(0.0, 1.9) if ip.startswith("92.126.11.") else rng.uniform(0.0, 5.0)


def _damaged(fields: dict[str, object], rng: random.Random) -> bytes:
    damage = rng.randrange(4)
    if damage == 0:
        return json.dumps(fields).encode()[:-7]
    if damage == 1:
        return b"\xff\xfe not an event"
    if damage == 2:
        del fields["ip"]
    else:
        fields["event_time"] = "yesterday"
    return json.dumps(fields).encode()
