"""`seer whatif`: the same job with other inputs; one module per question."""

from __future__ import annotations

import typer

from seer.cli.whatif import (
    cross_dc,
    nvlink_domain,
    oversubscription,
    placement,
    search,
    straggler,
    sweep,
)


def app() -> typer.Typer:
    """The commands under `seer whatif`."""
    found = typer.Typer(
        help="Ask what would change if the inputs were different.", no_args_is_help=True
    )
    found.command("sweep")(sweep.sweep)
    found.command("search")(search.search)
    found.command("nvlink-domain")(nvlink_domain.nvlink_domain)
    found.command("oversubscription")(oversubscription.oversubscription)
    found.command("cross-dc")(cross_dc.cross_dc)
    found.command("placement")(placement.placement)
    found.command("straggler")(straggler.straggler)
    return found
