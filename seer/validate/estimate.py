"""One factor from a few measured steps of a system: what is known of systems weighs in.

Of run i of a system, with f_i the factor at which its forecast is its measurement and s_i the share
by which its time moves with the factor,

    log f_i = common + architecture + error_i / s_i.

`common` is the pace of the system; `architecture` what dense models, or mixtures of experts, have
of their own in it; the error is the run's own. All three are normal around 0. An error has one of
two widths: that of a run which the pace explains, or, with a stated chance, that of a run with
something else wrong (another release, a schedule not read as it was, a busy network), as Tukey's
contaminated normal (1960, "A survey of sampling from contaminated distributions"; Box and Tiao
1968, "A Bayesian approach to some outlier problems", Biometrika 55). The factor is the best guess
given the runs (Robinson 1991, "That BLUP is a good thing", section 2), averaged over which of them
are such runs. So a run that hardly depends on its matrix kernels says little, one of three that is
off moves little, and steps of mixtures of experts say less about a dense model than its own.

A single run is taken as it is for its own architecture: nothing tells whether it is such a run,
and most often the same plan is forecast on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.clocks import Factor
from seer.interval import PUBLISHED, Spreads

Floats = NDArray[np.float64]

LEAST_SENSITIVITY = 1e-3
"""Runs whose time moves less with the factor say nothing about it."""


@dataclass(frozen=True)
class OwnRun:
    """What one measured run says about the factor of its system.

    Attributes
    ----------
    log_factor : float
        log of the factor with which its forecast is the measurement.
    sensitivity : float
        log(time) over log(factor), from the forecast without a factor to that one.
    experts : bool
        Whether it is a mixture of experts.
    """

    log_factor: float
    sensitivity: float
    experts: bool


@dataclass(frozen=True)
class _Cases:
    """The posterior of the factors in each case of which runs are such.

    Attributes
    ----------
    log_likelihood : float64[cases]
        Of the runs and the case together.
    inverse : float64[cases, n, n]
        Of the covariance of the runs' log factors.
    """

    log_likelihood: Floats
    inverse: Floats


def combine(
    runs: Sequence[OwnRun], *, experts: bool, source: str, spreads: Spreads = PUBLISHED
) -> Factor:
    """The factor for dense models, or for mixtures of experts, of a system with these runs.

    Its spread is the standard deviation of what the runs leave open of log(factor).
    """
    cases = _cases(runs, spreads)
    weight = np.exp(cases.log_likelihood - np.logaddexp.reduce(cases.log_likelihood))
    logs = np.array([run.log_factor for run in runs])
    alike = np.array([run.experts == experts for run in runs])
    shared = spreads.common**2 + np.where(alike, spreads.architecture**2, 0.0)
    gain = np.einsum("i,kij->kj", shared, cases.inverse)
    mean = gain @ logs
    left = spreads.common**2 + spreads.architecture**2 - gain @ shared
    log_factor = float(weight @ mean)
    if len(runs) == 1:
        log_factor = float(logs[0] * shared[0] / (spreads.common**2 + spreads.architecture**2))
    variance = float(weight @ (left + (mean - log_factor) ** 2))
    return Factor(math.exp(log_factor), math.sqrt(variance), source, runs=len(runs))


def log_likelihood(runs: Sequence[OwnRun], spreads: Spreads) -> float:
    """log of the density of the times of these runs of one system."""
    scale = sum(math.log(max(run.sensitivity, LEAST_SENSITIVITY)) for run in runs)
    return float(np.logaddexp.reduce(_cases(runs, spreads).log_likelihood)) - scale


def _cases(runs: Sequence[OwnRun], spreads: Spreads) -> _Cases:
    n = len(runs)
    experts = np.array([run.experts for run in runs])
    slope = np.maximum([run.sensitivity for run in runs], LEAST_SENSITIVITY)
    logs = np.array([run.log_factor for run in runs])
    such = np.array(list(itertools.product((False, True), repeat=n)))
    error = np.where(such, np.array(spreads.other)[experts.astype(int)], spreads.run) / slope
    alike = experts[:, None] == experts[None, :]
    between = spreads.common**2 + np.where(alike, spreads.architecture**2, 0.0)
    covariance = between[None] + np.square(error)[:, :, None] * np.eye(n)[None]
    inverse = np.asarray(np.linalg.inv(covariance), np.float64)
    chance = np.where(such, math.log(spreads.other_share), math.log(1.0 - spreads.other_share))
    square = np.einsum("i,kij,j->k", logs, inverse, logs)
    volume = np.linalg.slogdet(covariance)[1] + n * math.log(2.0 * math.pi)
    return _Cases(np.asarray(chance.sum(axis=1) - 0.5 * (square + volume), np.float64), inverse)
