"""Does reality agree: forecasts against published, measured runs, and factors from runs."""

from seer.validate.estimate import OwnRun, combine
from seer.validate.factors import LimitedRun, Response, power_limit, response
from seer.validate.from_run import (
    MeasuredRun,
    RunFactor,
    factor_from_runs,
    factors_of,
    with_factor,
)
from seer.validate.own_steps import own_steps
from seer.validate.runs import LEVELS, PreparedRuns, ValidationReport, prepare_runs, validate
from seer.validate.scores import Score, ScoredRun, score, spearman

__all__ = [
    "LEVELS",
    "LimitedRun",
    "MeasuredRun",
    "OwnRun",
    "PreparedRuns",
    "Response",
    "RunFactor",
    "Score",
    "ScoredRun",
    "ValidationReport",
    "combine",
    "factor_from_runs",
    "factors_of",
    "own_steps",
    "power_limit",
    "prepare_runs",
    "response",
    "score",
    "spearman",
    "validate",
    "with_factor",
]
