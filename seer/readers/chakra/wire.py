"""The wire format of protocol buffers: numbered fields out of bytes, and back.

Chakra's schema is five messages, so it is read by these few lines rather than by a library that
would be a dependency and a slow import. https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | bytes

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class DamagedError(Exception):
    """The bytes are no message; the text says why and at which byte."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned number at a byte, and where it ends. Raises DamagedError.

    >>> varint(bytes([0xac, 0x02]), 0)
    (300, 2)
    """
    try:
        byte = data[at]
        if byte < 128:
            return byte, at + 1
        value, shift = byte & 127, 7
        while True:
            at += 1
            byte = data[at]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF, at + 1
            shift += 7
            if shift > 63:
                raise DamagedError(f"a number of more than ten bytes ends at byte {at}")
    except IndexError:
        raise DamagedError(f"it ends inside a number at byte {len(data)}") from None


def fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """(field number, wire type, value) of a message, in their order. Raises DamagedError."""
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == VARINT:
            value, at = varint(data, at)
        elif kind == BYTES:
            size, at = varint(data, at)
            if at + size > end:
                raise DamagedError(f"field {number} ends {at + size - end:,} bytes after the file")
            value = data[at : at + size]
            at += size
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if at + size > end:
                raise DamagedError(f"it ends inside field {number}")
            value = data[at : at + size]
            at += size
        else:
            raise DamagedError(f"field {number} has the wire type {kind}, which nobody writes")
        if number == 0:
            raise DamagedError("a field has the number 0")
        yield number, kind, value


def repeated(kind: int, value: Value) -> list[int]:
    """The integers of one occurrence of a repeated field, packed or not."""
    if kind == VARINT:
        return [int(value)]
    if kind != BYTES or not isinstance(value, bytes):
        raise DamagedError("a list of whole numbers has another wire type")
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def signed(value: int) -> int:
    """A 64-bit number read as two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """A sint number: 0, -1, 1, -2, ..."""
    return (value >> 1) ^ -(value & 1)


# ---- writing -----------------------------------------------------------------------------------


def put_varint(value: int) -> bytes:
    """An unsigned (or 64-bit two's complement) number.

    >>> put_varint(300).hex()
    'ac02'
    """
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_number(number: int, value: int) -> bytes:
    """A whole-number field; nothing for zero, as proto3 leaves it out."""
    return put_varint(number << 3) + put_varint(value) if value else b""


def put_bytes(number: int, value: bytes | str) -> bytes:
    """A field of bytes, text or a message, also where it is empty."""
    data = value.encode() if isinstance(value, str) else value
    return put_varint(number << 3 | BYTES) + put_varint(len(data)) + data


def put_packed(number: int, values: list[int]) -> bytes:
    """A packed list of whole numbers; nothing for an empty one."""
    return put_bytes(number, b"".join(map(put_varint, values))) if values else b""


def put_double(number: int, value: float) -> bytes:
    """A field of 64 bits, also where it is zero (a member of a oneof)."""
    return put_varint(number << 3 | FIXED64) + struct.pack("<d", value)


def framed(message: bytes) -> bytes:
    """A message behind its length, as files of several messages hold them."""
    return put_varint(len(message)) + message
