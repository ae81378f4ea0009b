"""What a log of nccl-tests says, whatever its format, and which of its rows are measurements.

A test is one run of one collective: its ranks and its rows. Message sizes and bus factors are those
of doc/PERFORMANCE.md in the nccl-tests repository.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from seer.calibration.collective import bus_factor

UNKNOWN_FABRIC = "unknown"

LARGEST_US = 1e15
"""No time is longer: thirty years."""

COLLECTIVES = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
}
"""Name of a test, in lower case -> collective of a curve. Others (reduce, gather, scatter,
alltoallv, hypercube) have no curve."""

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

_LEAST_GB_PER_S = 0.5
"""Slower rows are printed with too few digits to tell their bus factor."""

_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_REDUCING = {"all_reduce", "reduce_scatter", "reduce"}


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


def collective_of(test: Test, ranks: Ranks) -> str:
    """The collective of a test: by its name, else by its bus factor and columns.

    A name that was only mentioned before the table must agree with these. Raises Unusable.
    """
    name = plain_name(test.name)
    if not (test.is_sure and name):
        possible = _possible(test, ranks)
        if name not in possible:
            if not possible and name in COLLECTIVES:
                _check_factor(test, COLLECTIVES[name], ranks)
            if len(possible) != 1:
                raise Unusable(
                    "the log does not say which test it is: by its numbers "
                    + (" or ".join(sorted(possible)) or "none that is known")
                )
            name = possible.pop()
    if name not in COLLECTIVES:
        raise Unusable(f"there is no curve for the collective '{name}'")
    _check_factor(test, COLLECTIVES[name], ranks)
    return COLLECTIVES[name]


def plain_name(name: str) -> str:
    """The test of a program name.

    >>> plain_name("/opt/nccl-tests/build/all_reduce_perf_mpi"), plain_name("AllReduce")
    ('all_reduce', 'allreduce')
    """
    plain = re.sub(r"(_test)?_perf(_mpi)?$", "", name.strip().rsplit("/", 1)[-1].lower())
    return COLLECTIVES.get(plain, plain) if "_" in plain else plain


def named_in(file_name: str) -> str:
    """The test that a file is named after, "" where none or several are.

    >>> named_in("2024-nccl_alltoall_2nodes.log"), named_in("all_reduce-all_gather.log")
    ('all_to_all', '')
    """
    plain = re.sub(r"[^a-z]+", "_", file_name.lower())
    found = {collective for name, collective in COLLECTIVES.items() if name in plain}
    return found.pop() if len(found) == 1 else ""


def _bus_factor(test: Test) -> tuple[float, float] | None:
    """Bus factor that the fastest row states, and how far its printed digits leave it open.

    The bus bandwidth times the time over the size: `algbw` of versions before 2020 left out the
    rank's own share of gathered sizes, `busbw` never did.
    """
    best = max(
        (
            (number(half.busbw), number(half.time) * test.unit_s * 1e6, number(row.size))
            for row in test.rows
            for half in (row.out_of_place, row.in_place)
            if half is not None
        ),
        default=None,
    )
    if best is None or best[0] <= _LEAST_GB_PER_S or min(best) <= 0:
        return None
    busbw, time_us, size = best
    return busbw * 1e9 * time_us * 1e-6 / size, 0.01 + 0.01 / busbw + 0.01 / time_us


def _check_factor(test: Test, collective: str, ranks: Ranks) -> None:
    """Raises Unusable where the rows are those of another number of ranks.

    Groups that run at once count with all their ranks, as nccl-tests does.
    """
    stated = _bus_factor(test)
    if stated is None:
        return
    expected = {float(bus_factor(collective, n)) for n in (ranks.ranks, ranks.ranks * ranks.groups)}
    if all(abs(factor / stated[0] - 1) > stated[1] for factor in expected):
        raise Unusable(
            f"the rows have a bus factor of {stated[0]:.3g}, {collective} of {ranks.ranks} ranks "
            f"has {min(expected):.3g}: is the list of ranks that of these rows?"
        )


def _possible(test: Test, ranks: Ranks) -> set[str]:
    """Tests whose bus factor, reduction and root fit the rows; collectives under their own name."""
    n = ranks.ranks
    factors = {name: float(bus_factor(name, n)) for name in set(COLLECTIVES.values())}
    factors |= {"reduce": 1.0, "gather": (n - 1) / n, "scatter": (n - 1) / n}
    possible = set(factors)
    stated = _bus_factor(test)
    if stated is not None:
        ratio, slack = stated
        possible = {name for name in possible if abs(factors[name] / ratio - 1) < slack}
    row = test.rows[0]
    if row.redop is not None:
        unlike = _REDUCING if row.redop.lower() in ("none", "") else set(factors) - _REDUCING
        # Old versions print a reduction for send_recv too.
        possible -= unlike - ({"send_recv"} if row.root is None else set())
    if row.root is not None:
        rooted = number(row.root) >= 0
        possible &= _ROOTED if rooted else set(factors) - _ROOTED
    return possible


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
    for row in test.rows:
        try:
            kept.append(_measured(row, in_place, test.unit_s))
        except Unusable as reason:
            lost.append((row.line, str(reason)))
    return kept, lost


def _measured(row: Row, in_place: bool, unit_s: float) -> Measured:
    wanted, other = (row.out_of_place, row.in_place)[:: -1 if in_place else 1]
    half = wanted or other
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
