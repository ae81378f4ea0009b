"""Measurements to curves: fits, their choice, and their cross-validated error."""

from seer.fit.calibrate import FORMS, fit_calibration, fit_measurements
from seer.fit.files import fit_files

__all__ = ["FORMS", "fit_calibration", "fit_files", "fit_measurements"]
