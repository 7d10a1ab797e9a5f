"""Handler laws have the mean 1, and the plant makes of them what it should."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.control.controllers.fixed import Fixed
from flyball.errors import InvalidValue
from flyball.twin.consumer import ConsumerPlant
from flyball.twin.consumer_loop import run_consumer, run_consumers
from flyball.twin.handler_laws import Bimodal, Constant, Gamma, HandlerLaw, LogNormal, Pareto
from flyball.twin.workload import Poisson


@pytest.mark.parametrize(
    "law", [Constant(), Gamma(0.2), Gamma(1.0), LogNormal(1.0), Bimodal(0.2, 50.0), Pareto(3.0)], ids=str
)
def test_the_mean_is_one(law: HandlerLaw) -> None:
    drawn = law.draw(np.random.default_rng(1), 200_000)
    assert drawn.mean() == pytest.approx(1.0, rel=0.02)
    assert drawn.min() > 0.0


def test_mistakes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="sigma of a log-normal law must be a number > 0, got 0"):
        LogNormal(0.0)
    with pytest.raises(InvalidValue, match="alpha must be > 1, got 1"):
        Pareto(1.0)
    with pytest.raises(InvalidValue, match=r"failing must be >= 0 and < 1, got 1.0"):
        ConsumerPlant(failing=1.0)
    with pytest.raises(InvalidValue, match="an outage of ConsumerPlant must end after it began"):
        ConsumerPlant(outages=((5.0, 5.0),))


def test_messages_that_fail_occupy_no_slot_while_they_pause() -> None:
    plant = ConsumerPlant(round_trip_s=0.0, handling_s=0.01, client_s=0.0, handlers=64)
    poisoned = ConsumerPlant(round_trip_s=0.0, handling_s=0.01, client_s=0.0, handlers=64, failing=0.05)
    good, bad = (
        run_consumer(one, "rate=1e6", Fixed(8.0), samples=20, window=8.0).rate for one in (plant, poisoned)
    )
    assert bad[5:].mean() == pytest.approx(
        good[5:].mean() / 1.15, rel=0.03
    )  # three more attempts of one in twenty


def test_an_outage_stops_everything_and_ends() -> None:
    plant = ConsumerPlant(outages=((5.0, 8.0),))
    rate = run_consumer(plant, "rate=1e6", Fixed(8.0), samples=12, window=8.0).rate
    assert rate[6:8].sum() == 0.0
    assert rate[9:].mean() == pytest.approx(rate[:4].mean(), rel=0.1)


@pytest.mark.parametrize("shares_handlers", [False, True])
def test_consumers_of_one_queue_share_its_messages(shares_handlers: bool) -> None:
    plant = ConsumerPlant(handling_s=0.01, handlers=2, publishers=Poisson(1000.0))
    runs = run_consumers(
        plant, "rate=1e6", Fixed(8.0), count=2, window=8.0, shares_handlers=shares_handlers, samples=20
    )
    total = sum(float(run.rate[5:].mean()) for run in runs)
    assert total == pytest.approx(200.0 if shares_handlers else 400.0, rel=0.05)
    starved = run_consumers(
        ConsumerPlant(publishers=Poisson(100.0)), "rate=1e6", Fixed(8.0), count=2, window=8.0, samples=20
    )
    assert min(float(run.rate.mean()) for run in starved) > 30.0  # neither gets all
