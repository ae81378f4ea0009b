"""Which collective a test of nccl-tests ran: by its name, and by what its numbers allow."""

from __future__ import annotations

import re

from seer.calibration.collective import bus_factor
from seer.readers.nccl_records import Ranks, Test, Unusable, number

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

_LEAST_GB_PER_S = 0.5
"""Slower rows are printed with too few digits to tell their bus factor."""

_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_REDUCING = {"all_reduce", "reduce_scatter", "reduce"}


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
