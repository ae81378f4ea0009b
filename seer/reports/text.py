"""A forecast for a person at a terminal: at most 100 columns."""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from seer.forecast import Forecast
from seer.units import format_bytes, format_count, format_seconds
from seer.workload.launches import host_model

BAR_WIDTH = 40
BESIDE_BAR, LEAST_BAR = 42, 8
"""Columns that the figures beside a bar take; below the second a bar says nothing."""

NOISE = 1e-9
"""Shares below this are rounding of sums of floats."""

PARTS = (
    ("compute_s", "compute", "kernels of the model"),
    ("exposed_communication_s", "exposed communication", "communication with no compute beside it"),
    ("bubble_s", "pipeline bubble", "waiting for a pipeline message"),
    ("optimizer_s", "optimizer", "Adam step"),
    ("host_s", "host", "waiting for launches of the host thread"),
    ("other_s", "other", "waiting for a slower member, and the rest"),
)


def print_forecast(forecast: Forecast, console: Console) -> None:
    """Headline, where the time goes, communication, memory, and how much of it is measured."""
    console.print(_headline(forecast))
    console.print()
    console.print(
        Group(_breakdown(forecast, console.width), Text(), _communication(forecast), Text())
    )
    console.print(_memory(forecast))
    console.print(_coverage(forecast))
    for note in forecast.job.notes:
        console.print(Text(f"note: {note}", style="dim"))


def _headline(forecast: Forecast) -> Text:
    job, _parallelism = forecast.job, forecast.job.parallelism
    text = Text()
    text.append(f"{job.name}\n", style="bold")
    text.append(
        f"{job.model.name} on {job.gpus:,} x {job.cluster.device.name}: {_split(forecast)}\n"
        f"{job.micro_batches} micro-batches of {job.training.micro_batch}, "
        f"{job.training.sequence_length:,} tokens each, {job.training.precision}, "
        f"recompute {job.training.recompute}, {job.framework.name}\n",
        style="dim",
    )
    text.append("\niteration time  ")
    text.append(format_seconds(forecast.iteration_time_s), style="bold green")
    if forecast.interval_s:
        low, high = forecast.interval_s
        text.append(f"   90 % interval {format_seconds(low)} to {format_seconds(high)}")
    text.append(
        f"\nthroughput      {format_count(forecast.tokens_per_s)} tokens/s, "
        f"{forecast.tokens_per_s / job.gpus:,.0f} per GPU, "
        f"MFU {forecast.model_flops_utilization:.1%}"
    )
    return text


def _split(forecast: Forecast) -> str:
    """The parallelism in the field's words; dimensions of one are left out."""
    p = forecast.job.parallelism
    sizes = {"tp": p.tp, "cp": p.cp, "pp": p.pp, "vpp": p.vpp, "dp": p.dp, "ep": p.ep}
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name in ("tp", "dp")]
    words += ["sequence parallel"] * p.sequence_parallel + [f"zero {p.zero}"] * (p.zero > 0)
    words += [p.schedule] * (p.pp > 1 and p.schedule not in ("1f1b", "interleaved"))
    return ", ".join(words)


def _breakdown(forecast: Forecast, width: int) -> Table:
    longest = min(BAR_WIDTH, width - BESIDE_BAR)
    has_bars = longest >= LEAST_BAR
    table = Table(box=None, pad_edge=False, title="Where the time goes", title_justify="left")
    table.add_column("part")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    if has_bars:
        table.add_column("", width=longest)
    for key, label, _ in PARTS:
        share = getattr(forecast.breakdown, key) / forecast.iteration_time_s
        share = share if share > NOISE else 0.0
        seconds = share * forecast.iteration_time_s
        cells = [label, format_seconds(seconds), f"{share:.1%}"]
        table.add_row(*cells, *(["█" * round(share * longest)] if has_bars else []))
    return table


def _communication(forecast: Forecast) -> Table:
    table = Table(box=None, pad_edge=False, title="Communication", title_justify="left")
    table.add_column("group")
    for column in ("in progress", "exposed", "hidden"):
        table.add_column(column, justify="right")
    for group, (total, exposed) in sorted(forecast.communication.items()):
        hidden = max(0.0, 1 - exposed / total) if total else 0.0
        table.add_row(group, format_seconds(total), format_seconds(exposed), f"{hidden:.0%}")
    return table


def _memory(forecast: Forecast) -> Text:
    capacity = forecast.job.cluster.device.memory_bytes
    peak = float(forecast.peak_bytes.max())
    text = Text("memory          ")
    text.append(
        f"{format_bytes(peak)} of {format_bytes(capacity)} on the heaviest rank"
        + ("" if forecast.fits else ": DOES NOT FIT"),
        style="" if forecast.fits else "bold red",
    )
    parts = ", ".join(
        f"{name.removesuffix('_bytes')} {format_bytes(size)}"
        for name, size in forecast.memory_parts.items()
    )
    text.append(f"\n                {parts}", style="dim")
    return text


def _coverage(forecast: Forecast) -> Text:
    text = Text("durations       ")
    shares = [
        f"{share:.0%} {origin}" for origin, share in forecast.coverage.items() if share >= 0.005
    ]
    text.append(", ".join(shares) + " (share of busy time)")
    text.append(
        f"\ncalibration     {forecast.calibration.name}, {forecast.calibration.burst}, "
        f"{forecast.calibration.date}"
    )
    text.append(f"\nhost            {host_model(forecast.job)}")
    text.append(f"\noperators       {forecast.operators:,} stand behind this answer")
    return text
