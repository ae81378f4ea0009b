"""What a log of nccl-tests says, whatever its format, and which of its rows are measurements.

A test is one run of one collective: its ranks and its rows. Message sizes and bus factors are those
of doc/PERFORMANCE.md in the nccl-tests repository.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

UNKNOWN_FABRIC = "unknown"

LARGEST_US = 1e15
"""No time is longer: thirty years."""

DTYPES = {
    "float": "fp32",
    "half": "fp16",
    "double": "fp64",
    "bfloat16": "bf16",
    "float8_e4m3": "fp8",
    "float8_e5m2": "fp8",
    "f8e4m3": "fp8",
    "f8e5m2": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}

LARGEST_ERROR = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
"""What the versions before 2022-08 accept in their `error` column (DeltaMaxValue in their
src/common.cu); any error of an integer is wrong."""


LEAST_GB_PER_S = 0.1
"""Two decimals of a smaller bus bandwidth say too little of it."""


class Unusable(Exception):
    """Why a row, or a whole test, cannot be used."""


@dataclass(frozen=True)
class Device:
    """One line of the list of ranks."""

    rank: int
    group: int
    host: str
    process: str


@dataclass(frozen=True)
class Half:
    """The out-of-place or the in-place half of a row, as text.

    Attributes
    ----------
    time, algbw, busbw : str
        Microseconds, GB/s, GB/s.
    wrong : str
        Number of wrong values; "" or "N/A" where they were not checked.
    error : str
        The largest error, in old versions.
    variation_percent : str
        Coefficient of variation over the iterations, where it is reported.
    of_host : bool
        The time is one of the host (option -C).
    """

    time: str
    algbw: str = ""
    busbw: str = ""
    wrong: str = ""
    error: str = ""
    variation_percent: str = ""
    of_host: bool = False


@dataclass(frozen=True)
class Row:
    """One message size. `redop` and `root` are None where the test has no such column."""

    line: int
    size: str
    dtype: str
    redop: str | None
    root: str | None
    out_of_place: Half | None
    in_place: Half | None


@dataclass(frozen=True)
class Ranks:
    """Who took part: one communicator, and how many others ran at the same time."""

    ranks: int
    nodes: int
    groups: int = 1


@dataclass(frozen=True)
class Stated:
    """What the user says of logs: what they leave open, and which half is asked for.

    Attributes
    ----------
    fabric, node_fabric : str
        Label of the network, and of the one inside a node (for tests of one node).
    ranks : Ranks or None
        Of tests that do not list theirs.
    in_place : bool
        Take the in-place times. The other half counts where the wanted one is blank.
    """

    fabric: str = ""
    node_fabric: str = ""
    ranks: Ranks | None = None
    in_place: bool = False

    def network(self, nodes: float) -> str:
        """Label of the network that a test over so many nodes measured."""
        label = self.node_fabric if nodes == 1 and self.node_fabric else self.fabric
        return label or UNKNOWN_FABRIC


@dataclass
class Test:
    """One run of one collective.

    Attributes
    ----------
    name : str
        Name of the program or collective, "" = not stated.
    is_sure : bool
        The program itself says its name; else it was only mentioned before the table.
    per_process : int
        Ranks of each process (threads x GPUs).
    ranks : Ranks or None
        Where the rows state them; else they follow from `devices`.
    told : int
        Ranks that the library names beside the table, 0 = none.
    unit_s : float
        Of the times.
    """

    name: str = ""
    is_sure: bool = False
    tool: str = "nccl-tests"
    library: str = ""
    per_process: int = 1
    devices: list[Device] = field(default_factory=list)
    ranks: Ranks | None = None
    rows: list[Row] = field(default_factory=list)
    told: int = 0
    unit_s: float = 1e-6


def ranks_of(test: Test, stated: Ranks | None = None) -> Ranks:
    """Ranks and nodes of a test, from its list of devices; `stated` where that is not whole.

    Some versions list one device for each process, or cut the list short: the number of processes
    times their ranks counts where it is larger. Raises Unusable.
    """
    if test.ranks is not None:
        return _checked(test.ranks)
    if not test.devices:
        if stated is not None:
            return _checked(stated)
        told = f"; the library counts {test.told}, but not their nodes" if test.told else ""
        raise Unusable(
            f"the log does not list its ranks ('# Rank ... on HOST'){told}: state them with "
            "--ranks and --nodes"
        )
    repeated = [rank for rank, n in Counter(d.rank for d in test.devices).items() if n > 1]
    if repeated:
        raise Unusable(
            f"rank {repeated[0]} is listed twice: the processes did not form one communicator "
            "(nccl-tests was built without MPI)"
        )
    whole = test.per_process * len({(d.host, d.process) for d in test.devices})
    last = max(device.rank for device in test.devices)
    if last >= max(len(test.devices), whole):
        if stated is not None:
            return _checked(stated)
        raise Unusable(
            f"the list of ranks is not whole: {len(test.devices)} lines, the last of rank {last}; "
            "state them with --ranks and --nodes"
        )
    groups = Counter(device.group for device in test.devices)
    first = test.devices[0].group
    if len(set(groups.values())) > 1:
        raise Unusable("the groups of ranks are of different sizes")
    members = [device for device in test.devices if device.group == first]
    count = max(len(members), whole // len(groups))
    hosts = Counter(device.host for device in members)
    if len(set(hosts.values())) > 1:
        raise Unusable("the ranks are spread unevenly over the nodes")
    return _checked(Ranks(count, len(hosts), len(groups)))


def _checked(ranks: Ranks) -> Ranks:
    if ranks.ranks < 2:
        raise Unusable("one rank alone: nothing was sent")
    if ranks.nodes < 1 or ranks.ranks % ranks.nodes:
        raise Unusable("the ranks are spread unevenly over the nodes")
    return ranks


def number(text: str) -> float:
    """The number in a cell; -1 where there is none or it is not finite."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


@dataclass(frozen=True)
class Measured:
    """A usable row: SI units, and which half it is from."""

    line: int
    message_bytes: float
    dtype: str
    time_s: float
    spread: float
    is_in_place: bool


def usable(test: Test, in_place: bool) -> tuple[list[Measured], list[tuple[int, str]]]:
    """Rows as measurements, and (line, reason) of the others.

    The asked-for half counts; the other one where that half is blank.
    """
    kept: list[Measured] = []
    lost: list[tuple[int, str]] = []
    found = [(row, _half(row, in_place)) for row in test.rows]
    factors = [_factor(row, half, test.unit_s)[0] for row, half in found if half is not None]
    known = [factor for factor in factors if factor > 0]
    factor = statistics.median(known) if known else 0.0
    for row, half in found:
        try:
            kept.append(_measured(row, half, test.unit_s, factor))
        except Unusable as reason:
            lost.append((row.line, str(reason)))
    return kept, lost


def _half(row: Row, in_place: bool) -> Half | None:
    """The half that counts."""
    halves = (row.out_of_place, row.in_place)[:: -1 if in_place else 1]
    there = [half for half in halves if half is not None]
    return next((half for half in there if half.time.upper() != "N/A"), next(iter(there), None))


def _factor(row: Row, half: Half, unit_s: float) -> tuple[float, float]:
    """Bus bandwidth x time / size of a half, the same in all rows of a test, and how far its
    printed digits leave it open; 0 where it is not told."""
    busbw, time_us, size = number(half.busbw), number(half.time) * unit_s * 1e6, number(row.size)
    if busbw < LEAST_GB_PER_S or min(time_us, size) <= 0:
        return 0.0, 0.0
    return busbw * 1e3 * time_us / size, 0.05 + 0.02 / busbw + 0.02 / time_us


def _measured(row: Row, half: Half | None, unit_s: float, factor: float) -> Measured:
    if half is None:
        raise Unusable("both halves of the row are blank")
    if half.of_host:
        raise Unusable("cputime (option -C): a time of the host, not of the device")
    size, time_us = number(row.size), number(half.time) * unit_s * 1e6
    if size <= 0:
        raise Unusable(f"the size is '{row.size}', not a positive number of bytes")
    if not 0 < time_us <= LARGEST_US:
        raise Unusable(f"the time is '{half.time}', not a positive number of microseconds")
    _refuse_wrong(half, row.dtype)
    own, slack = _factor(row, half, unit_s)
    if own and factor and abs(own / factor - 1) > slack:
        told = factor * size / (number(half.busbw) * 1e3)
        raise Unusable(
            f"time and bus bandwidth contradict each other: by the other rows {half.busbw} GB/s "
            f"for {row.size} bytes are {told:.4g} us, not {time_us:.4g}"
        )
    variation = number(half.variation_percent)
    return Measured(
        line=row.line,
        message_bytes=size,
        dtype=DTYPES.get(row.dtype.lower(), row.dtype.lower()),
        time_s=time_us * 1e-6,
        spread=variation / 100 if variation > 0 else math.nan,
        is_in_place=half is row.in_place,
    )


def _refuse_wrong(half: Half, dtype: str) -> None:
    if half.wrong and half.wrong.upper() != "N/A" and number(half.wrong) != 0:
        raise Unusable(f"{half.wrong} values of the result are wrong")
    if half.error and half.error.upper() != "N/A":
        error = number(half.error)
        if not 0 <= error <= LARGEST_ERROR.get(dtype.lower(), 0.0):
            raise Unusable(f"the result is wrong: its error is {half.error}")


def series_name(ordinal: int, ranks: Ranks, measured: Sequence[Measured]) -> list[str]:
    """A name of the sweep for each row; a half that is not out of place is stated."""
    beside = f", {ranks.groups} groups at once" if ranks.groups > 1 else ""
    return [f"run {ordinal}{beside}{', in place' * row.is_in_place}" for row in measured]
