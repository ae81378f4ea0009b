"""Collectives of several ranks as one operator each, and one clock for all ranks.

All ranks' kernels of one collective end together (within 1 to 7 us over 8 V100). That sets the
clocks of the ranks, which may be those of different hosts; and the shortest of the kernels, that of
the rank that came last, is what the collective takes. The rest of each is waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorKind
from seer.readers.kineto.columns import NONE, RankTrace
from seer.readers.kineto.communication import Communication

Floats = NDArray[np.float64]

TOGETHER_US = 1000.0
TOGETHER_SHARE = 0.1
"""Kernels of one collective that end further apart than the first, and than this share of the
longest of them, after the clocks are set, are not taken for one."""

LARGEST_SHIFT = 16
"""Recordings may begin this many collectives apart."""

LEAST_OVERLAP = 0.75
"""... and the shorter recording has this share of its collectives in common with the longer."""

TRUSTED = 0.5
"""Share of the pairs that must hold together for their clocks to be believed."""

ROUNDS = 20
"""Of setting the clocks; each halves what is left at least."""


@dataclass(frozen=True)
class Joined:
    """Which kernels are one collective.

    Attributes
    ----------
    member : list of int64[*, 2]
        Per collective the (rank index, row of `gpu`) of each member, at least two.
    offset_us : float64[R]
        What each rank's clock runs ahead; subtract it from its times.
    alone : mapping of why to kernels
        Communication that was not joined.
    origin_us : float
        Absolute time of 0 of all ranks.
    """

    member: list[NDArray[np.int64]]
    offset_us: Floats
    alone: Mapping[str, int]
    origin_us: float


@dataclass
class _Sequence:
    """Kernels of one group and kind on one rank, in order."""

    rows: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)


def join(traces: Sequence[RankTrace], found: Sequence[Communication]) -> Joined:
    """Join the communication of all ranks and set their clocks."""
    origin = min(t.origin_us for t in traces)
    shift = np.array([t.origin_us - origin for t in traces])
    ends = [t.gpu.end_us + s for t, s in zip(traces, shift, strict=True)]
    starts = [t.gpu.start_us + s for t, s in zip(traces, shift, strict=True)]
    alone: Counter[str] = Counter()
    pairs = _pair(traces, found, ends, alone)
    as_recorded = np.zeros(len(traces))
    kept, offset = max(
        (
            ([pair for pair in pairs if _together(pair, starts, ends, clocks)], clocks)
            for clocks in (_clocks(pairs, ends, len(traces)), as_recorded)
        ),
        key=lambda answer: len(answer[0]),
    )
    if len(kept) < TRUSTED * len(pairs):
        # pairs that mostly do not hold say nothing about clocks: groups were not told apart
        kept = [pair for pair in pairs if _together(pair, starts, ends, as_recorded)]
        offset = as_recorded
    parted = sum(len(pair) for pair in pairs) - sum(len(pair) for pair in kept)
    if parted:
        alone["kernels that do not end together"] += parted
    return Joined(kept, offset - shift, dict(alone), origin)


def _pair(
    traces: Sequence[RankTrace],
    found: Sequence[Communication],
    ends: Sequence[Floats],
    alone: Counter[str],
) -> list[NDArray[np.int64]]:
    """The n-th kernel of a group and kind on each of its ranks."""
    sequences: dict[tuple[str, int], dict[int, _Sequence]] = defaultdict(dict)
    for r, communication in enumerate(found):
        for i, row in enumerate(communication.row.tolist()):
            kind = int(communication.kind[i])
            if kind == OperatorKind.send_recv and len(communication.members[i]) != 2:
                alone["transfers whose peer is not recorded"] += 1
                continue
            # dispatch and combine kernels of one pattern, and Generic ones, keep their name
            key = communication.group[i] if kind != NONE else f"{communication.group[i]}?"
            sequence = sequences[key, kind].setdefault(r, _Sequence())
            sequence.rows.append(row)
    pairs: list[NDArray[np.int64]] = []
    for (group, _), ranks in sequences.items():
        if len(ranks) < 2:
            alone["collectives of which one rank is recorded"] += sum(
                len(s.rows) for s in ranks.values()
            )
            continue
        # without the ranks of the group it may be one of several: then the counts differ
        pairs += _align(ranks, ends, alone, f"group {group[:40]}")
    return pairs


def _align(
    ranks: Mapping[int, _Sequence], ends: Sequence[Floats], alone: Counter[str], where: str
) -> list[NDArray[np.int64]]:
    """Join sequences of kernels; where they differ in length, at the shift that fits best."""
    reference = max(ranks, key=lambda r: (len(ranks[r].rows), -r))
    base = ends[reference][ranks[reference].rows]
    slots: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for r, sequence in ranks.items():
        own = ends[r][sequence.rows]
        shift = 0 if len(own) == len(base) else _best_shift(own, base)
        for i, row in enumerate(sequence.rows):
            slots[i + shift].append((r, row))
    joined = [np.array(sorted(members), np.int64) for members in slots.values() if len(members) > 1]
    single = sum(len(members) == 1 for members in slots.values())
    if single:
        alone["collectives beyond what the other ranks recorded"] += single
    return joined


def _best_shift(own: Floats, base: Floats) -> int:
    """How many collectives the reference was recorded before this rank."""
    spare = len(base) - len(own)
    best, least = 0, np.inf
    for shift in range(max(-2, spare - LARGEST_SHIFT), min(spare + 2, LARGEST_SHIFT) + 1):
        low, high = max(0, shift), min(len(base), len(own) + shift)
        if high - low < LEAST_OVERLAP * min(len(base), len(own)):
            continue
        apart = own[low - shift : high - shift] - base[low:high]
        spread = float(np.mean(np.abs(apart - np.median(apart))))
        if spread < least - 1e-9:
            best, least = shift, spread
    return best


def _clocks(pairs: Sequence[NDArray[np.int64]], ends: Sequence[Floats], ranks: int) -> Floats:
    """What each rank's clock runs ahead of the common one: float64[R]."""
    offset = np.zeros(ranks)
    if not pairs:
        return offset
    pair = np.repeat(np.arange(len(pairs)), [len(p) for p in pairs])
    member = np.concatenate(pairs)
    end = np.array([ends[r][row] for r, row in member.tolist()])
    size = np.bincount(pair)
    for _ in range(ROUNDS):
        own = end - offset[member[:, 0]]
        apart = own - (np.bincount(pair, own) / size)[pair]
        step = np.zeros(ranks)
        for r in np.unique(member[:, 0]).tolist():
            step[r] = np.median(apart[member[:, 0] == r])
        offset += step
        if np.abs(step).max() < 0.05:
            break
    settled: Floats = offset - offset[0]
    return settled


def _together(
    pair: NDArray[np.int64],
    starts: Sequence[Floats],
    ends: Sequence[Floats],
    offset: Floats,
) -> bool:
    """Whether kernels can be one collective: all run at one moment, and end together."""
    start = np.array([starts[r][row] - offset[r] for r, row in pair.tolist()])
    end = np.array([ends[r][row] - offset[r] for r, row in pair.tolist()])
    most = max(TOGETHER_US, TOGETHER_SHARE * float((end - start).max()))
    return bool(end.min() >= start.max() and end.max() - end.min() <= most)
