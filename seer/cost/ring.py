"""Gathers and reductions to shards go around a ring between nodes: their latency grows with ranks.

NCCL has a tree for an all-reduce; for an all-gather or a reduce-scatter of several ranks a node it
has the ring alone (src/graph/tuning.cc of 2025: NVLS inside a domain, PAT where each node holds one
rank, and that with "still a linear part"). Half an all-reduce, the price of a gather that nobody
measured, is therefore too low where latency counts: 1,024 ranks that gather 400 MB of parameters
wait twice as long for the steps of the ring as for the bytes. Users see it as a bus bandwidth of
reduce-scatter that falls from 360 to 260 GB/s between 4 and 128 nodes of H100 (NVIDIA/nccl issue
1229).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RING_ONLY = frozenset({"all_gather", "reduce_scatter"})


class Protocol(NamedTuple):
    """A ring by one protocol: seconds to start, for a step by NVLink and one by the network."""

    start_s: float
    nvlink_s: float
    network_s: float
    share: float
    """Of the bandwidth."""
    most_bytes_per_s: float
    """Bus bandwidth that it never exceeds between nodes."""


PROTOCOLS = (
    Protocol(6.6e-6, 1.0e-6, 2.7e-6, 0.5, 90e9),
    Protocol(14.0e-6, 1.9e-6, 4.0e-6, 0.92, np.inf),
    Protocol(8.4e-6, 3.4e-6, 14.0e-6, 1.0, np.inf),
)
"""LL, LL128 and Simple: baseLat, hwLat of NVLINK and NET (Ring), the shares of busBw and the larger
of llMaxBws of NCCL's own tuning model (src/graph/tuning.cc). A step inside a node takes at least
the 1 us (LL, LL128) that a ring between nodes has to post each step (getNetOverhead)."""


def ring_floor_s(n_ranks: int, n_nodes: int, ideal_s: Floats, bytes_per_s: float) -> Floats:
    """The least seconds of a gather or a reduction to shards by the best protocol: float64[n].

    Of the n - 1 steps of the ring N - 1 go over the network (tuning.cc: nsteps, nInterSteps).
    `ideal_s` is what the bytes take at `bytes_per_s`, the nominal bus bandwidth of the group.
    """
    far = n_nodes - 1
    near = n_ranks - 1 - far
    times = [
        p.start_s
        + (near * p.nvlink_s + far * p.network_s)
        + ideal_s / min(p.share, p.most_bytes_per_s / bytes_per_s)
        for p in PROTOCOLS
    ]
    return np.asarray(np.min(times, axis=0))
