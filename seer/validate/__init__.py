"""Does reality agree: forecasts against published, measured runs, and factors from runs."""

from seer.validate.factors import LimitedRun, Response, combine, power_limit, response
from seer.validate.from_run import MeasuredRun, RunFactor, factor_from_runs, with_factor
from seer.validate.own_steps import own_steps
from seer.validate.runs import LEVELS, PreparedRuns, ValidationReport, prepare_runs, validate
from seer.validate.scores import Score, ScoredRun, score, spearman

__all__ = [
    "LEVELS",
    "LimitedRun",
    "MeasuredRun",
    "PreparedRuns",
    "Response",
    "RunFactor",
    "Score",
    "ScoredRun",
    "ValidationReport",
    "combine",
    "factor_from_runs",
    "own_steps",
    "power_limit",
    "prepare_runs",
    "response",
    "score",
    "spearman",
    "validate",
    "with_factor",
]
