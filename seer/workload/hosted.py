"""Plans in which the host thread takes part: an operator starts when it has been launched.

The thread launches the operators of a rank one after another and runs ahead of the device as far
as it can, except where it waits for a result. Where its launches could bind, each operator of a
segment is preceded by an operator in the stream of the host thread.

A pass that is one operator of the schedule is four or seven then. With d and h the times at which
the device and the host come to it, everything inside is a longest path from one of the two, so

    the device leaves at   max(d + D, h + L)
    the host leaves at     max(h + H, d + S)

D and S are those of a play in which all was launched before, up to the first wait of the host; L
and H those of one that host and device begin together (L >= D and H >= S, for nothing of a pass
runs before it is launched). Without waits H is the sum of the launches, and S does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seer.graph import LAUNCH, OperatorKind
from seer.spec import Job
from seer.workload.groups import COMPUTE, HOST, HOST_AWAITED, HOST_BEHIND, STREAMS
from seer.workload.program import Rows, pairs
from seer.workload.segments import Segment, in_order

if TYPE_CHECKING:
    from seer.workload.plan import Plan

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

HOST_STREAM = STREAMS.index(HOST)


@dataclass(frozen=True)
class Issue:
    """What the host does for each row of work.

    Attributes
    ----------
    issue_s : float64[W]
        Seconds of the host thread to launch one operator.
    waits : int64[W]
        How many compute operators back the one is that the host waits for first; 0 = none.
    """

    issue_s: Floats
    waits: Ints

    @staticmethod
    def of(rows: Rows) -> Issue | None:
        """The columns of a table of rows; None where no row says anything."""
        issue_s = np.array([row.get("issue_s", 0.0) for row in rows.rows])
        waits = np.array([row.get("host_waits", 0) for row in rows.rows], np.int64)
        return Issue(issue_s, waits) if issue_s.any() or waits.any() else None

    def of_segment(self, segment: Segment) -> tuple[Floats, NDArray[np.int32]]:
        """What is done before each operator of a segment, as `seer.play.ends_in_order` takes it.

        Seconds of its launch, -1 = none, float64[n]; and the operator that the host waits for
        first, -1 = none, int32[n].
        """
        issue_s, back = self.issue_s[segment.work_id], self.waits[segment.work_id]
        awaited = np.full(len(segment), -1, np.int32)
        held = np.flatnonzero(back)
        if len(held):
            compute = np.flatnonzero(segment.stream == COMPUTE)
            place = np.searchsorted(compute, held) - back[held]
            awaited[held] = compute[np.maximum(place, 0)]
        return np.where((issue_s > 0) | (back > 0), issue_s, -1.0), awaited


@dataclass(frozen=True)
class Hosting:
    """How the host takes part in a plan.

    Attributes
    ----------
    joined : bool
        Host and device start every pass together: the host waits at every transfer.
    whole : tuple of Segment
        What a collapsed slot of each segment of the plan is; empty where `joined`.
    rows : int32[segments, 3]
        Of each segment the work of its host, of what the device does behind its last launch, and
        of what the host waits for. Their durations are H, L - H and S.
    """

    joined: bool
    whole: tuple[Segment, ...]
    rows: NDArray[np.int32]


def could_bind(plan: Plan, time_s: Floats) -> bool:
    """Whether the host can hold the device up for more than the first launches of a step.

    It cannot where no segment waits for a result, and the launches of each take no longer than its
    computation: the host then gains a lead in each. `time_s` are the durations of the rows.
    """
    issue = plan.issue
    if issue is None:
        return False
    for segment in plan.segments:
        rows = segment.work_id
        if issue.waits[rows].any():
            return True
        compute = time_s[rows[segment.stream == COMPUTE]]
        if issue.issue_s[rows].sum() > compute.sum():
            return True
    return False


def joins(job: Job) -> bool:
    """Whether host and device begin every pass together: the host waits at every transfer."""
    parallelism = job.parallelism
    waits = job.framework.host_waits_for_transfers and parallelism.pp > 1
    return waits and parallelism.vpp == 1


def hosted(plan: Plan, opened: Collection[int] | None = None) -> Plan:
    """The plan with its host thread: rows of work are added behind those that are there.

    `opened` are the segments that are not collapsed everywhere, whose launches are therefore asked
    for; all of them unless told.
    """
    issue, rows, first = plan.issue, Rows(), len(plan.work)
    assert issue is not None
    of_row = _launch_rows(plan, rows, issue)
    joined = joins(plan.job)
    segments = tuple(
        with_host(s, issue, of_row, joined) if opened is None or number in opened else s
        for number, s in enumerate(plan.segments)
    )
    three, whole = np.zeros((len(segments), 3), np.int32), []
    for number, segment in enumerate(plan.segments if not joined else ()):
        waits = bool(issue.waits[segment.work_id].any())
        added = [first + rows.id_of(_host_row(w, segment.name, number)) for w in _WORDS]
        three[number], row, join = added, int(plan.segment_row[number]), int(segment.work_id[0])
        whole.append(_whole(segment, row, added, join, waits))
    table = plan.work.extended(rows.rows)
    placed = plan.placed
    if placed is not None:
        of_placed = tuple((r, with_host(s, issue, of_row, joined)) for r, s in placed.segments)
        placed = placed.with_rows(len(table), of_placed)
    return replace(
        plan,
        work=table,
        work_key=plan.work_key + tuple(rows.keys),
        segments=segments,
        placed=placed,
        hosting=Hosting(joined, tuple(whole), three),
    )


def with_host(segment: Segment, issue: Issue, of_row: Ints, joined: bool) -> Segment:
    """The segment with each launch before its operator.

    `of_row` is the row of the launch of each row of work, -1 = none; `joined` holds the first of
    them until the segment begins.
    """
    work, stream = segment.work_id, segment.stream
    issue_s, awaited = issue.of_segment(segment)
    launched = issue_s >= 0
    at = np.arange(len(work)) + np.cumsum(launched)
    size = len(work) + int(launched.sum())
    new_work, new_stream = np.zeros(size, np.int32), np.full(size, HOST_STREAM, np.int8)
    new_layer = np.full(size, -1, np.int32)
    new_work[at], new_stream[at], new_layer[at] = work, stream, segment.layer
    mine = np.flatnonzero(launched)
    new_work[at[mine] - 1], new_layer[at[mine] - 1] = of_row[work[mine]], segment.layer[mine]
    held = np.flatnonzero(awaited >= 0)
    edges = [
        np.stack([at[segment.before], at[segment.after]], axis=1),
        np.stack([at[mine] - 1, at[mine]], axis=1),
        np.stack([at[awaited[held]], at[held] - 1], axis=1),
    ]
    if joined and len(mine):
        edges.append(pairs(np.array([0]), at[mine[:1]] - 1))
    before, after = in_order(np.concatenate(edges))
    return replace(
        segment,
        work_id=new_work,
        stream=new_stream,
        layer=new_layer,
        before=before,
        after=after,
        layer_first=at[segment.layer_first].astype(np.int32),
        layer_last=at[segment.layer_last].astype(np.int32),
    )


def launched_before(segment: Segment, duration_s: Floats) -> Floats:
    """Durations of a hosted segment's operators when the host is far ahead of the device.

    Launches up to the first that waits for the device are over when the segment begins.
    float64[n], as `duration_s`.
    """
    host = segment.stream == HOST_STREAM
    waiting = host[segment.after] & ~host[segment.before]
    first = int(segment.after[waiting].min()) if waiting.any() else len(segment)
    ahead = duration_s.copy()
    ahead[:first][host[:first]] = 0.0
    return ahead


def waits_for_device(segment: Segment) -> bool:
    """Whether the host waits for an operator of the segment."""
    host = segment.stream == HOST_STREAM
    return bool((host[segment.after] & ~host[segment.before]).any())


_WORDS = ("launches", "behind the launches", "awaited by the host")


def _host_row(word: str, name: str, number: int) -> dict[str, Any]:
    return {
        "name": f"{word} of {name}" if word == _WORDS[0] else f"{word}: {name}",
        "kind": int(OperatorKind.host),
        "variant": LAUNCH,
        "m": number,
        "measured_s": 0.0,
    }


def _launch_rows(plan: Plan, rows: Rows, issue: Issue) -> Ints:
    """The row of the launch of each row of work, -1 where there is none. int64[W].

    `rows` are those that will stand behind the plan's.
    """
    first = len(plan.work)
    found = np.full(first, -1, np.int64)
    for row in np.flatnonzero((issue.issue_s > 0) | (issue.waits > 0)).tolist():
        found[row] = first + rows.id_of(
            {
                "name": f"launch of {plan.work.name[row]}",
                "kind": int(OperatorKind.host),
                "variant": LAUNCH,
                "measured_s": float(issue.issue_s[row]),
            }
        )
    return found


def _whole(segment: Segment, row: int, host: Sequence[int], join: int, waits: bool) -> Segment:
    """A collapsed pass beside its host thread: see the head of this file."""
    issue, behind, awaited = host
    if waits:
        work = [join, row, issue, behind, awaited, join, join]
        names = ["compute", "compute", HOST, HOST_BEHIND, HOST_AWAITED, HOST, "compute"]
        edges = [(0, 4), (2, 3), (3, 6), (4, 5)]
    else:
        work, names = [row, issue, behind, join], ["compute", HOST, HOST_BEHIND, "compute"]
        edges = [(1, 2), (2, 3)]
    before, after = in_order(np.array(edges))
    stream = [STREAMS.index(name) for name in names]
    none = np.zeros(0, np.int32)
    return replace(
        segment,
        work_id=np.array(work, np.int32),
        stream=np.array(stream, np.int8),
        layer=np.full(len(work), -1, np.int32),
        before=before,
        after=after,
        layer_first=none,
        layer_last=none,
    )
