"""Downloads that can be resumed: the rest of a file is requested with `Range` and `If-Range` (RFC 9110, section 14)."""

import hashlib
from typing import BinaryIO

import httpx2


class PartialDownload:
    """A file being downloaded: the bytes received so far, and their checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self.etag = ""
        """The server's name of the file: its SHA-256 in quotes. Empty until something was received."""
        self.size = 0
        """Bytes received."""
        self._file = file
        self._digest = hashlib.sha256()

    @property
    def headers(self) -> dict[str, str]:
        """Headers that request the missing rest, or all of the file if the server has another one by now."""
        whole = {"Accept-Encoding": "identity"}
        return whole if not self.size else whole | {"Range": f"bytes={self.size}-", "If-Range": self.etag}

    @property
    def expected(self) -> str:
        """The SHA-256 that the server announced."""
        return self.etag.strip('"')

    @property
    def actual(self) -> str:
        """The SHA-256 of the received bytes."""
        return self._digest.hexdigest()

    def receive(self, answer: httpx2.Response, etag: str | None = None) -> None:
        """Write the body of an answer to the file. Raises httpx2.TransportError if the connection breaks.

        `etag` is the server's name of the file, if the answer comes from its artifact store.
        """
        if answer.status_code != httpx2.codes.PARTIAL_CONTENT:  # the server sends the file from its start
            self._file.seek(0)
            self._file.truncate()
            self._digest = hashlib.sha256()
            self.etag, self.size = answer.headers.get("etag", "") if etag is None else etag, 0
        for block in answer.iter_bytes():
            self._file.write(block)
            self._digest.update(block)
            self.size += len(block)
