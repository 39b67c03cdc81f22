"""Files that are sent to clients: whole, in blocks, with the checksum by which a client knows what it has."""

import base64
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Final

from fastapi import Header, Response
from fastapi.responses import StreamingResponse

from server.artifacts import ArtifactStore
from server.http.uploads import MEDIA_TYPE

BLOCK: Final = 256 * 1024

DOWNLOAD: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The file. `ETag` is its SHA-256, `Repr-Digest` the same as RFC 9530 has it.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "The file is the one that `If-None-Match` names."},
}
"""How the documentation describes the answers of `download`."""

IfNoneMatch = Annotated[str, Header(max_length=2000, description="ETags of what the client has.")]


def download(store: ArtifactStore, path: str, size: int, sha256: str, if_none_match: str) -> Response:
    """Answer with a file of the store, or with 304 if the client has it. Raises ArtifactNotFound."""
    tag = f'"{sha256}"'
    if tag in if_none_match:
        return Response(status_code=304, headers={"ETag": tag})
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f'attachment; filename="{path.rpartition("/")[2]}"',
        "ETag": tag,
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:",
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_blocks(store.open(path)), headers=headers, media_type=MEDIA_TYPE)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while block := file.read(BLOCK):
            yield block
