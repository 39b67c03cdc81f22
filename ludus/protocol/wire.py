"""protobuf's wire format (protobuf.dev/programming-guides/encoding), for bytes that are handled without messages.

A field is a tag (field number and wire type), for bytes a length, then the content.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

Field = tuple[int, int, int, int]
"""Number, wire type, and where the content starts and ends."""


def varint(value: int) -> bytes:
    """Encode a number >= 0: seven bits in each byte, the lowest first; the eighth bit says that another follows."""
    if value < 0x80:
        return value.to_bytes(1, "little")
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position behind it. Raises IndexError at the end of the data, ValueError if too long."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")


def fields(data: bytes, position: int, end: int) -> Iterator[Field]:
    """Yield the fields between two positions. Raises ValueError or IndexError where there are none."""
    while position < end:
        tag, position = read_varint(data, position)
        if tag < 8:
            raise ValueError("field 0")
        kind, start = tag & 7, position
        if kind == VARINT:
            _, position = read_varint(data, position)  # the content is its own length
        elif kind == BYTES:
            size, start = read_varint(data, position)
            position = start + size
        elif kind in {FIXED64, FIXED32}:
            position += 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position > end:
            raise ValueError("a field is longer than what holds it")
        yield tag >> 3, kind, start, position
