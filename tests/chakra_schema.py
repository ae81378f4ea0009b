"""The public schema of Chakra as message classes of the protobuf library.

Field numbers and names are those of mlcommons/chakra, schema/protobuf/et_def.proto (Apache-2.0),
since October 2023; the descriptor is built here so that no generated code is kept.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "double": (1, 3),
    "float": (2, 5),
    "int32": (5, 7),
    "int64": (3, 9),
    "uint32": (13, 11),
    "uint64": (4, 13),
    "sint32": (17, 15),
    "sint64": (18, 17),
    "fixed32": (7, 19),
    "fixed64": (6, 21),
    "sfixed32": (15, 23),
    "sfixed64": (16, 25),
    "bool": (8, 27),
    "string": (9, 29),
    "bytes": (12, 31),
}
"""Name -> (type number of descriptor.proto, field number in AttributeProto)."""
_MESSAGE, _STRING, _UINT64, _ENUM = 11, 9, 4, 14
_PACKAGE = "ChakraProtoMsg"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="et_def.proto", package=_PACKAGE, syntax="proto3"
    )
    words = file.enum_type.add(name="NodeType")
    names = ["INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP"]
    names += ["COMM_SEND", "COMM_RECV", "COMM_COLL"]
    for number, name in enumerate(names):
        words.value.add(name=f"{name}_NODE", number=number)

    def add(message: Any, name: str, number: int, kind: int, label: int = 1, of: str = "") -> Any:
        more = {"type_name": f".{_PACKAGE}.{of}"} if of else {}
        return message.field.add(name=name, number=number, type=kind, label=label, **more)

    attribute = file.message_type.add(name="AttributeProto")
    add(attribute, "name", 1, _STRING)
    add(attribute, "doc_string", 2, _STRING)
    attribute.oneof_decl.add(name="value")
    for name, (kind, number) in _TYPES.items():
        titled = name.capitalize() + "List"
        many = file.message_type.add(name=titled)
        add(many, "values", 1, kind, label=3)
        add(attribute, f"{name}_val", number, kind).oneof_index = 0
        add(attribute, f"{name}_list", number + 1, _MESSAGE, of=titled).oneof_index = 0
    info = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), 1):
        add(info, name, number, _STRING)
    metadata = file.message_type.add(name="GlobalMetadata")
    add(metadata, "version", 1, _STRING)
    add(metadata, "attr", 2, _MESSAGE, 3, "AttributeProto")
    node = file.message_type.add(name="Node")
    add(node, "id", 1, _UINT64)
    add(node, "name", 2, _STRING)
    add(node, "type", 3, _ENUM, of="NodeType")
    add(node, "ctrl_deps", 4, _UINT64, 3)
    add(node, "data_deps", 5, _UINT64, 3)
    add(node, "start_time_micros", 6, _UINT64)
    add(node, "duration_micros", 7, _UINT64)
    add(node, "inputs", 8, _MESSAGE, of="IOInfo")
    add(node, "outputs", 9, _MESSAGE, of="IOInfo")
    add(node, "attr", 10, _MESSAGE, 3, "AttributeProto")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("GlobalMetadata", "Node")
    }


_FOUND = _classes()


def decode(data: bytes) -> tuple[Any, list[Any]]:
    """(GlobalMetadata, Nodes) of a file: each message behind its length."""
    messages, at = [], 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        kind = _FOUND["Node"] if messages else _FOUND["GlobalMetadata"]
        messages.append(kind.FromString(data[at : at + size]))
        at += size
    return messages[0], messages[1:]
