"""From a number back to the curve and the measured points it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.calibration import CurveInfo
from seer.cost.price import least_s
from seer.errors import UsageError, nearest
from seer.forecast import Forecast
from seer.graph import DType, OperatorKind, Origin, Pass
from seer.timeline.rank_view import RankView

Floats = NDArray[np.float64]

HIDDEN_KINDS = (OperatorKind.segment, OperatorKind.fixed)


@dataclass(frozen=True)
class Explanation:
    """One operator of a forecast, with its price traced to its source.

    Attributes
    ----------
    name : str
    work : mapping
        The row of the work table (shape, flop, bytes, group); kind, dtype and train_pass by name.
    time_s : float
        Duration of one.
    count : float
        How often the reported rank runs it in one iteration, transfers that it receives included;
        0 = it runs on another stage.
    share : float
        Of the iteration time.
    origin : str
    spread : float
        Standard deviation of log(time), NaN when unknown.
    bound_s : float
        The physical bound that pricing holds it to: flop over peak, bytes over nominal HBM
        bandwidth (unless the cache may serve them), message over the links; 0 = none.
    achieved : mapping
        flop_per_s and hbm_bytes_per_s, or bytes_per_s of a message.
    curve : CurveInfo or None
    nearest_points : tuple of mappings
        Measured points closest to this shape.
    """

    name: str
    work: Mapping[str, Any]
    time_s: float
    count: float
    share: float
    origin: str
    spread: float
    bound_s: float
    achieved: Mapping[str, float]
    curve: CurveInfo | None
    nearest_points: tuple[Mapping[str, Any], ...]


def operator_names(forecast: Forecast) -> list[str]:
    """Names that `explain` knows, those that take most time first."""
    seconds = seconds_by_work(forecast)
    work = forecast.plan.work
    order = np.argsort(-seconds, kind="stable")
    visible = [w for w in order.tolist() if OperatorKind(work.kind[w]) not in HIDDEN_KINDS]
    return list(dict.fromkeys(work.name[w] for w in visible))


def explain(forecast: Forecast, operator: str, points: int = 5) -> tuple[Explanation, ...]:
    """Explain every distinct work whose name is or contains `operator`.

    Raises UsageError, with the nearest names, when none does.
    """
    work = forecast.plan.work
    names = operator_names(forecast)
    wanted = [n for n in names if n == operator] or [n for n in names if operator in n]
    if not wanted:
        raise UsageError(
            f"no operator of this job is called '{operator}'",
            where=forecast.job.name,
            hint=nearest(operator, [*names, *(word for name in names for word in name.split())]),
        )
    seconds = seconds_by_work(forecast)
    rows = [w for w in range(len(work)) if work.name[w] in wanted]
    pricing = forecast.pricing
    bound = least_s(work, forecast.calibration, forecast.job.cluster, pricing.curve, pricing.origin)
    return tuple(
        _explain_row(forecast, w, float(seconds[w]), float(bound[w]), points) for w in rows
    )


def seconds_by_work(forecast: Forecast) -> Floats:
    """Seconds that each work row keeps a stream of the reported rank busy. float64[W].

    What sits in a stream of that rank counts, whoever owns it: a transfer keeps its receiver busy
    as long as its sender, so the rows of a group add up to the total of its communication.
    """
    played, n_rows = forecast.played, len(forecast.plan.work)
    view = RankView.of(played.graph, played.timeline, forecast.rank)
    seconds = np.zeros(n_rows)
    seconds += np.bincount(view.work_id, weights=view.duration_s, minlength=n_rows)
    counts = np.bincount(view.work_id, minlength=n_rows)
    for row, (graph, timeline) in played.segments.items():
        seconds[row] = 0.0
        inner = np.bincount(graph.work_id, weights=timeline.duration_s, minlength=n_rows)
        seconds += counts[row] * inner
    return seconds


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "kind": OperatorKind(row["kind"]).name,
        "dtype": DType(row["dtype"]).name,
        "train_pass": Pass(row["train_pass"]).name,
    }
    return {**row, **names}


def _explain_row(
    forecast: Forecast, w: int, seconds: float, bound_s: float, points: int
) -> Explanation:
    pricing = forecast.pricing
    row = forecast.plan.work.row(w)
    time_s = float(pricing.time_s[w])
    rates = {
        "flop_per_s": row["flop"],
        "hbm_bytes_per_s": row["hbm_bytes"],
        "message_bytes_per_s": row["message_bytes"],
    }
    curve = int(pricing.curve[w])
    found = forecast.calibration.curves[curve] if curve >= 0 else None
    return Explanation(
        name=row["name"],
        work=_named(row),
        time_s=time_s,
        count=seconds / time_s if time_s else 0.0,
        share=seconds / forecast.iteration_time_s,
        origin=Origin(pricing.origin[w]).name,
        spread=float(pricing.spread[w]),
        bound_s=bound_s,
        achieved={k: v / time_s for k, v in rates.items() if v and time_s},
        curve=found.info if found else None,
        nearest_points=tuple(found.nearest_points(row, points)) if found else (),
    )
