"""Headers of a call: what is HTTP's, and the metadata of gRPC among them."""

import base64
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import hpack

from ludus.http2.frames import ErrorCode, Violation

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Metadata: TypeAlias = tuple[tuple[str, Any], ...]
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
        known = self._meanings.get(block)
        if known is not None:
            return known
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
    metadata: list[tuple[str, Any]] = []
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


def encoded(metadata: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return metadata as headers."""
    return [(key, base64.b64encode(value).rstrip(b"=") if key.endswith("-bin") else value) for key, value in metadata]
