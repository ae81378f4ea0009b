"""Nodes that `seer trace convert` wrote: their attributes hold what Chakra has no field for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from seer.errors import UnreadableError
from seer.graph import WORK_COLUMNS, OperatorKind
from seer.graph.kinds import WORK_WORDS
from seer.readers.chakra.nodes import Node, NodeType
from seer.readers.rank_program import RankOperator


def own_operator(node: Node, group: str, where: str) -> RankOperator:
    """The operator of a node without its dependencies. Raises UnreadableError."""
    attributes = node.attributes
    try:
        work = json.loads(attributes["seer_work"])
        rest = json.loads(attributes.get("seer_operator", "{}"))
        kind = OperatorKind[work.pop("kind")]
        name = str(work.pop("name"))
        columns = {key: _value(key, value) for key, value in work.items()}
        rest = {key: _REST[key](value) for key, value in rest.items()}
        receives = node.type == NodeType.COMM_RECV
        peer = attributes.get("comm_src" if receives else "comm_dst")
        return RankOperator(
            key=node.id,
            name=name,
            kind=kind,
            stream=str(attributes.get("seer_stream", "")),
            columns=columns,
            group=group or str(attributes.get("seer_group", "")),
            peer=_int32(peer) if peer is not None else -1,
            tag=_int32(attributes.get("comm_tag", 0)),
            receives=receives,
            posts=True,
            alone=bool(attributes.get("seer_alone", False)),
            **rest,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as fault:
        why = f"{type(fault).__name__}: {str(fault)[:120]}"
        what = "the attributes that Seer wrote are damaged"
        raise UnreadableError(what, where=where, why=why) from None
    except RecursionError:
        raise UnreadableError("an attribute is nested too deeply", where=where) from None


def _int32(value: Any) -> int:
    if isinstance(value, int) and -1 <= value < 1 << 31:
        return value
    raise ValueError(f"{str(value)[:40]} where a whole number is needed")


_REST: dict[str, Callable[[Any], Any]] = {
    "layer": _int32,
    "micro_batch": _int32,
    "multiplicity": _int32,
    "alloc_bytes": float,
    "free_bytes": float,
}


def _value(column: str, value: Any) -> Any:
    """A value of a column of the work table, as JSON holds it."""
    if column in ("variant", "group"):
        return str(value)
    dtype, _ = WORK_COLUMNS[column]
    if column in WORK_WORDS:
        return int(WORK_WORDS[column][value])
    return np.array(value, dtype).item()
