"""Shapes from execution traces: for recordings that were made without `record_shapes`.

Both files must come from one window: then the `Record function id` of an operator in the profiler's
trace is the `rf_id` of a call in the execution trace. Names are compared, since ids of another
window fit by chance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from seer.readers.execution_trace import Call
from seer.readers.kineto.columns import RankTrace, identity
from seer.readers.kineto.events import Args

_TENSOR = re.compile(r"^Tensor\((.*)\)$")


def with_shapes(trace: RankTrace, calls: Mapping[int, Call]) -> tuple[RankTrace, int, int]:
    """The trace with shapes that it lacks; how many operators got some, how many fit no call."""
    host = trace.host
    args = list(host.args)
    given = strange = 0
    for i, known in enumerate(args):
        if known is None or known.record_function is None:
            continue
        call = calls.get(identity(known.record_function))
        if call is None or call.name != trace.name(host, i):
            strange += 1
        elif known.input_dims is None:
            args[i] = _told(known, call)
            given += 1
    return replace(trace, host=replace(host, args=tuple(args))), given, strange


def _told(known: Args, call: Call) -> Args:
    return msgspec.structs.replace(
        known,
        input_dims=call.input_shapes,
        input_types=[_type(word) for word in call.input_types],
        input_strides=call.input_strides or None,
        concrete_inputs=[_plain(value) for value in call.values],
    )


def _type(word: Any) -> str:
    """An execution trace writes `Tensor(float)` where the profiler writes `float`."""
    found = _TENSOR.match(str(word))
    return found[1] if found else str(word)


def _plain(value: Any) -> str:
    return "" if isinstance(value, list) else str(value)
