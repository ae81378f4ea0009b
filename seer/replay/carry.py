"""Recorded durations on other hardware: which are kept, which priced anew, and by which rule.

Work whose sizes are recorded changes in proportion to its prices on both devices; where a device
has no calibration, in proportion to its roofline. Kernels known by duration alone change with the
peak FLOP/s where their names say that they multiply matrices, else with memory bandwidth.
Communication of known size is priced on the cluster. Copies to and from the host and the host
itself stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seer import cost
from seer.cluster import Cluster, Device
from seer.cost.physics import PEAK_NAMES
from seer.errors import UsageError
from seer.graph import COMMUNICATION, MATRIX, DType, OperatorGraph, Origin, WorkTable
from seer.readers import read_calibration, shipped
from seer.readers.kineto.devices import find_device, shipped_cluster
from seer.readers.kineto.recording import Recording
from seer.readers.kineto.works import told_kinds
from seer.readers.specs import read_cluster

Floats = NDArray[np.float64]

_HALF_NAME = re.compile(
    r"bf16|bfloat16|fp16|half|f16|h884|h1688|h16816|hgemm|nvjet_(tst|hsh|qq)", re.I
)
"""How kernels of cuBLAS, cuDNN, CUTLASS, FlashAttention and Tensile tell what they do."""

_LONGEST_NAME = 2000
_MOST_NAMES = 6


@dataclass(frozen=True)
class Carried:
    """New durations.

    Attributes
    ----------
    duration_s : float64[N]
        Per operator of the recording's graph.
    origin : int8[W]
        Per row of its work: measured where a recorded duration was kept.
    calibration : str
        What priced anew; "" where nothing did.
    notes : tuple of str
        The rules that were used, with the share of recorded time they concern.
    """

    duration_s: Floats
    origin: NDArray[np.int8]
    calibration: str
    notes: tuple[str, ...]


@dataclass
class _Sheet:
    """The answer in the making, by row of work: a factor or an absolute duration."""

    factor: Floats
    origin: NDArray[np.int8]
    rule: list[str]

    def set(self, rows: NDArray[np.int64], factor: Floats, origin: Origin, rule: str) -> None:
        self.factor[rows] = factor
        self.origin[rows] = origin
        for row in rows.tolist():
            self.rule[row] = rule


def carry(
    recording: Recording,
    *,
    cluster: str | None = None,
    calibration: str | None = None,
    dp: int | None = None,
    device: str | None = None,
) -> Carried:
    """The durations of a recording on another cluster, by another calibration, or on more ranks.

    Parameters
    ----------
    cluster, calibration : str, optional
        Names or files. A calibration alone prices on the recorded device.
    dp : int, optional
        Data-parallel ranks; the groups of the recording with the widest stride grow to it.
    device : str, optional
        The recorded device, where the trace does not name it.

    Raises
    ------
    UsageError
        The recorded device is needed and not known, or no group can grow.
    """
    work = recording.graph.work
    measured = np.full(len(work), Origin.measured, np.int8)
    sheet = _Sheet(np.ones(len(work)), measured, [""] * len(work))
    if cluster is None and calibration is None and dp is None:
        return Carried(recording.duration_s, sheet.origin, "", ())
    source = _recorded_device(recording, device)
    own = shipped_cluster(source) if source is not None else None
    name = cluster or own
    if name is None:
        what = "the cluster that the recorded ranks ran on is not known"
        raise UsageError(what, where=recording.name, hint="name one with --cluster")
    target = read_cluster(name)
    used = calibration or target.calibration
    notes: list[str] = []
    to_device = find_device(target.device.name)
    known = source is not None and to_device is not None
    is_same = known and source.name == to_device.name  # type: ignore[union-attr]
    if source is None:
        notes.append(
            "the trace does not name its device: kernels keep their recorded durations; "
            "--given device=NAME says what it was"
        )
    elif not is_same or calibration is not None:
        _price_kernels(recording, sheet, source, own, target, used)
    duration = recording.duration_s * sheet.factor[recording.graph.work_id]
    new, origin, words = _communication(recording, target, used, dp, cluster is not None)
    again = np.isfinite(new)
    duration = np.where(again, new, duration)
    rows = np.unique(recording.graph.work_id[again])
    sheet.origin[rows] = origin[rows]
    notes += [*words, *_told(recording, sheet)]
    return Carried(duration, sheet.origin, used, tuple(notes))


def _recorded_device(recording: Recording, given: str | None) -> Device | None:
    names = [given] if given else list(recording.plans[0].trace.devices)
    found = [device for device in map(find_device, names) if device is not None]
    if given and not found:
        raise UsageError(f"no data sheet for '{given[:60]}'", hint="V100, A100, H100, MI300X, ...")
    return found[0] if found else None


# ---- kernels ------------------------------------------------------------------------------------


def _price_kernels(
    recording: Recording,
    sheet: _Sheet,
    source: Device,
    own: str | None,
    target: Cluster,
    used: str,
) -> None:
    """Factors of everything that a GPU does, communication apart."""
    work, works = recording.graph.work, recording.works
    on_gpu = np.zeros(len(work), np.bool_)
    on_gpu[recording.graph.work_id[recording.is_gpu | recording.is_hidden]] = True
    rows = np.flatnonzero(on_gpu & ~works.communicates)
    sized = rows[works.is_sized[rows]]
    home = read_cluster(own) if own is not None else None
    if home is not None and has_calibration(used) and has_calibration(home.calibration):
        ratio = _prices(work, sized, used, target) / _prices(work, sized, home.calibration, home)
        sheet.set(sized, ratio, Origin.derived, "in proportion to prices on both devices")
    else:
        ratio = _roofline_s(work, sized, target.device) / _roofline_s(work, sized, source)
        sheet.set(sized, ratio, Origin.derived, "in proportion to the rooflines of both devices")
    rest = rows[~works.is_sized[rows]]
    kernels = [works.kernel[i][:_LONGEST_NAME] for i in rest.tolist()]
    named = np.isin(told_kinds(works)[rest], MATRIX)
    half = np.array([bool(_HALF_NAME.search(name)) for name in kernels], np.bool_)
    for word in ("fp16", "fp32"):
        chosen = rest[named & (half == (word == "fp16"))]
        ratio = np.full(len(chosen), _peak(source, word) / _peak(target.device, word))
        sheet.set(chosen, ratio, Origin.assumed, "by peak FLOP/s, since sizes are not recorded")
    host = np.array([_crosses(work.name[i]) for i in rest.tolist()], np.bool_)
    host &= works.is_copy[rest]
    sheet.set(rest[host], np.ones(int(host.sum())), Origin.assumed, "kept: copies with the host")
    plain = rest[~named & ~host]
    ratio = np.full(len(plain), source.hbm_bytes_per_s / target.device.hbm_bytes_per_s)
    sheet.set(plain, ratio, Origin.assumed, "by memory bandwidth, since sizes are not recorded")


def has_calibration(name: str) -> bool:
    """Whether a calibration can be read: a cluster may name one that nobody has measured yet."""
    return shipped.is_path(name) or name in shipped.names("calibrations")


def _crosses(name: str) -> bool:
    return any(word in name for word in ("HtoD", "DtoH", "Host", "Pinned", "Pageable"))


def _peak(device: Device, word: str) -> float:
    peaks = device.peak_flop_per_s
    return float(peaks.get(word, peaks.get("bf16", max(peaks.values()))))


def _prices(work: WorkTable, rows: NDArray[np.int64], calibration: str, cluster: Cluster) -> Floats:
    """Prices of some rows."""
    measured = np.zeros(len(work))
    measured[rows] = np.nan
    priced = cost.price(replace(work, measured_s=measured), read_calibration(calibration), cluster)
    return np.maximum(priced.time_s[rows], 1e-9)


def _roofline_s(work: WorkTable, rows: NDArray[np.int64], device: Device) -> Floats:
    """max(FLOP / peak, bytes / bandwidth): for ratios between devices alone."""
    peak = np.array(
        [
            _peak(device, PEAK_NAMES.get(d.name, d.name if d is not DType.none else "fp32"))
            for d in map(DType, work.dtype[rows].tolist())
        ],
        np.float64,
    )
    flop = np.where(np.isin(work.kind[rows], MATRIX), work.flop[rows], 0.0)
    return np.maximum(flop / peak, work.hbm_bytes[rows] / device.hbm_bytes_per_s) + 1e-12


# ---- communication ------------------------------------------------------------------------------


def _communication(
    recording: Recording, target: Cluster, used: str, dp: int | None, is_named: bool
) -> tuple[Floats, NDArray[np.int8], list[str]]:
    """New durations per operator (NaN where not communication), origins per row, and notes."""
    graph, works = recording.graph, recording.works
    new = np.full(len(graph), np.nan)
    origin = np.full(len(graph.work), Origin.measured, np.int8)
    rows = works.communicates & np.isin(graph.work.kind, [int(k) for k in COMMUNICATION])
    groups = recording.groups
    notes: list[str] = []
    grown, grown_groups = graph, groups
    if dp is not None:
        grown, grown_groups, text = _grow(recording, groups, dp)
        notes.append(text)
    sized = rows & works.is_sized & (graph.work.group_ranks > 1)
    sized |= rows & works.is_sized & (grown.work.group_ranks > 1)
    if not has_calibration(used):
        notes.append(f"nobody has measured the calibration '{used}': collectives follow a rule")
        sized &= False
    chosen = recording.is_gpu & sized[graph.work_id]
    if chosen.any():
        price, found = _priced(grown, grown_groups, sized, used, target)
        if is_named:
            new[chosen] = price[chosen]
        else:
            before, _ = _priced(graph, groups, sized, used, target)
            ratio = np.where(before > 0, price / np.maximum(before, 1e-12), 1.0)
            new[chosen] = (recording.duration_s * ratio)[chosen]
        np.maximum.at(origin, graph.work_id[chosen], np.maximum(found[chosen], Origin.interpolated))
        notes.append(
            f"{np.count_nonzero(chosen):,} collectives of recorded size are priced on {target.name}"
            + ("" if is_named else ", in proportion to the recorded group")
        )
    rest = recording.is_gpu & (rows & ~sized)[graph.work_id]
    if rest.any():
        factor = _ring_growth(graph.work, grown.work)
        new[rest] = (recording.duration_s * factor[graph.work_id])[rest]
        origin[np.unique(graph.work_id[rest])] = Origin.assumed
        how = "grow as rings do, (n - 1) / n" if dp is not None else "keep their recorded durations"
        notes.append(f"{np.count_nonzero(rest):,} collectives of unknown size or group {how}")
    return new, origin, notes


def _priced(
    graph: OperatorGraph,
    groups: Mapping[str, tuple[int, ...]],
    sized: NDArray[np.bool_],
    used: str,
    target: Cluster,
) -> tuple[Floats, NDArray[np.int8]]:
    """Price and origin of each operator whose row is `sized`; 0 for the others."""
    measured = np.where(sized & (graph.work.group_ranks > 1), np.nan, 0.0)
    work = replace(graph.work, measured_s=measured)
    placed = cost.place(replace(graph, work=work), groups, target)
    priced = cost.price(placed.work, read_calibration(used), target)
    return priced.time_s[placed.work_id], priced.origin[placed.work_id]


def _grow(
    recording: Recording, groups: Mapping[str, tuple[int, ...]], dp: int
) -> tuple[OperatorGraph, dict[str, tuple[int, ...]], str]:
    """The graph with its data-parallel groups grown to `dp` ranks.

    They are the groups with the widest distance between neighbours; of those the largest sets how
    many there were.
    """
    graph, work = recording.graph, recording.graph.work
    rows = np.flatnonzero(recording.works.communicates & (work.group_ranks > 1))
    if not len(rows):
        what = "no group of ranks communicates in this trace: there is nothing to grow"
        raise UsageError(what, where="--set parallelism.dp")
    stride = {label: _stride(members) for label, members in groups.items()}
    labels = {work.group[i] for i in rows.tolist()}
    widest = max(stride.get(label, 1) for label in labels)
    chosen = {label for label in labels if stride.get(label, 1) == widest}
    size = max(int(work.group_ranks[i]) for i in rows.tolist() if work.group[i] in chosen)
    if size * 2**20 < dp:
        raise UsageError(f"{dp:,} ranks are too many", where="--set parallelism.dp")
    mine = np.array([group in chosen for group in work.group], np.bool_) & (work.group_ranks > 1)
    more = np.maximum(1, np.rint(work.group_ranks * (dp / size)))
    ranks = np.where(mine, more, work.group_ranks)
    grown = dict(groups)
    for label in chosen:
        members = groups.get(label, ())
        if members:
            count = max(1, round(len(members) * dp / size))
            grown[label] = tuple(range(members[0], members[0] + widest * count, widest))
    new = replace(work, group_ranks=ranks.astype(np.int32))
    total = max(1, round(max(size, graph.ranks) * dp / size))
    named = ", ".join(sorted(chosen)[:3])
    text = f"data-parallel groups ({named}) grow from {size:,} to {dp:,} ranks"
    return replace(graph, work=new, ranks=total), grown, text


def _stride(members: tuple[int, ...]) -> int:
    return members[1] - members[0] if len(members) > 1 else 1


def _ring_growth(old: WorkTable, new: WorkTable) -> Floats:
    """How much more a rank sends in a ring of the new size: (n - 1) / n."""
    a, b = old.group_ranks.astype(np.float64), new.group_ranks.astype(np.float64)
    before, after = (a - 1) / np.maximum(a, 1), (b - 1) / np.maximum(b, 1)
    return np.where(before > 0, after / np.where(before > 0, before, 1.0), 1.0)


# ---- words --------------------------------------------------------------------------------------


def _told(recording: Recording, sheet: _Sheet) -> list[str]:
    """Each rule with its share of recorded GPU time and the operators it concerns most."""
    ids = recording.graph.work_id
    busy = np.bincount(
        ids,
        weights=recording.duration_s * (recording.is_gpu | recording.is_hidden),
        minlength=len(recording.graph.work),
    )
    total = float(busy.sum()) or 1.0
    notes = []
    for rule in sorted(set(sheet.rule) - {""}):
        rows = np.array([i for i, r in enumerate(sheet.rule) if r == rule])
        share = float(busy[rows].sum()) / total
        by_name: dict[str, float] = {}
        for row in rows.tolist():
            name = recording.graph.work.name[row]
            by_name[name] = by_name.get(name, 0.0) + float(busy[row])
        top = sorted(by_name, key=lambda n: -by_name[n])[:_MOST_NAMES]
        more = f" and {len(by_name) - len(top)} more" if len(by_name) > len(top) else ""
        notes.append(f"{share:.1%} of GPU time {rule}: {', '.join(top)}{more}")
    return notes
