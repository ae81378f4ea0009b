"""What happened: the timeline of a play, and how to read it."""

from seer.timeline.analysis import (
    Breakdown,
    RankAnalysis,
    analyse_rank,
    breakdown_of,
    busiest_rank,
    step_of,
)
from seer.timeline.memory import peak_memory, peak_memory_all
from seer.timeline.timeline import Timeline

__all__ = [
    "Breakdown",
    "RankAnalysis",
    "Timeline",
    "analyse_rank",
    "breakdown_of",
    "busiest_rank",
    "peak_memory",
    "peak_memory_all",
    "step_of",
]
