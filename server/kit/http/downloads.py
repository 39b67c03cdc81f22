"""Files that are sent: whole, or the part that `Range` asks for (RFC 9110, section 14). Their SHA-256 is their ETag.

A download that breaks off is resumed with `Range: bytes=N-` and `If-Range: ETAG`: it goes on where it was if the file
is still the same one, and begins again if it is not. Several ranges at once are not served: such a request gets it all.

A client that says `redirect=true` is sent to the artifact store for a large file, if clients can reach the store
(`ArtifactStore.download_url`): the bytes do not pass through this process. The ETag of the redirect is the file's.
"""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Annotated, Final, Self
from urllib.parse import quote

from fastapi import Depends, Header, Query, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.kit.artifacts.store import ArtifactStore
from server.kit.http.errors import RangeNotSatisfiable, Responses
from server.kit.http.uploads import MEDIA_TYPE

BLOCK: Final = 256 * 1024
_RANGE: Final = re.compile(r"bytes=\s*([0-9]*)-([0-9]*)\s*", re.IGNORECASE)
_CONTENT: Final = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
DOWNLOAD: Final[Responses] = {
    200: {
        "description": "The file. `ETag` is its SHA-256, `Repr-Digest` the same as RFC 9530 has it.",
        "content": _CONTENT,
    },
    206: {"description": "The part that `Range` asks for; `Content-Range` says which it is.", "content": _CONTENT},
    304: {"description": "The file is the one that `If-None-Match` names."},
    307: {
        "description": "With `redirect=true`, for a large file: its address in the artifact store, valid for minutes. "
        "Send it no token. `ETag` and `Repr-Digest` are those of the file."
    },
}
"""The answers of a route that sends a file, besides its problems, which include RangeNotSatisfiable."""


@dataclass(frozen=True)
class Content:
    """A file that can be sent."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hexadecimal."""
    open: Callable[[int], BufferedIOBase]
    """Open it for reading from a byte on."""
    url: Callable[[], str | None] = lambda: None
    """Return an address from which a client can download it without a token; None: only through this process."""

    @classmethod
    def stored(cls, store: ArtifactStore, path: str, size: int, sha256: str) -> Self:
        """Return an artifact. Sending it raises what opening it does."""
        return cls(
            path.rpartition("/")[2],
            size,
            sha256,
            lambda start: store.open(path, start),
            lambda: store.download_url(path, size),
        )

    @property
    def etag(self) -> str:
        """A strong one: files with the same are equal byte for byte."""
        return f'"{self.sha256}"'


@dataclass(frozen=True)
class DownloadRequest:
    """The file that the client has, the part that it requests, and whether it follows a redirect to the store."""

    if_none_match: str
    if_range: str
    part: str
    """`Range`."""
    redirect: bool = False


def download_request(
    if_none_match: Annotated[str, Header(max_length=2000, description="ETags of the client's copies.")] = "",
    if_range: Annotated[
        str, Header(max_length=2000, description="ETag of the file that `Range` is meant for; another one comes whole.")
    ] = "",
    part: Annotated[
        str,
        Header(alias="Range", max_length=2000, description="`bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-LENGTH`."),
    ] = "",
    *,
    redirect: Annotated[
        bool, Query(description="Whether a large file may be answered with its address in the artifact store (307).")
    ] = False,
) -> DownloadRequest:
    """Return what the request says."""
    return DownloadRequest(if_none_match, if_range.strip(), part.strip(), redirect)


DownloadRequestDep = Annotated[DownloadRequest, Depends(download_request)]


def send(content: Content, request: DownloadRequest) -> Response:
    """Answer with a file, or with a part of it. Raises RangeNotSatisfiable, and what opening it raises."""
    if content.etag in request.if_none_match:
        return Response(status_code=304, headers={"ETag": content.etag})
    part = part_of(request.part, content.size) if request.if_range in {"", content.etag} else None
    sent = range(content.size) if part is None else part
    digest = f"sha-256=:{base64.b64encode(bytes.fromhex(content.sha256)).decode()}:"
    if request.redirect and (url := content.url()) is not None:
        headers = {"Location": url, "ETag": content.etag, "Repr-Digest": digest, "Cache-Control": "no-store"}
        return Response(status_code=307, headers=headers)
    headers = {
        "Content-Length": str(len(sent)),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(content.name)}",
        "Accept-Ranges": "bytes",
        "ETag": content.etag,
        "Repr-Digest": digest,
        "Cache-Control": "private, no-cache",
    }
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{content.size}"
    return _Sending(content.open(sent.start), len(sent), 200 if part is None else 206, headers)


def part_of(text: str, size: int) -> range | None:
    """Return the bytes that a `Range` header asks for; None where it is to be ignored, as several parts are.

    Raises RangeNotSatisfiable where a file of this size has none of them.
    """
    match = _RANGE.fullmatch(text)
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:  # so many at the end
        part = range(max(0, size - int(match[2])), size)
    elif not match[2]:
        part = range(int(match[1]), size)
    elif int(match[2]) < int(match[1]):
        return None
    else:
        part = range(int(match[1]), min(int(match[2]) + 1, size))
    if not part:
        raise RangeNotSatisfiable(size)
    return part


class _Sending(StreamingResponse):
    """Sends so many bytes of a file, and closes it whether or not the client stayed to take any."""

    def __init__(self, file: BufferedIOBase, length: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(self._blocks(length), status, headers, MEDIA_TYPE)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)

    def _blocks(self, length: int) -> Iterator[bytes]:
        while length and (block := self._file.read(min(BLOCK, length))):
            length -= len(block)
            yield block
