"""Shapes of attention calls, what their time depends on, and its smooth part.

Shape letters: `b` sequences, `h` heads, `s` query length, `t` key length, `d` head size (the mean
of those of keys and of values).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def attention_flop(
    batch: Floats, heads: Floats, seq_q: Floats, seq_kv: Floats, head_dim: Floats, causal: bool
) -> Floats:
    """Floating-point operations of the forward pass: two products, half of them when causal.

    >>> one = np.array([1.0])
    >>> float(attention_flop(one, one * 2, one * 3, one * 3, one * 5, False)[0])
    360.0
    """
    return 4.0 * batch * heads * seq_q * seq_kv * head_dim * (0.5 if causal else 1.0)


@dataclass(frozen=True)
class AttentionFloor:
    """The smooth part: t = latency + (t_flop^4 + t_depth^4)^(1/4) + t_keys + t_write.

    t_flop = flop / flop_per_s x (1 + ramp_s / keys) x (1 + ramp_d / d), with d padded to the
    kernel's and keys the mean number of keys that a query sees: blocks at the edge of the mask are
    computed whole. t_depth = depth_s x t x (d + ramp_d): one block of queries walks over all keys
    by itself. Beside these t_keys = key_s x b x key heads x t x d: keys and values are read for
    each key head, however few query heads share it; with a window that is most of the time.
    t_write = write_s x b x s x min(key heads x d, 512): some calls first put keys and values into a
    paged cache, one block of so many threads for each token (reshape_and_cache_flash of vLLM's
    csrc/cache_kernels.cu).
    """

    latency_s: float
    flop_per_s: float
    ramp_s: float
    ramp_d: float
    depth_s: float
    key_s: float = 0.0
    write_s: float = 0.0

    def time_s(
        self,
        flop: Floats,
        keys: Floats,
        seq_kv: Floats,
        head_dim: Floats,
        kept: Floats,
        written: Floats,
    ) -> Floats:
        """Seconds."""
        kernel = kernel_head_dim(head_dim)
        work = flop * kernel / head_dim
        rate = work / self.flop_per_s * (1 + self.ramp_s / keys) * (1 + self.ramp_d / kernel)
        depth = self.depth_s * seq_kv * (kernel + self.ramp_d)
        largest = np.maximum(rate, depth)
        total = (rate / largest) ** 4 + (depth / largest) ** 4
        beside = self.key_s * kept * kernel + self.write_s * written
        return np.asarray(self.latency_s + largest * total**0.25 + beside)


WRITERS = 512.0
"""Threads at most that write one token."""


def kernel_head_dim(head_dim: Floats) -> Floats:
    """The head size that the kernel runs: flash attention is built for multiples of 32.

    >>> kernel_head_dim(np.array([64.0, 80.0])).tolist()
    [64.0, 96.0]
    """
    return np.asarray(np.ceil(head_dim / 32.0) * 32.0)


class AttentionShapes(NamedTuple):
    """n shapes; `head_dim` is the mean of the sizes of keys and values, `causal` is bool[n]."""

    batch: Floats
    heads: Floats
    kv_heads: Floats
    seq_q: Floats
    seq_kv: Floats
    head_dim: Floats
    causal: NDArray[np.bool_]

    @staticmethod
    def of(sizes: Sequence[Floats], causal: NDArray[np.bool_]) -> AttentionShapes:
        """From the six sizes in their order, and the mask."""
        batch, heads, kv_heads, seq_q, seq_kv, head_dim = sizes
        return AttentionShapes(batch, heads, kv_heads, seq_q, seq_kv, head_dim, causal)

    def where(self, rows: NDArray[np.bool_]) -> AttentionShapes:
        """The shapes that a mask selects."""
        return AttentionShapes.of([s[rows] for s in self[:-1]], self.causal[rows])

    def places(self) -> Floats:
        """Place of each shape among the lines.

        b x h, d, b, query heads per key head, head size of the kernel, whether the tensors must be
        padded to it (2) or not (1), and the mask (2 = causal).
        """
        shared = self.heads / np.maximum(self.kv_heads, 1)
        kernel = kernel_head_dim(self.head_dim)
        padded = np.where(kernel == self.head_dim, 1.0, 2.0)
        mask = np.where(self.causal, 2.0, 1.0)
        all_heads = self.batch * self.heads
        columns = (all_heads, self.head_dim, self.batch, shared, kernel, padded, mask)
        return np.stack(columns, axis=1)

    def prior_s(self, floor: AttentionFloor) -> Floats:
        """What the smooth part says, seconds."""
        half = np.where(self.causal, 0.5, 1.0)
        flop = half * attention_flop(
            self.batch, self.heads, self.seq_q, self.seq_kv, self.head_dim, False
        )
        kept = self.batch * self.kv_heads * np.maximum(self.seq_q, self.seq_kv)
        threads = np.minimum(self.kv_heads * self.head_dim, WRITERS)
        written = self.batch * self.seq_q * threads
        return floor.time_s(flop, half * self.seq_kv, self.seq_kv, self.head_dim, kept, written)

    def features(self, multiprocessors: int) -> Floats:
        """What the choice and the speed of a kernel depend on: float64[n, FEATURES], logarithms.

        The sizes, their products that count work and outputs, and for blocks of 64, 128 and 256
        queries their number and the time of whole waves of them over that of the work in them.
        """
        all_heads = self.batch * self.heads
        outputs = all_heads * self.seq_q * self.head_dim
        shared = self.heads / np.maximum(self.kv_heads, 1.0)
        columns = [self.batch, self.heads, self.kv_heads, self.seq_q, self.head_dim]
        columns += [all_heads, shared, all_heads * self.seq_q, outputs * self.seq_kv, outputs]
        columns.append(np.where(self.causal, 2.0, 1.0))
        at_once = max(multiprocessors, 1)
        for rows in BLOCKS:
            blocks = np.ceil(self.seq_q / rows) * all_heads
            columns += [blocks, np.ceil(blocks / at_once) * at_once / blocks]
        return np.asarray(np.log(np.maximum(np.stack(columns, axis=1), 1e-9)))


BLOCKS = (64.0, 128.0, 256.0)
"""Queries that one block of a flash-attention kernel works on (tile sizes of flash 2 and 3)."""

FEATURES = 11 + 2 * len(BLOCKS)

PLACE_SCALE = (0.5, 0.5, 0.2, 0.4, 2.0, 2.0, 0.5)
"""Distance weights of the places, by held-out error: how b x h is split matters little."""
