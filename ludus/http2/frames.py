"""Frames of HTTP/2 (RFC 9113, 4.1 and 6) in bytes, and headers: what is HTTP's, and the metadata of gRPC among them."""

import base64
import functools
import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, TypeAlias

import hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client (3.4)."""
HEADER_BYTES: Final = 9
"""Of a frame, before its payload."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
"""Flag of DATA and HEADERS."""
ACK: Final = 0x1
"""Flag of SETTINGS and PING."""
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

SMALLEST_MAX_FRAME: Final = 16_384
LARGEST_MAX_FRAME: Final = 2**24 - 1
DEFAULT_WINDOW: Final = 65_535
LARGEST_WINDOW: Final = 2**31 - 1
STREAM_ID: Final = 2**31 - 1
"""Mask: the first bit of a stream's number is reserved."""


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Violation(Exception):
    """The peer broke the protocol, and the connection ends."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


_SETTING = struct.Struct(">HI")
_HEADER = struct.Struct(">IBI")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame. The payload has at most `LARGEST_MAX_FRAME` bytes."""
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return numbers and values of a SETTINGS frame. Raises Violation."""
    if len(payload) % _SETTING.size:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame holds whole settings")
    return list(_SETTING.iter_unpack(payload))


def unpadded(payload: bytes) -> bytes:
    """Return the payload of a padded frame, DATA or HEADERS, without its padding (6.1). Raises Violation."""
    if not payload or payload[0] >= len(payload):
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame is padded with more than it has")
    return payload[1 : len(payload) - payload[0]]


Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Entry: TypeAlias = tuple[str, Any]
"""A header or an entry of metadata: its key and its value."""
Metadata: TypeAlias = tuple[Entry, ...]
"""Keys and values; that of a key with the end `-bin` is bytes, every other one text."""
MOST_CACHED: Final = 64
"""Lists of headers whose meaning is remembered: those of a client's calls are alike."""


class HeaderBlocks:
    """Reads the blocks of headers of one connection (RFC 7541)."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of the list that a block stands for."""
        self._decoder = hpack.Decoder(most_bytes)
        self._meanings: dict[bytes, Headers] = {}
        """Of blocks that change nothing in the decoder: those of a client's calls are alike but for the first ones."""

    def read(self, block: bytes) -> Headers:
        """Return the headers of a block. Raises Violation."""
        if (meaning := self._meanings.get(block)) is not None:
            return meaning
        table = self._decoder.header_table
        before = (table.maxsize, [*table.dynamic_entries])
        try:
            headers = tuple((bytes(key), bytes(value)) for key, value in self._decoder.decode(block, raw=True))
        except hpack.HPACKError as error:
            raise Violation(ErrorCode.COMPRESSION_ERROR, f"headers cannot be read: {error}") from None
        if before != (table.maxsize, [*table.dynamic_entries]):
            self._meanings.clear()  # the same bytes may mean something else from now on
        elif len(self._meanings) < MOST_CACHED:
            self._meanings[block] = headers
        return headers


@functools.lru_cache(MOST_CACHED)
def read_headers(headers: Headers) -> tuple[Mapping[str, str], Metadata]:
    """Return the headers of HTTP and of gRPC itself, and the metadata. Raises Violation."""
    values: dict[str, str] = {}
    metadata: list[Entry] = []
    try:
        for raw_key, value in headers:
            key = raw_key.decode("ascii")
            if key.startswith((":", "grpc-")):
                values[key] = value.decode("ascii")
            elif key.endswith("-bin"):
                metadata.append((key, base64.b64decode(value + b"=" * (-len(value) % 4))))
            else:
                metadata.append((key, value.decode("ascii")))
    except ValueError:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a header is no text of gRPC's") from None
    return values, tuple(metadata)


def encoded(metadata: Iterable[Entry]) -> list[Entry]:
    """Return metadata as headers."""
    return [(key, base64.b64encode(value).rstrip(b"=") if key.endswith("-bin") else value) for key, value in metadata]
