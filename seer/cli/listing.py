"""`seer list`: names, and one line for each."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from seer.cli.options import DebugOption, JsonOption, QuietOption
from seer.cli.output import Output, print_json

SCHEMA = "seer.list/1"


class Kind(StrEnum):
    """What can be listed."""

    jobs = "jobs"
    models = "models"
    clusters = "clusters"
    calibrations = "calibrations"
    frameworks = "frameworks"


KindArgument = Annotated[Kind | None, typer.Argument(help="One kind only.")]


def list_names(
    kind: KindArgument = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """List the jobs, models, clusters, calibrations and frameworks that are shipped.

    Example: seer list models
    """
    from seer.readers import shipped
    from seer.readers.files import read_structured

    tables = {
        one.value: [
            {"name": name, "description": _LINES[one](read_structured(shipped.find(one, name)))}
            for name in shipped.names(one)
        ]
        for one in ([kind] if kind else list(Kind))
    }
    if json:
        print_json({"schema": SCHEMA, **tables})
        return
    from rich.markup import escape
    from rich.table import Table

    console = Output(quiet).console()
    for title, rows in tables.items():
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        table.add_column("name", no_wrap=True)
        table.add_column("what it is")
        for row in rows:
            table.add_row(escape(row["name"]), escape(row["description"]))
        console.print(table)
        console.print()


def _job(spec: dict[str, Any]) -> str:
    return str(spec.get("description") or f"{spec.get('model')} on {spec.get('cluster')}")


def _model(spec: dict[str, Any]) -> str:
    from seer.readers.specs import read_model
    from seer.units import format_count

    model = read_model(spec)
    return (
        f"{format_count(model.parameters)} parameters: {model.layers} layers, "
        f"hidden {model.hidden}, {model.heads} heads, {model.activation}"
    )


def _cluster(spec: dict[str, Any]) -> str:
    from seer.readers.specs import read_cluster
    from seer.units import format_rate

    cluster = read_cluster(spec)
    inside, outside = (
        format_rate(tier.bandwidth_bytes_per_s, "B/s") for tier in (cluster.nvlink, cluster.network)
    )
    return (
        f"{cluster.devices_per_node} x {cluster.device.name} per node, per GPU and direction "
        f"{inside} inside, {outside} outside"
    )


def _calibration(spec: dict[str, Any]) -> str:
    return f"{len(spec['curves'])} curves of {spec['device']}, {spec['burst']}, {spec['date']}"


def _framework(spec: dict[str, Any]) -> str:
    return str(spec.get("source", "")).split(": ")[0]


_LINES: dict[Kind, Callable[[dict[str, Any]], str]] = {
    Kind.jobs: _job,
    Kind.models: _model,
    Kind.clusters: _cluster,
    Kind.calibrations: _calibration,
    Kind.frameworks: _framework,
}
