"""Fits of the published form: throughput as a polynomial in the logarithm of a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from seer.calibration import CurveInfo, Measurements, PolynomialCurve
from seer.calibration.attention_shapes import attention_flop
from seer.fit.validation import Mask, error_summary, held_out_errors

Floats = NDArray[np.float64]

MAX_DEGREE = 5
"""The method does not state a degree; the one with the least held-out error up to this is taken."""


def fit_polynomial(
    table: Measurements,
    key: Mapping[str, str],
    licence: Callable[[str], str],
    date: str,
    degree: int | None = None,
) -> PolynomialCurve:
    """Fit throughput(size); the degree is chosen by hidden sizes unless it is given."""
    resource, size, amount = sizes_of(table)
    rate = amount / table.time_s
    _, groups = np.unique(np.round(np.log(size), 1), return_inverse=True)
    degrees = [degree] if degree is not None else list(range(1, MAX_DEGREE + 1))
    errors = {d: _held_out(size, rate, groups, d) for d in degrees}

    def loss(d: int) -> float:
        known = errors[d][np.isfinite(errors[d])]
        return float(np.abs(known).mean()) if len(known) else float(d)

    best = min(degrees, key=loss)
    coefficients, centre, width = solve(size, rate, best)
    sources = sorted({str(s) for s in table.source})
    info = CurveInfo(
        source=", ".join(sources),
        licence="; ".join(dict.fromkeys(licence(s) for s in sources)),
        date=date,
        form=f"polynomial of degree {best} in log size",
        points=len(table),
        domain={"size": (float(size.min()), float(size.max()))},
        error=error_summary(errors[best], "sizes within a factor 1.1"),
    )
    curve = PolynomialCurve(
        info=info,
        resource=resource,
        kind=table.kind if table.kind != "collective" else str(table["collective"][0]),
        key=dict(key),
        coefficients=coefficients,
        centre=centre,
        width=width,
        lowest=float(rate.min()),
        highest=float(rate.max()),
        spread_log=0.0,
    )
    off = np.log(curve.evaluate(size, amount).time_s / table.time_s)
    return PolynomialCurve(**{**curve.__dict__, "spread_log": round(float(off.std()), 4)})


def sizes_of(table: Measurements) -> tuple[str, Floats, Floats]:
    """(resource, size S, amount): what throughput is fitted against and what it divides."""
    column = table.columns
    if table.kind == "gemm":
        m, n, k, batch = (np.asarray(column[c], np.float64) for c in ("m", "n", "k", "batch"))
        flop = 2.0 * batch * m * n * k
        return "compute", gemm_intensity(m, n, k), flop
    if table.kind == "attention":
        b, h, s, t, d = (
            np.asarray(column[c], np.float64)
            for c in ("batch", "heads", "seq_q", "seq_kv", "head_dim")
        )
        flop = attention_flop(b, h, s, t, d, bool(column["causal"][0]))
        return "compute", attention_intensity(s, t, d), flop
    name = "message_bytes" if table.kind == "collective" else "hbm_bytes"
    size = np.asarray(column[name], np.float64)
    return ("network" if table.kind == "collective" else "memory"), size, size


def gemm_intensity(m: Floats, n: Floats, k: Floats) -> Floats:
    """Arithmetic intensity of one product in FLOP per byte, two-byte elements."""
    return np.asarray(m * n * k / (m * k + k * n + m * n))


def attention_intensity(seq_q: Floats, seq_kv: Floats, head_dim: Floats) -> Floats:
    """Arithmetic intensity of fused attention in FLOP per byte: Q, K, V in and the output out.

    4 s t d FLOP over 2 (2 s d + 2 t d) bytes: the head size cancels, which is why intensity is a
    poor variable here.
    """
    return np.asarray(seq_q * seq_kv / (seq_q + seq_kv) + 0.0 * head_dim)


def solve(size: Floats, rate: Floats, degree: int) -> tuple[Floats, float, float]:
    """Coefficients (increasing power), centre and width; relative errors are minimised.

    >>> size = np.geomspace(1, 100, 7)
    >>> coefficients, centre, width = solve(size, 3.0 + 0.0 * size, 0)
    >>> round(float(coefficients[0]), 9)
    3.0
    """
    logs = np.log(size)
    centre = float(logs.mean())
    width = float(max(np.ptp(logs) / 2, 1e-9))
    powers = ((logs - centre) / width)[:, None] ** np.arange(degree + 1)
    coefficients, *_ = np.linalg.lstsq(powers / rate[:, None], np.ones(len(rate)), rcond=None)
    return np.asarray(coefficients, np.float64), centre, width


def _held_out(size: Floats, rate: Floats, groups: NDArray[np.intp], degree: int) -> Floats:
    def predict(seen: Mask, hidden: Mask) -> tuple[Floats, Floats]:
        coefficients, centre, width = solve(size[seen], rate[seen], degree)
        x = (np.log(size[hidden]) - centre) / width
        value = (x[:, None] ** np.arange(degree + 1)) @ coefficients
        value = np.clip(value, rate[seen].min(), rate[seen].max())
        return np.log(rate[hidden] / value), np.zeros(int(hidden.sum()))

    return held_out_errors(groups, predict)[0]
