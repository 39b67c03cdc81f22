"""Headers of a call: what is HTTP's, and the metadata of gRPC among them."""

import base64
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from ludus.http2.frames import ErrorCode, Violation

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Metadata: TypeAlias = tuple[tuple[str, Any], ...]
"""Keys and values; that of a key with the end `-bin` is bytes, every other one text."""
MOST_CACHED: Final = 64
"""Lists of headers whose meaning is remembered: those of a client's calls are alike."""


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
