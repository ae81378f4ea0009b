"""The work of a job whose groups lie differently: one row for each signature of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.graph import OperatorKind
from seer.workload.groups import COMPUTE, STREAMS, communication_columns
from seer.workload.places import Columns, Places
from seer.workload.program import Rows
from seer.workload.segments import Segment

Ints = NDArray[np.int64]

_PAIRED = {"pp": "pair", "embedding": "pair"}
"""Groups of two stages."""


@dataclass(frozen=True)
class PlacedWork:
    """Which row of the work table an operator is, given where its group lies.

    Attributes
    ----------
    places : Places
    row : int32[rows, signatures]
        The row of each row under each signature of its group.
    segment_row : int32[rows, pp, classes]
        The row of a collapsed segment on each stage and class; other rows stay what they are.
    segments : tuple of (row, Segment)
        All segments that are played.
    """

    places: Places
    row: NDArray[np.int32]
    segment_row: NDArray[np.int32]
    segments: tuple[tuple[int, Segment], ...]

    def with_rows(self, size: int, segments: tuple[tuple[int, Segment], ...]) -> PlacedWork:
        """The same for a table of `size` rows, whose new ones are alike everywhere."""
        new = np.arange(len(self.segment_row), size, dtype=np.int32)
        row = np.concatenate([self.row, np.repeat(new[:, None], self.row.shape[1], axis=1)])
        shape = (len(new), *self.segment_row.shape[1:])
        everywhere = np.broadcast_to(new[:, None, None], shape)
        segment_row = np.concatenate([self.segment_row, everywhere])
        return replace(self, row=row, segment_row=segment_row, segments=segments)

    def resolve(
        self,
        work: NDArray[np.integer],
        stage: NDArray[np.integer],
        group: str,
        number: NDArray[np.integer],
        peer: NDArray[np.integer],
    ) -> NDArray[np.integer]:
        """Rows of copies of operators, ints[n].

        Parameters
        ----------
        work, stage, peer : ints[n]
            Row as written; stage; the stage at the other end of a transfer, else -1.
        group : str
            The process group that a copy belongs to; "rank" is each rank alone.
        number : ints[n]
            Number of that group in its stage.
        """
        places = self.places
        signature = np.zeros(len(work), np.int64)
        if group in places.signature:
            signature = places.signature[group][stage, number]
        elif group == "rank":
            for (source, target), of in places.pair.items():
                here = (stage == source) & (peer == target)
                signature[here] = of[number[here]]
            classes = places.classes.of[number]
            return np.asarray(
                np.where(
                    peer >= 0, self.row[work, signature], self.segment_row[work, stage, classes]
                ),
                np.int64,
            )
        return np.asarray(self.row[work, signature], np.int64)


def group_columns(places: Places, name: str) -> Columns | None:
    """The columns that rows of a group are first written with, None where it is no group."""
    found = places.columns.get(name)
    return found[0] if found else None


def place_work(
    rows: Rows,
    places: Places,
    segments: Sequence[Segment],
    segment_row: NDArray[np.int32],
    stages: int,
) -> PlacedWork:
    """Write the rows of all signatures, and of the segments made of them."""
    written = list(rows.rows)
    most = max((len(c) for c in places.columns.values()), default=1)
    table = np.repeat(np.arange(len(written), dtype=np.int32)[:, None], max(most, 1), axis=1)
    for i, base_row in enumerate(written):
        group = str(base_row.get("group", ""))
        for signature, columns in enumerate(places.columns.get(_PAIRED.get(group, group), ())):
            table[i, signature] = rows.id_of(_moved(base_row, columns))
    signatures = _segment_signatures(places)
    shape = stages, len(places.classes.representatives)
    distinct, of = _distinct_signatures(signatures, shape)
    played: list[tuple[int, Segment]] = []
    changed = np.broadcast_to(
        np.arange(len(written), dtype=np.int32)[:, None, None], (len(written), *of.shape)
    ).copy()
    for number, choice in enumerate(distinct):
        for base, segment in zip(segment_row.tolist(), segments, strict=True):
            work_id = segment.work_id.copy()
            for stream, signature in choice.items():
                here = segment.stream == stream
                work_id[here] = table[work_id[here], signature]
            same = number == 0 or (work_id == segment.work_id).all()
            row = base if same else rows.id_of({**written[base], "n": number})
            if all(row != known for known, _ in played):
                played.append((row, replace(segment, work_id=work_id)))
            changed[base][of == number] = row
    return PlacedWork(places, table, changed, tuple(played))


def _moved(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """A row of a group that lies elsewhere; a pair keeps its own number of ranks."""
    kind = OperatorKind(int(row["kind"]))
    return {**row, **communication_columns(kind, columns)}


def _segment_signatures(places: Places) -> dict[int, Ints]:
    """By stream: signature of the group of each class on each stage. int64[pp, classes]."""
    found = {}
    for stream, name in enumerate(STREAMS):
        if stream != COMPUTE and name in places.signature:
            number = places.classes.number[name][places.classes.copy_of[name]]
            found[stream] = places.signature[name][:, number]
    return found


def _distinct_signatures(
    signatures: Mapping[int, Ints], shape: tuple[int, int]
) -> tuple[list[dict[int, int]], Ints]:
    """The distinct choices of a signature per stream, and which one each stage and class has.

    `shape` is (pp, classes).
    """
    if not signatures:
        return [{}], np.zeros(shape, np.int64)
    stacked = np.stack(list(signatures.values()), axis=-1)
    distinct, of = np.unique(stacked.reshape(-1, stacked.shape[-1]), axis=0, return_inverse=True)
    names = list(signatures)
    choices = [dict(zip(names, choice, strict=True)) for choice in distinct.tolist()]
    return choices, of.reshape(stacked.shape[:-1])
