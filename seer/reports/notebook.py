"""A forecast as a notebook shows it: HTML with nothing outside it."""

from __future__ import annotations

from html import escape

from seer.forecast import Forecast
from seer.reports.text import NOISE, PARTS
from seer.units import format_bytes, format_count, format_seconds

_BAR = "display:inline-block;height:0.8em;background:#4c78a8;"


def forecast_html(forecast: Forecast) -> str:
    """Headline, where the time goes, and memory."""
    job = forecast.job
    capacity = job.cluster.device.memory_bytes
    fits = "" if forecast.fits else " <b style='color:#c00'>does not fit</b>"
    facts = [
        (
            "iteration time",
            f"<b>{format_seconds(forecast.iteration_time_s)}</b>{_interval(forecast)}",
        ),
        (
            "throughput",
            f"{format_count(forecast.tokens_per_s)} tokens/s, "
            f"{forecast.tokens_per_s / job.gpus:,.0f} per GPU, "
            f"MFU {forecast.model_flops_utilization:.1%}",
        ),
        (
            "memory",
            f"{format_bytes(float(forecast.peak_bytes.max()))} of {format_bytes(capacity)}{fits}",
        ),
    ]
    title = f"{job.name}: {job.model.name} on {job.gpus:,} x {job.cluster.device.name}"
    head = "".join(f"<tr><th style='text-align:left'>{k}</th><td>{v}</td></tr>" for k, v in facts)
    return (
        f"<div><b>{escape(title)}</b><table>{head}</table><table>{_parts(forecast)}</table></div>"
    )


def _interval(forecast: Forecast) -> str:
    if forecast.interval_s is None:
        return ""
    low, high = map(format_seconds, forecast.interval_s)
    return f", 90 % interval {low} to {high}"


def _parts(forecast: Forecast) -> str:
    rows = []
    for key, label, meaning in PARTS:
        share = getattr(forecast.breakdown, key) / forecast.iteration_time_s
        share = share if share > NOISE else 0.0
        bar = f"<span style='{_BAR}width:{share * 20:.2f}em'></span>"
        time = format_seconds(share * forecast.iteration_time_s)
        rows.append(
            f"<tr title='{escape(meaning)}'><th style='text-align:left'>{escape(label)}</th>"
            f"<td>{time}</td><td>{share:.1%}</td><td style='text-align:left'>{bar}</td></tr>"
        )
    return "".join(rows)
