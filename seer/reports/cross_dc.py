"""A job over several sites: as JSON, as a table, and what it says in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console

from seer.reports.whatif_tables import print_lines, print_table
from seer.units import format_bytes, format_seconds
from seer.whatif.cross_dc import CrossDc, Spanned

SCHEMA = "seer.whatif.cross-dc/1"
HOLDS = 0.99
"""Efficiency above which a dimension is said to hold."""


def to_json(found: CrossDc) -> dict[str, Any]:
    """Plain data with the keys of the contract."""
    volumes = found.volumes
    return {
        "schema": SCHEMA,
        "job": found.job.name,
        "sites": found.sites,
        "site_gpus": found.site_gpus,
        "one_site_s": found.one_site_s,
        "rows": [asdict(row) for row in found.rows],
        "best": [
            {
                "oversubscription": ratio,
                "distance_km": distance,
                "pooling": pooling,
                "dimension": row.dimension,
            }
            for (ratio, distance, pooling), row in found.best().items()
        ],
        "volumes": {
            "tokens": volumes.tokens,
            "crossover_tokens": volumes.crossover_tokens,
            "pp_bytes": volumes.pp_bytes,
            "dp_bytes": volumes.dp_bytes,
            "zero_bytes": volumes.zero_bytes,
        },
        "reading": reading(found),
        "left_out": list(found.left_out),
        "assumptions": list(found.assumptions),
    }


def print_cross_dc(found: CrossDc, console: Console) -> None:
    """The table and its reading."""
    title = (
        f"{found.job.name} over {found.sites} sites of {found.site_gpus:,} GPUs; "
        f"on one site {format_seconds(found.one_site_s)}"
    )
    heads = ("spans", "up-links", "ratio", "km", "step", "efficiency", "exposed", "bytes", "link")
    print_table(title, heads, map(_cells, found.rows), console, left=2)
    print_lines(reading(found), console)
    console.print()
    print_lines((f"assumed: {text}" for text in found.assumptions), console, "dim")
    print_lines((f"left out: {text}" for text in found.left_out), console, "dim")


def _cells(row: Spanned) -> tuple[str, ...]:
    return (
        row.dimension,
        row.pooling,
        f"{row.oversubscription:g}:1",
        f"{row.distance_km:g}",
        format_seconds(row.iteration_time_s) + ("" if row.fits else " *"),
        f"{row.efficiency:.1%}",
        format_seconds(row.exposed_s),
        format_bytes(row.bytes_across_per_step),
        f"{row.link_share:.1%}",
    )


def reading(found: CrossDc) -> list[str]:
    """What the table says, in a few sentences."""
    lines = [_bytes_sentence(found), *_turns(found), *_holding(found), *_best(found)]
    zero = [row for row in found.rows if row.dimension == "zero"]
    others = [row for row in found.rows if row.dimension == "dp"]
    if zero and others and others[0].bytes_across_per_step > 0:
        times = zero[0].bytes_across_per_step / others[0].bytes_across_per_step
        lines.append(
            f"ZeRO-3 moves parameters and gradients in every micro-batch: {times:.0f} times the "
            "bytes of dp here."
        )
    if any(not row.fits for row in found.rows):
        lines.append("* does not fit memory.")
    return lines


def _bytes_sentence(found: CrossDc) -> str:
    volumes = found.volumes
    tokens, crossover = volumes.tokens / 1e6, volumes.crossover_tokens / 1e6
    light, heavy, sign = ("dp", "pp", ">") if tokens > crossover else ("pp", "dp", "<=")
    return (
        f"In bytes {light} is lighter than {heavy} here: T = {tokens:.2f} M tokens a step {sign} "
        f"N / h = {crossover:.2f} M. A cut of the pipeline passes T h = "
        f"{format_bytes(volumes.pp_bytes)} in 16 bits, data parallelism N = "
        f"{format_bytes(volumes.dp_bytes)}, ZeRO-3 at least 3 N = "
        f"{format_bytes(volumes.zero_bytes)}."
    )


def _turns(found: CrossDc) -> Iterator[str]:
    """What virtual stages make of the bytes of a pipeline."""
    chunks = found.job.parallelism.vpp
    across = {row.dimension: row.bytes_across_per_step for row in found.rows}
    if chunks > 1 and "pp" in across:
        yield (
            f"With {chunks} virtual stages the pipeline crosses the cut {2 * chunks - 1} times, so "
            f"that pp passes {format_bytes(across['pp'])} here; vpp 1 crosses it once."
        )


def _holding(found: CrossDc) -> Iterator[str]:
    """Up to which oversubscription each dimension keeps its efficiency."""
    for dimension in dict.fromkeys(row.dimension for row in found.rows):
        for pooling in dict.fromkeys(row.pooling for row in found.rows):
            far = max(row.distance_km for row in found.rows)
            same = [
                row
                for row in found.rows
                if (row.dimension, row.pooling, row.distance_km) == (dimension, pooling, far)
            ]
            held = [row.oversubscription for row in same if row.efficiency >= HOLDS]
            worst = min(same, key=lambda row: (row.efficiency, -row.oversubscription))
            if len(same) > 1 and max(row.efficiency for row in same) - worst.efficiency < 5e-4:
                yield (
                    f"{dimension} with {pooling} up-links keeps {worst.efficiency:.1%} at {far:g} "
                    "km, whatever the oversubscription."
                )
                continue
            upto = f"keeps {HOLDS:.0%} up to {max(held):g}:1" if held else f"is below {HOLDS:.0%}"
            yield (
                f"{dimension} with {pooling} up-links {upto} at {far:g} km; at "
                f"{worst.oversubscription:g}:1 it keeps {worst.efficiency:.1%}."
            )


def _best(found: CrossDc) -> Iterator[str]:
    best = found.best()
    names = dict.fromkeys(row.dimension for row in best.values())
    if len({row.dimension for row in found.rows}) < 2:
        return
    if len(names) == 1:
        yield f"{next(iter(names))} should span: it is the fastest in every row."
        return
    for name in names:
        where = ", ".join(
            f"{ratio:g}:1 at {distance:g} km {pooling}"
            for (ratio, distance, pooling), row in best.items()
            if row.dimension == name
        )
        yield f"{name} is the fastest at {where}."
