"""How far off is a calibration: its prices against measurements."""

from seer.score.scores import (
    NORMAL_90,
    CalibrationScore,
    KindScore,
    cluster_for,
    score_calibration,
)

__all__ = ["NORMAL_90", "CalibrationScore", "KindScore", "cluster_for", "score_calibration"]
