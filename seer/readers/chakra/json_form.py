"""Chakra traces as JSON: a `workload_graph`, or the messages of the protobuf one after another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from seer.errors import UnreadableError
from seer.readers.chakra.nodes import CommType, Node, NodeType, RankTrace
from seer.readers.files import parse_json

_VALUES = {
    "double": float,
    "float": float,
    "bool": bool,
    "string": str,
    "bytes": str,
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "sint32", "sint64"), int),
    **dict.fromkeys(("fixed32", "fixed64", "sfixed32", "sfixed64"), int),
}
_OF_NODE = (
    "tensor_size",
    "num_ops",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "comm_priority",
    "pg_name",
    "involved_dim",
    "stream",
    "tid",
)


def read_json_nodes(text: str, where: str) -> RankTrace:
    """The nodes of either form. Raises UnreadableError."""
    try:
        objects = list(_objects(text, where))
        first = objects[0] if objects else {}
        if "workload_graph" in first:
            nodes = first["workload_graph"]
            if not isinstance(nodes, list):
                raise UnreadableError("'workload_graph' is no list", where=where)
            return RankTrace("", {}, tuple(_plain(n, i) for i, n in enumerate(nodes)), where)
        version = first.get("version", "")
        attributes = _attributes(first.get("attr", []))
        nodes = tuple(_message(n, i) for i, n in enumerate(objects[1:]))
        return RankTrace(str(version), attributes, nodes, where)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as fault:
        why = f"{type(fault).__name__}: {str(fault)[:160]}"
        what = "a node holds what it cannot"
        raise UnreadableError(what, where=where, why=why) from None


def _objects(text: str, where: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text, one after another."""
    decoder = json.JSONDecoder()
    at, found = 0, 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at >= len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            parse_json(text if not found else text[at:], where)  # says what and where
            raise UnreadableError("this is not JSON", where=where) from None
        found += 1
        if not isinstance(value, dict):
            raise UnreadableError(f"value {found} is no JSON object", where=where)
        yield value


def _plain(node: Any, number: int) -> Node:
    """A node of a `workload_graph`; durations are microseconds."""
    if not isinstance(node, Mapping):
        raise ValueError(f"node {number} is no object")
    attributes = {key: node[key] for key in _OF_NODE if node.get(key) is not None}
    if "is_cpu_op" in node:
        attributes["is_cpu_op"] = bool(node["is_cpu_op"])
    return Node(
        id=_whole(node.get("Id", node.get("id"))),
        name=str(node.get("Name", node.get("name", ""))),
        type=_word(NodeType, node.get("NodeType", node.get("type", 0))),
        data_deps=tuple(_whole(d) for d in _list(node, "data_deps", "dataDeps")),
        ctrl_deps=tuple(_whole(d) for d in _list(node, "ctrlDeps", "ctrl_deps")),
        duration_us=_whole(node.get("runtime") or 0),
        attributes=_checked(attributes),
    )


def _message(node: Mapping[str, Any], number: int) -> Node:
    """A node as the JSON mapping of protobuf writes it: camelCase, 64 bits as text."""
    inputs = node.get("inputs") or {}
    return Node(
        id=_whole(node.get("id", 0)),
        name=str(node.get("name", "")),
        type=_word(NodeType, node.get("type", 0)),
        data_deps=tuple(_whole(d) for d in _list(node, "dataDeps", "data_deps")),
        ctrl_deps=tuple(_whole(d) for d in _list(node, "ctrlDeps", "ctrl_deps")),
        duration_us=_whole(node.get("durationMicros", node.get("duration_micros", 0))),
        attributes=_checked(_attributes(node.get("attr", []))),
        values=str(inputs.get("values", "")) if "process_group" in str(node.get("name")) else "",
    )


def _list(node: Mapping[str, Any], *keys: str) -> list[Any]:
    for key in keys:
        if key in node:
            found = node[key]
            if not isinstance(found, list):
                raise ValueError(f"{key} is no list")
            return found
    return []


def _attributes(entries: Any) -> dict[str, Any]:
    """Attributes of the JSON mapping: {"name": ..., "int64Val": "3"} or {"boolList": {...}}."""
    found: dict[str, Any] = {}
    for entry in entries:
        for key, value in entry.items():
            word = key.replace("_", "").lower()
            for kind, read in _VALUES.items():
                if word == f"{kind}val":
                    found[str(entry["name"])] = read(value)
                elif word == f"{kind}list":
                    values = value.get("values", value.get("value", []))
                    found[str(entry["name"])] = tuple(read(one) for one in values)
    return found


def _checked(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes with collectives as numbers and lists as tuples."""
    if isinstance(attributes.get("comm_type"), str):
        attributes["comm_type"] = _word(CommType, attributes["comm_type"])
    dims = attributes.get("involved_dim")
    if isinstance(dims, list):
        attributes["involved_dim"] = tuple(bool(d) for d in dims)
    return attributes


def _word(words: type[NodeType] | type[CommType], value: Any) -> int:
    """A number, or the word for it: "COMM_COLL_NODE", "ALL_REDUCE", "3"."""
    if isinstance(value, str) and not value.isdigit():
        name = value.removesuffix("_NODE")
        if name not in words.__members__:
            raise ValueError(f"{value[:40]!r} is no {words.__name__}")
        return int(words[name])
    return _whole(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value} where a number is needed")
    found = int(value)
    if found < 0 or found >= 1 << 64 or (isinstance(value, float) and found != value):
        raise ValueError(f"{str(value)[:40]} where a whole number is needed")
    return found
