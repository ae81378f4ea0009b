"""Pipeline schedules: in which order one stage runs its forward and backward passes.

A schedule is a function (stage, pp, vpp, micro_batches) -> `Order`. Adding one is one function and
one line in `SCHEDULES`. Sources: GPipe (Huang et al. 2019); 1F1B (PipeDream-Flush, Narayanan et al.
2021a); interleaved 1F1B (Narayanan et al., SC 2021, section 2.2, and Megatron-LM's
`forward_backward_pipelining_with_interleaving`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seer.errors import InfeasibleError


@dataclass(frozen=True)
class Order:
    """The program of one stage, one entry per slot, in issue order.

    Attributes
    ----------
    backward : bool[2 * vpp * M]
    chunk : int32[...]
        Which of the stage's model chunks (virtual stage = chunk * pp + stage).
    micro_batch : int32[...]
    """

    backward: NDArray[np.bool_]
    chunk: NDArray[np.int32]
    micro_batch: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.chunk)


def gpipe(stage: int, pp: int, vpp: int, micro_batches: int) -> Order:
    """All forwards, then all backwards."""
    return _with_warmup(pp, vpp, micro_batches, vpp * micro_batches)


def one_f_one_b(stage: int, pp: int, vpp: int, micro_batches: int) -> Order:
    """Warm up with pp - stage - 1 forwards, then alternate, then drain."""
    return _with_warmup(pp, vpp, micro_batches, min(pp - stage - 1, micro_batches))


def interleaved(stage: int, pp: int, vpp: int, micro_batches: int) -> Order:
    """Interleaved 1F1B over vpp chunks; micro-batches must be a multiple of pp.

    Raises InfeasibleError when they are not, as Megatron does.
    """
    if micro_batches % pp:
        raise InfeasibleError(
            f"interleaved 1F1B cannot run {micro_batches} micro-batches on {pp} stages",
            where="parallelism.vpp",
            why="each chunk runs its micro-batches in groups of pp, as in Megatron-LM",
            hint=f"a global batch that gives a multiple of {pp} micro-batches, or vpp=1",
        )
    if micro_batches == pp:
        warmup = vpp * micro_batches
    else:
        warmup = min((pp - stage - 1) * 2 + (vpp - 1) * pp, vpp * micro_batches)
    return _with_warmup(pp, vpp, micro_batches, warmup)


SCHEDULES: dict[str, Callable[[int, int, int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
}


def _with_warmup(pp: int, vpp: int, micro_batches: int, warmup: int) -> Order:
    """`warmup` forwards, then one forward and one backward in turn, then the other backwards.

    Forward k of a stage is chunk (k mod pp*vpp) // pp of micro-batch (k // (pp*vpp)) * pp + k mod
    pp; backward k the same with the chunks reversed. With vpp = 1 both reduce to micro-batch k.
    """
    total = vpp * micro_batches
    k = np.arange(total)
    group = pp if vpp > 1 else 1
    chunk = k % (group * vpp) // group
    micro_batch = k // (group * vpp) * group + k % group
    if vpp > 1 and micro_batches % group:  # only gpipe gets here: chunk by chunk
        chunk, micro_batch = k // micro_batches, k % micro_batches
    # slot of forward k and of backward k
    forward_slot = np.where(k < warmup, k, 2 * k - warmup)
    backward_slot = np.where(k < total - warmup, warmup + 2 * k + 1, total + k)
    slots = np.concatenate([forward_slot, backward_slot])
    order = np.argsort(slots, kind="stable")
    return Order(
        backward=order >= total,
        chunk=np.concatenate([chunk, vpp - 1 - chunk])[order].astype(np.int32),
        micro_batch=np.concatenate([micro_batch, micro_batch])[order].astype(np.int32),
    )
