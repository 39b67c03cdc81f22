"""Files that arrive, perhaps in several goes: what breaks off is asked for again from there (RFC 9110, section 14)."""

import hashlib
from typing import BinaryIO

import httpx


class Arriving:
    """A file on its way, as far as it has arrived."""

    def __init__(self, file: BinaryIO) -> None:
        self.etag = ""
        """Which file it is: its SHA-256 in quotes. Empty: nothing has arrived."""
        self.size = 0
        """Bytes that are there."""
        self._file = file
        self._digest = hashlib.sha256()

    @property
    def headers(self) -> dict[str, str]:
        """Ask for the rest of it; for all of another file if the server has that one by now."""
        whole = {"Accept-Encoding": "identity"}
        return whole if not self.size else whole | {"Range": f"bytes={self.size}-", "If-Range": self.etag}

    @property
    def expected(self) -> str:
        """The SHA-256 that the server announced."""
        return self.etag.strip('"')

    @property
    def actual(self) -> str:
        """The SHA-256 of what has arrived."""
        return self._digest.hexdigest()

    def take(self, answer: httpx.Response) -> None:
        """Take in what an answer brings, until it ends or breaks off. Raises httpx.TransportError."""
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            self._begin(answer.headers.get("etag", ""))
        for block in answer.iter_bytes():
            self._file.write(block)
            self._digest.update(block)
            self.size += len(block)

    def _begin(self, etag: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self.etag, self.size = etag, 0
