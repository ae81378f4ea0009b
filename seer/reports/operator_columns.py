"""The distinct operators of a forecast by column, for data frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from seer.explain import HIDDEN_KINDS, seconds_by_work
from seer.forecast import Forecast
from seer.graph import DType, OperatorKind, Origin, Pass

_PLAIN = ("m", "n", "k", "batch", "heads", "kv_heads", "flop", "hbm_bytes", "message_bytes")


def operator_columns(forecast: Forecast) -> dict[str, list[Any]]:
    """One row for each distinct operator, those that keep the reported rank busy longest first.

    `time_s` is the duration of one, `count` how often that rank runs it in a step, `total_s` both
    together and `share` that over the iteration time (streams run side by side: shares add up to
    more than one). `spread` is the standard deviation of log(time), None when unknown.
    """
    work, pricing = forecast.plan.work, forecast.pricing
    total_s = seconds_by_work(forecast)
    hidden = np.isin(work.kind, [int(kind) for kind in HIDDEN_KINDS])
    rows = [w for w in np.argsort(-total_s, kind="stable").tolist() if not hidden[w]]
    time_s = pricing.time_s[rows]
    count = np.divide(total_s[rows], time_s, out=np.zeros(len(rows)), where=time_s > 0)
    spread = pricing.spread[rows]
    return {
        "name": [work.name[w] for w in rows],
        "kind": [OperatorKind(work.kind[w]).name for w in rows],
        "dtype": [DType(work.dtype[w]).name for w in rows],
        "train_pass": [Pass(work.train_pass[w]).name for w in rows],
        "group": [work.group[w] for w in rows],
        "group_ranks": work.group_ranks[rows].tolist(),
        **{column: getattr(work, column)[rows].tolist() for column in _PLAIN},
        "time_s": time_s.tolist(),
        "count": np.round(count, 6).tolist(),
        "total_s": total_s[rows].tolist(),
        "share": (total_s[rows] / forecast.iteration_time_s).tolist(),
        "origin": [Origin(pricing.origin[w]).name for w in rows],
        "spread": [None if np.isnan(value) else float(value) for value in spread],
    }
