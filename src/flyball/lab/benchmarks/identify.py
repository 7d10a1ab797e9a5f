"""Identification of a long recording beside a bare least-squares call on the same regressors.

Ours finds alignment and delay among 12 lags, looks for the linear range, and computes covariance, confidence
intervals, R² one step ahead and in a free run, and the whiteness of the residuals. The bare call does none of that
and is handed its regressors ready made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
from scipy.signal import lfilter

from flyball.control.identification.identify import identify
from flyball.lab.bench import BenchContext, Row

_SAMPLES = 1_000_000


def run(context: BenchContext) -> Iterator[Row]:
    random = np.random.default_rng(context.seed)
    u = np.repeat(random.integers(1, 23, _SAMPLES // 10), 10).astype(float)
    # the plant of the prefetch paper, noise in the model's equation: y(k+1) = 0.26·y(k) + 59.73·u(k) + w(k)
    y = np.asarray(
        lfilter([0.0, 59.73], [1.0, -0.26], u) + lfilter([1.0], [1.0, -0.26], random.normal(0, 50, u.size))
    )
    regressors = np.column_stack([y[:-1], u[:-1], np.ones(u.size - 1)])
    target = y[1:]
    ours, bare = [], []
    for _ in range(5 if context.quick else 15):
        start = time.perf_counter()
        solution = np.linalg.lstsq(regressors, target, rcond=None)[0]
        middle = time.perf_counter()
        fit = identify(u, y)
        bare.append(middle - start)
        ours.append(time.perf_counter() - middle)
    found = (*fit.model.a, *fit.model.b, fit.model.offset)
    context.note(f"  ours {found}, bare {tuple(map(float, solution))}")
    yield context.row(
        "1M samples",
        1e3 * median(ours),
        "ms",
        peer=1e3 * median(bare),
        peer_name="numpy.linalg.lstsq",
        goal=3.0,
    )
