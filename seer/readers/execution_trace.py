"""PyTorch execution traces (ExecutionTraceObserver): calls with shapes, tensors and who made them.

The observer records every operator call with its tensors, in order, without times. Schema 1.0.1 has
flat nodes; 1.0.2, 1.0.3, 1.1.0 and 1.1.1 (-chakra.0.0.4) keep most of them in `attrs`. A tensor is
[tensor, storage, offset, elements, bytes of an element, device].
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from seer.errors import UnreadableError
from seer.readers.files import read_bytes

LIMIT_BYTES = 256 * 2**20
"""Traces of some hundred thousand calls; decoded they take about eight times as much."""
SCHEMAS = ("1.0.1", "1.0.2", "1.0.3", "1.1.0", "1.1.1")
LARGEST = 10**15


class _Values(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []
    strides: list[Any] = []


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Node(msgspec.Struct):
    id: int
    name: str = ""
    ctrl_deps: int | None = None
    inputs: Any = None
    outputs: Any = None
    attrs: list[_Attribute] = []
    parent: int = 0
    rf_id: int = 0
    op_schema: str = ""
    input_shapes: list[Any] = []
    input_types: list[Any] = []
    output_shapes: list[Any] = []
    output_types: list[Any] = []


class _File(msgspec.Struct):
    schema: str
    nodes: list[_Node]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a call. `storage` identifies the memory behind it."""

    tensor: int
    storage: int
    size_bytes: float
    device: str


@dataclass(frozen=True, slots=True)
class Call:
    """One operator call, or a region that contains calls.

    Attributes
    ----------
    id, parent : int
        Ids rise in the order of the calls.
    rf_id : int
        What Kineto calls `Record function id`; it counts from the start of the recording.
    op_schema : str
        The declaration of the operator; "" for regions.
    input_shapes, input_types, input_strides, output_shapes : list
        As recorded, one entry for each argument; strides are empty before schema 1.1.1.
    inputs, outputs : tuple of Tensor
    attributes : mapping
        Whatever else was recorded (`collective_name`, `pg_name`, `in_msg_nelems`, ...).
    values : list
        The arguments as recorded.
    after : tuple of int
        `rf_id` of the calls that wrote what this one reads.
    """

    id: int
    parent: int
    rf_id: int
    name: str
    op_schema: str
    input_shapes: list[Any]
    input_types: list[Any]
    input_strides: list[Any]
    output_shapes: list[Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any]
    values: list[Any]
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExecutionTrace:
    """The calls of one process in their order.

    `leaves` are the ids of operator calls that call no other operator but views and allocations.
    """

    schema: str
    calls: tuple[Call, ...]
    leaves: frozenset[int]
    where: str


def read_execution_trace(path: str | os.PathLike[str]) -> ExecutionTrace:
    """The calls of a file. Raises UnreadableError."""
    where = os.fspath(path)
    try:
        file = msgspec.json.decode(read_bytes(path, LIMIT_BYTES), type=_File)
    except (msgspec.DecodeError, RecursionError) as fault:
        why = str(fault)[:200] or type(fault).__name__
        what = "this is no PyTorch execution trace"
        raise UnreadableError(what, where=where, why=why) from None
    version = file.schema.partition("-")[0]
    if version not in SCHEMAS:
        hint = f"schemas {SCHEMAS[0]} to {SCHEMAS[-1]} are read"
        what = f"the schema '{file.schema[:40]}' is not known"
        raise UnreadableError(what, where=where, hint=hint)
    try:
        calls = sorted((_call(node) for node in file.nodes), key=lambda call: call.id)
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as fault:
        why = f"{type(fault).__name__}: {str(fault)[:160]}"
        raise UnreadableError("a node holds what it cannot", where=where, why=why) from None
    if not calls:
        raise UnreadableError("no calls are in this trace", where=where)
    operators = {call.id for call in calls if call.op_schema}
    # what only looks at memory or asks for it does not make its caller less of a kernel
    parents = {call.parent for call in calls if call.op_schema and not starts_nothing(call)}
    leaves = frozenset(operators - parents)
    return ExecutionTrace(file.schema, tuple(_linked(calls, leaves)), leaves, where)


def call_table(trace: ExecutionTrace) -> dict[int, Call]:
    """The calls by `rf_id`, which Kineto carries as `Record function id`.

    Valid for a Kineto trace of the same window: both count from the start of their recording. Calls
    with `rf_id` 0 are regions that Kineto does not know.
    """
    return {call.rf_id: call for call in trace.calls if call.rf_id > 0}


_ALIAS = re.compile(r"\([a-z](?:\|[a-z])*(?: -> \*)?(!?)\)")


def is_view(op_schema: str) -> bool:
    """Whether an operator returns its input's memory and writes nothing.

    >>> is_view("aten::t(Tensor(a) self) -> Tensor(a)")
    True
    >>> is_view("aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)")
    False
    """
    head, _, tail = op_schema.partition("->")
    return bool(_ALIAS.findall(tail)) and "!" not in _ALIAS.findall(head + tail)


_ALLOCATES = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::set_")
_NAMES_ONLY = ("aten::result_type", "aten::is_same_size", "aten::item", "aten::lift_fresh")


def starts_nothing(call: Call) -> bool:
    """Whether a call starts no kernel: a view, an allocation, a question."""
    return call.name.startswith((*_ALLOCATES, *_NAMES_ONLY)) or is_view(call.op_schema)


def _call(node: _Node) -> Call:
    attributes = {one.name: one.value for one in node.attrs}
    if node.ctrl_deps is None:  # 1.0.1
        inputs = _Values(_list(node.inputs), node.input_shapes, node.input_types)
        outputs = _Values(_list(node.outputs), node.output_shapes, node.output_types)
        parent, rf_id, schema = node.parent, node.rf_id, node.op_schema
    else:
        inputs, outputs = (msgspec.convert(v or {}, _Values) for v in (node.inputs, node.outputs))
        parent = node.ctrl_deps
        rf_id, schema = attributes.get("rf_id", 0), attributes.get("op_schema", "")
    return Call(
        id=node.id,
        parent=parent,
        rf_id=rf_id if isinstance(rf_id, int) else 0,
        name=node.name,
        op_schema=schema if isinstance(schema, str) else "",
        input_shapes=inputs.shapes,
        input_types=inputs.types,
        input_strides=inputs.strides,
        output_shapes=outputs.shapes,
        inputs=tuple(_tensors(inputs.values)),
        outputs=tuple(_tensors(outputs.values)),
        attributes=attributes,
        values=inputs.values,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in nested lists of values."""
    if not isinstance(value, list) or depth > 8:
        return
    if len(value) == 6 and isinstance(value[5], str) and all(isinstance(n, int) for n in value[:5]):
        tensor, storage, _, elements, size, device = value
        if 0 <= elements < LARGEST and 0 <= size <= 64:
            yield Tensor(tensor, storage, float(elements * size), device)
        return
    for item in value:
        yield from _tensors(item, depth + 1)


def _linked(calls: list[Call], leaves: frozenset[int]) -> Iterator[Call]:
    """The calls with their data dependence: on the last leaf that wrote a storage they read."""
    writer: dict[int, int] = {}
    for call in calls:
        after = {writer[t.storage] for t in call.inputs if t.storage in writer}
        after.discard(call.rf_id)
        yield replace(call, after=tuple(sorted(after))) if after else call
        if call.id in leaves and call.rf_id > 0 and not is_view(call.op_schema):
            for tensor in call.outputs:
                writer[tensor.storage] = call.rf_id
