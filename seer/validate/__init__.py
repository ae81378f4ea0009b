"""Does reality agree: forecasts against published, measured runs, and factors from runs."""

from seer.validate.factors import Response, combine, response
from seer.validate.own_steps import own_steps
from seer.validate.runs import LEVELS, ValidationReport, validate
from seer.validate.scores import Score, ScoredRun, score, spearman

__all__ = [
    "LEVELS",
    "Response",
    "Score",
    "ScoredRun",
    "ValidationReport",
    "combine",
    "own_steps",
    "response",
    "score",
    "spearman",
    "validate",
]
