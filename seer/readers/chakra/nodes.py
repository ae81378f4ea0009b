"""Nodes of a Chakra execution trace, out of protobuf and back.

A file is a sequence of messages, each behind its length: a GlobalMetadata, then Nodes. Numbers are
those of the schema of mlcommons/chakra since 2023-10 (schema/protobuf/et_def.proto). Files of the
two schemas of 2023 before it use these numbers for other things; they are recognised and refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from seer.errors import UnreadableError
from seer.readers.chakra import wire
from seer.readers.chakra.wire import DamagedError

MAX_NODES = 20_000_000


class NodeType(IntEnum):
    """What a node is."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7
    STORAGE = 8
    BATCH = 9
    CHECKPOINT = 10


class CommType(IntEnum):
    """Which collective a COMM_COLL is."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


@dataclass(frozen=True, slots=True)
class Node:
    """One node; zero where the file leaves a number out, as proto3 does.

    Attributes
    ----------
    attributes : mapping of str to value
        Numbers, text, or tuples of them.
    values : str
        What its inputs are, as Python text (of process-group nodes: JSON).
    """

    id: int
    name: str
    type: int
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    duration_us: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    values: str = ""


@dataclass(frozen=True)
class RankTrace:
    """The nodes of one file."""

    version: str
    attributes: Mapping[str, Any]
    nodes: tuple[Node, ...]
    where: str


# ---- reading -----------------------------------------------------------------------------------

_NUMBERS = {7: "int", 9: "int", 11: "uint", 13: "uint", 15: "zigzag", 17: "zigzag", 27: "bool"}
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_TEXT, _BYTES = 29, 31


def read_nodes(data: bytes, where: str) -> RankTrace:
    """The nodes of a file that has been unpacked. Raises UnreadableError."""
    version, number = "", -1
    metadata: dict[str, Any] = {}
    nodes: list[Node] = []
    try:
        for number, message in enumerate(_messages(data)):
            if number == 0:
                version, metadata = _metadata(message)
                continue
            nodes.append(_node(message))
            if number > MAX_NODES:
                raise DamagedError(f"more than {MAX_NODES:,} nodes")
    except (DamagedError, _OldError) as fault:
        old = isinstance(fault, _OldError)
        raise UnreadableError(
            "the trace has a schema that is no longer read" if old else "the trace is damaged",
            where=f"{where}, message {number if old else number + 1}",
            why=str(fault),
            hint="write it again with Chakra of October 2023 or later" if old else "",
        ) from None
    return RankTrace(version, metadata, tuple(nodes), where)


class _OldError(Exception):
    """The file is of a schema before October 2023."""


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, start = wire.varint(data, at)
        at = start + size
        if at > len(data):
            raise DamagedError(f"the file ends {at - len(data):,} bytes early")
        yield data[start:at]


def _metadata(message: bytes) -> tuple[str, dict[str, Any]]:
    version, attributes = "", {}
    for number, kind, value in wire.fields(message):
        if kind != wire.BYTES or not isinstance(value, bytes):
            continue
        if number == 1 and value[:1] != b"\x0a":
            version = _text(value)
        elif number in (1, 2):  # the first schema of 2023-10 had the attributes at 1
            name, found = _attribute(value)
            attributes[name] = found
    return version, attributes


def _node(message: bytes) -> Node:
    identity = kind_of_node = duration = 0
    name = values = ""
    data_deps: list[int] = []
    ctrl_deps: list[int] = []
    attributes: dict[str, Any] = {}
    for number, kind, value in wire.fields(message):
        if number == 10 and isinstance(value, bytes):
            key, found = _attribute(value)
            attributes[key] = found
        elif number == 5:
            data_deps += wire.repeated(kind, value)
        elif number == 2 and isinstance(value, bytes):
            name = _text(value)
        elif number == 4:
            ctrl_deps += wire.repeated(kind, value)
        elif number == 8 and isinstance(value, bytes):
            values = _values(value, name)
        elif number > 11:
            raise _OldError(f"a node has the field {number}, as nodes had until October 2023")
        elif isinstance(value, int):
            if number == 1:
                identity = value
            elif number == 3:
                kind_of_node = value
            elif number == 7:
                duration = value
        elif number == 11 and kind_of_node <= NodeType.COMM_COLL:
            raise _OldError("a node has the field 11, as nodes had until October 2023")
    return Node(
        identity,
        name,
        kind_of_node,
        tuple(data_deps),
        tuple(ctrl_deps),
        duration,
        attributes,
        values,
    )


def _values(message: bytes, name: str) -> str:
    """The values of the inputs of a process-group node; nobody asks for those of others."""
    if "process_group" not in name:
        return ""
    found = [v for n, _, v in wire.fields(message) if n == 1 and isinstance(v, bytes)]
    return _text(found[-1]) if found else ""


def _attribute(message: bytes) -> tuple[str, Any]:
    """Name and value; None where the value is of no known kind."""
    name, found = "", None
    for number, kind, value in wire.fields(message):
        if number == 1 and isinstance(value, bytes):
            name = _text(value)
        elif number >= 3:
            found = _value(number, kind, value)
    return name, found


def _value(number: int, kind: int, value: wire.Value) -> Any:
    if number % 2:
        return _scalar(number, kind, value)
    if not isinstance(value, bytes):
        raise DamagedError(f"the list of attribute field {number} is none")
    member = number - 1
    found: list[Any] = []
    for inner, inner_kind, item in wire.fields(value):
        if inner != 1:
            continue
        if member in _NUMBERS:
            found += [_scalar(member, 0, one) for one in wire.repeated(inner_kind, item)]
        elif member in _FIXED and inner_kind == wire.BYTES and isinstance(item, bytes):
            size = struct.calcsize(_FIXED[member])
            if len(item) % size:
                raise DamagedError("a packed list ends inside a number")
            found += [one[0] for one in struct.iter_unpack(_FIXED[member], item)]
        else:
            found.append(_scalar(member, inner_kind, item))
    return tuple(found)


def _scalar(number: int, kind: int, value: wire.Value) -> Any:
    if isinstance(value, int):
        words = _NUMBERS.get(number, "")
        if words == "bool":
            return bool(value)
        if words == "int":
            return wire.signed(value)
        return wire.zigzag(value) if words == "zigzag" else value
    if number in _FIXED:
        if len(value) != struct.calcsize(_FIXED[number]):
            raise DamagedError(f"attribute field {number} has {len(value)} bytes")
        return struct.unpack(_FIXED[number], value)[0]
    return _text(value) if number == _TEXT else value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DamagedError("a name is no UTF-8 text") from None


# ---- writing -----------------------------------------------------------------------------------


def write_nodes(trace: RankTrace) -> bytes:
    """The file of a trace; deterministic, whole numbers packed."""
    head = wire.put_bytes(1, trace.version)
    head += b"".join(wire.put_bytes(2, _put(*item)) for item in trace.attributes.items())
    return b"".join([wire.framed(head), *(wire.framed(_put_node(n)) for n in trace.nodes)])


def _put_node(node: Node) -> bytes:
    parts = [
        wire.put_number(1, node.id),
        wire.put_bytes(2, node.name),
        wire.put_number(3, node.type),
        wire.put_packed(4, list(node.ctrl_deps)),
        wire.put_packed(5, list(node.data_deps)),
        wire.put_number(7, node.duration_us),
    ]
    parts += [wire.put_bytes(10, _put(*item)) for item in node.attributes.items()]
    return b"".join(parts)


INT32 = frozenset({"comm_src", "comm_dst", "comm_tag", "comm_priority"})
"""Attributes that ASTRA-sim's feeder asks for as int32; other whole numbers are int64."""
UINT64 = frozenset({"tensor_size"})


def _put(name: str, value: Any) -> bytes:
    head = wire.put_bytes(1, name)
    if isinstance(value, bool):
        return head + wire.put_varint(27 << 3) + wire.put_varint(int(value))
    if isinstance(value, int):
        number = 7 if name in INT32 else 13 if name in UINT64 else 9
        return head + wire.put_varint(number << 3) + wire.put_varint(value)
    if isinstance(value, float):
        return head + wire.put_double(3, value)
    if isinstance(value, str):
        return head + wire.put_bytes(29, value)
    if isinstance(value, tuple) and all(isinstance(item, bool) for item in value):
        return head + wire.put_bytes(28, wire.put_packed(1, [int(item) for item in value]))
    return head + wire.put_bytes(10, wire.put_packed(1, list(value)))
