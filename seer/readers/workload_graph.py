"""Workload texts to graphs: one rank stands for all, or every rank is written out."""

from __future__ import annotations

import os

import numpy as np

from seer.errors import InfeasibleError
from seer.graph import COMMUNICATION, OperatorKind
from seer.readers.rank_program import join
from seer.readers.trace_summary import summarise
from seer.readers.traced import Traced, TraceOptions
from seer.readers.workload_text import layout_of, program_of, read_workload_text

MAX_OPERATORS = 20_000_000


def read_workload(
    path: str | os.PathLike[str], options: TraceOptions, *, every_rank: bool = False
) -> Traced:
    """The graph of one iteration of a workload text.

    All ranks do the same, so rank 0 stands for them unless `every_rank`. Raises UnreadableError,
    and UsageError for what the file leaves open.
    """
    text = read_workload_text(path)
    layout = layout_of(text, options)
    first = program_of(text, layout, options)
    ranks = layout.gpus if every_rank else 1
    if ranks * len(first.operators) > MAX_OPERATORS:
        raise InfeasibleError(
            f"{ranks:,} ranks of {len(first.operators):,} operators are too many to write out",
            where=text.where,
            hint="state fewer ranks: --gpus",
        )
    programs = [first] + [program_of(text, layout, options, r) for r in range(1, ranks)]
    groups = {
        o.group: layout.members(o.group.partition("@")[0], p.rank)
        for p in programs
        for o in p.operators
        if o.group
    }
    graph = join(programs, groups, ranks=layout.gpus)
    notes = list(layout.notes)
    if options.look and not (options.gpus or text.number("all_gpus")):
        notes.append("how many GPUs it runs on is not in the file: --gpus will be asked for")
    empty = np.isin(graph.work.kind, [int(k) for k in COMMUNICATION]) & ~(
        graph.work.message_bytes > 0
    )
    if empty.any():
        notes.append(f"{empty.sum():,} communications state no bytes: they will be asked for")
    if any(o.kind is OperatorKind.fixed for o in first.operators):
        notes.append(
            f"one unit of computation is taken as {options.compute_unit_s * 1e9:g} ns "
            "(--given compute-unit=us), on whatever hardware the text was made for"
        )
    summary = summarise(
        graph,
        name=os.fspath(path),
        format="SimAI workload text" if text.simai else "ASTRA-sim workload text",
        ranks=ranks,
        world_ranks=options.gpus or text.number("all_gpus") or (0 if options.look else layout.gpus),
        warnings=notes,
    )
    return Traced(graph, groups, summary)
