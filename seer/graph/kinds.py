"""The words of the operator graph: kinds, data types, passes, and where a duration came from."""

from __future__ import annotations

from enum import IntEnum


class OperatorKind(IntEnum):
    """What an operator is. The lower-case name is the word used in every file and column."""

    gemm = 0
    grouped_gemm = 1
    attention = 2
    memory = 3
    optimizer = 4
    all_reduce = 5
    all_gather = 6
    reduce_scatter = 7
    all_to_all = 8
    broadcast = 9
    send_recv = 10
    dispatch = 11
    combine = 12
    host = 13
    memcpy = 14
    fixed = 15
    segment = 16
    """A collapsed piece of a rank's program (see `seer.workload`); its duration is its own play."""


COLLECTIVES = frozenset(
    {
        OperatorKind.all_reduce,
        OperatorKind.all_gather,
        OperatorKind.reduce_scatter,
        OperatorKind.all_to_all,
        OperatorKind.broadcast,
        OperatorKind.dispatch,
        OperatorKind.combine,
    }
)
COMMUNICATION = COLLECTIVES | {OperatorKind.send_recv}
PLAIN_DISPATCH = "alltoall"
"""The variant of a dispatch or combine that sends every copy of a token: an all-to-all."""
HYBRID_DISPATCH = "hybridep"
"""The variant of a dispatch or combine by the kernels of NVIDIA's HybridEP; "" is DeepEP."""

GEMMS = (OperatorKind.gemm, OperatorKind.grouped_gemm)
MATRIX = (*GEMMS, OperatorKind.attention)
"""What runs on the tensor cores, at the clock that a power-limited device can sustain."""
COMPUTE = frozenset(
    {
        OperatorKind.gemm,
        OperatorKind.grouped_gemm,
        OperatorKind.attention,
        OperatorKind.memory,
        OperatorKind.memcpy,
    }
)


LAUNCH = "launch"
"""The variant of what a host thread does to launch operators."""

TO_HOST, FROM_HOST = "d2h", "h2d"
"""Groups of the copies between a device and its host: each direction has a stream of its own."""


class DType(IntEnum):
    """Element type of an operator's main operands."""

    none = 0
    fp32 = 1
    fp16 = 2
    bf16 = 3
    fp8 = 4
    """Scaled per tensor or per row."""
    fp8_block = 5
    mxfp8 = 6
    nvfp4 = 7

    @property
    def size_bytes(self) -> float:
        """Bytes of one element, scales apart."""
        return (0, 4, 2, 2, 1, 1, 1, 0.5)[self]


class Pass(IntEnum):
    """Which pass of training an operator belongs to; `dgrad` and `wgrad` together are backward."""

    none = 0
    forward = 1
    dgrad = 2
    wgrad = 3
    backward = 4
    """Backward of operators that are not split (attention, normalisation)."""


class Origin(IntEnum):
    """Where a duration came from, best first."""

    measured = 0
    interpolated = 1
    extrapolated = 2
    derived = 3
    assumed = 4


WORK_WORDS: dict[str, type[OperatorKind] | type[DType] | type[Pass]] = {
    "kind": OperatorKind,
    "dtype": DType,
    "train_pass": Pass,
}
"""Columns of the work table whose numbers are words in files."""
