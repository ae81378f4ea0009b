"""Measurements to curves: fits, their choice, and their cross-validated error."""

from seer.fit.calibrate import fit_calibration, fit_measurements
from seer.fit.describe import FORMS
from seer.fit.onto import onto
from seer.fit.too_few import too_few

__all__ = ["FORMS", "fit_calibration", "fit_measurements", "onto", "too_few"]
