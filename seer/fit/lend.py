"""Operators that nobody measured on a device, from those of its relatives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from seer.calibration import AttentionCurve, LawCurve, Measurements, MemoryCurve, Spread
from seer.fit.attention import fit_attention
from seer.fit.names import stem_of
from seer.fit.tables import parts

LENT_SPREAD = 0.15
"""Standard deviation of log(time) that lending adds. The one kernel measured on five devices (bf16
to fp8 conversion, 885 shapes) lands 3 to 20 % off when it is lent from one to another."""


def lend_memory(
    own: Sequence[MemoryCurve],
    theirs: Mapping[str, Sequence[MemoryCurve]],
    device: str,
    hbm_bytes_per_s: Mapping[str, float],
) -> Iterator[MemoryCurve]:
    """Curves of relatives for operators and passes without a curve of their own.

    What exceeds the launch floor scales with nominal memory bandwidth, that of chains of eager
    kernels as a chain that both devices measured (`chain_ratio`), that of their strided kernels
    alone as those of this chain (`strided_ratio`). The first relative that measured an operator
    lends it, all its implementations.

    Parameters
    ----------
    own : curves of the device
    theirs : curves by relative (key of `hbm_bytes_per_s`), nearest relative first
    device : str
        Key of `hbm_bytes_per_s`.
    hbm_bytes_per_s : nominal bandwidth by device
    """
    held = list(own)
    for name, curves in theirs.items():
        known = {(c.variant, c.train_pass) for c in held}
        ratio = hbm_bytes_per_s[name] / hbm_bytes_per_s[device]
        chain = chain_ratio(held, curves)
        for curve in [c for c in curves if (c.variant, c.train_pass) not in known]:
            if chain and curve.variant == STRIDED:
                strided = strided_ratio(held, curves)
                lent = scaled(curve, strided, name, f"as strided kernels of {CHAIN} go")
            elif chain and is_chain(curve.variant):
                lent = scaled(curve, chain, name, f"as chains of {CHAIN} go")
            else:
                lent = scaled(curve, ratio, name)
            held.append(lent)
            yield lent


CHAIN = "complex_rope"
"""The chain of eager kernels by which others are lent: casts and one product of strided tensors."""


STRIDED = "eager"
"""Kernels of PyTorch on strided or broadcast tensors, whatever they compute."""

PRODUCT_BYTES, CHAIN_BYTES = 8.0, 4.0
"""Bytes for each element that the complex product of the chain moves (4 read, 4 written), and those
of its ideal traffic, by which its times are kept."""


def is_chain(variant: str) -> bool:
    """Whether a variant is several PyTorch kernels where others are one."""
    return variant == STRIDED or variant.endswith("_eager")


def chain_ratio(mine: Sequence[MemoryCurve], theirs: Sequence[MemoryCurve]) -> float:
    """Time of one chain of eager kernels on a device over that on a relative; 0 if not measured.

    Kernels of PyTorch on strided or broadcast tensors load one element per thread
    (launch_legacy_kernel of aten/src/ATen/native/cuda/CUDALoops.cuh) and wait for latency, not for
    bandwidth: on B200 rotary positions take 13.5 ps per element, be it of 10 million elements that
    lie in its cache, or of 84 million. So they do not gain what bandwidth gains (B200 over H100:
    1.43 beside 2.39). The ratio is taken beyond the launch, at the largest traffic of both.
    """
    beyond = _chain_s(mine, theirs)
    return beyond[1] / beyond[2] if beyond else 0.0


def strided_ratio(mine: Sequence[MemoryCurve], theirs: Sequence[MemoryCurve]) -> float:
    """Time of a strided kernel on a device over that on a relative; 0 if their chain is unknown.

    The chain is two casts, a strided kernel each, and a product of complex numbers, which has half
    as many elements and streams where that takes longer: t = 2 s + max(s / 2, streamed). By this
    B200 takes 0.83 of the time of H100 (their multiprocessors times clocks: 0.9), by the chain
    with its stream 0.70. On H100 the same two times, s and the stream, give the silu of a half and
    its product with the other (Liger-Kernel) within 6 %, forward and backward, and the chain's own
    backward.
    """
    beyond = _chain_s(mine, theirs)
    if not beyond:
        return 0.0
    moved = np.array([beyond[0] * PRODUCT_BYTES / CHAIN_BYTES])
    times = []
    for curves, chain_s in ((mine, beyond[1]), (theirs, beyond[2])):
        plain = _find(curves, "generic")
        streamed = float(plain.evaluate(moved).time_s[0] - plain.floor_s) if plain else 0.0
        times.append(min((chain_s - streamed) / 2.0, chain_s / 2.5))
    return times[0] / times[1] if min(times) > 0.0 else 0.0


def _find(curves: Sequence[MemoryCurve], variant: str) -> MemoryCurve | None:
    """The forward curve of a variant."""
    named = (c for c in curves if (c.variant, c.train_pass) == (variant, "forward"))
    return next(named, None)


def _chain_s(
    mine: Sequence[MemoryCurve], theirs: Sequence[MemoryCurve]
) -> tuple[float, float, float] | None:
    """Bytes, and the chain's seconds on both beyond the launch; None if one did not measure it."""
    one, two = _find(mine, f"{CHAIN}_eager"), _find(theirs, f"{CHAIN}_eager")
    if one is None or two is None:
        return None
    size = min(one.info.domain["hbm_bytes"][1], two.info.domain["hbm_bytes"][1])
    here, there = (float(c.evaluate(np.array([size])).time_s[0] - c.floor_s) for c in (one, two))
    return (size, here, there) if min(here, there) > 0.0 else None


def lend_attention(
    boards: Sequence[Measurements],
    known: Collection[str],
    form: str,
    licence: Callable[[str], str],
    date: str,
    multiprocessors: int,
) -> Iterator[AttentionCurve]:
    """Attention of other boards with the same chip (another power limit or memory), as it is but
    less certain. Kernels in `known` need no lender."""
    for table in boards:
        if table.kind == "attention":
            for part in parts(table):
                if str(part["kernel"][0]) in known:
                    continue
                curve = fit_attention(part, form, licence, date, multiprocessors=multiprocessors)
                whose = stem_of(table.file)
                note = f"measured on {whose}, another board with this chip"
                info = replace(curve.info, notes=(*curve.info.notes, note))
                spread = less_certain(curve.spread)
                yield replace(curve, measured_on=whose, spread=spread, info=info)


def lent_law(curve: LawCurve, measured_on: str) -> LawCurve:
    """A law of a relative with the same peaks and links, as it is but less certain."""
    note = f"measured on {measured_on}"
    return replace(
        curve,
        spread=less_certain(curve.spread),
        info=replace(curve.info, notes=(*curve.info.notes, note)),
    )


def less_certain(spread: Spread) -> Spread:
    """A spread with that of lending in quadrature."""
    near = round(float(np.hypot(spread.near, LENT_SPREAD)), 4)
    return Spread(max(spread.repeat, LENT_SPREAD), near, spread.slope)


def scaled(
    curve: MemoryCurve, ratio: float, measured_on: str, why: str = "nominal memory bandwidths"
) -> MemoryCurve:
    """The curve with its time beyond the launch floor multiplied by `ratio`."""
    beyond = np.maximum(curve.knot_time_s - curve.floor_s, 0.0)
    note = f"times of {measured_on} beyond the launch, x {ratio:.3f} ({why})"
    return replace(
        curve,
        knot_time_s=curve.floor_s + beyond * ratio,
        row_s_per_column=curve.row_s_per_column * ratio,
        stream=curve.stream.slower(ratio, ratio if is_chain(curve.variant) else 1.0)
        if curve.stream
        else None,
        measured_on=measured_on,
        spread=less_certain(curve.spread),
        info=replace(curve.info, notes=(*curve.info.notes, note)),
    )
