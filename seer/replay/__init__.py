"""Recorded runs played again: as they were, scaled, and on hardware where they never ran."""

from seer.replay.replay import PARTS, Replay, Step, replay

__all__ = ["PARTS", "Replay", "Step", "replay"]
