"""Reads parts of log files without cutting a UTF-8 character in two."""

from ludus.schemas import LogText
from server.kit.artifacts.store import ArtifactStore

DEFAULT_BYTES = 64 * 1024
MAX_BYTES = 1024 * 1024


def read_part(store: ArtifactStore, path: str, offset: int, limit: int, tail: int | None) -> LogText:
    """Read at most `limit` bytes from `offset`, or from `tail` bytes before the end. Raises ArtifactNotFound."""
    size = store.size(path)
    start = min(offset, size) if tail is None else max(0, size - tail)
    with store.open(path, start) as file:
        data = file.read(limit)
    skipped = _continuation(data) if start else 0
    whole = data[: len(data) - _incomplete(data)] if start + len(data) < size else data
    text = whole[skipped:].decode("utf-8", errors="replace")
    next_offset = start + max(len(whole), skipped)
    return LogText(text=text, offset=start + skipped, next_offset=next_offset, size=size)


def _continuation(data: bytes) -> int:
    """Count the bytes at the beginning that belong to a character before it (at most 3)."""
    for index, byte in enumerate(data[:3]):
        if byte & 0xC0 != 0x80:
            return index
    return min(len(data), 3)


def _incomplete(data: bytes) -> int:
    """Count the bytes at the end that begin a character which goes on beyond it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length and back < len(data) else 0
        if byte < 0x80:
            return 0
    return 0
