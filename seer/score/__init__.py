"""How far off is a calibration: its prices against measurements."""

from seer.score.scores import (
    CalibrationScore,
    KindScore,
    cluster_for,
    score_calibration,
)

__all__ = ["CalibrationScore", "KindScore", "cluster_for", "score_calibration"]
