"""Seer: an operator-level forecaster of LLM training time."""

__version__ = "0.1.0"
