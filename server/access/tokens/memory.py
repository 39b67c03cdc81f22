"""Remembers for a few seconds whose a secret text is, so that a request costs no query.

A revoked token therefore stays valid for as long in processes that have just seen it. Refusals are not remembered. The
memory has the SHA-256 of texts, never texts.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from server.kit.principal import Principal

REMEMBERED_SECONDS: Final = 5.0
"""Time for which a revoked token may still be accepted."""
REMEMBERED: Final = 4096
"""Texts in memory; the memory is emptied when it is full."""


@dataclass(frozen=True, slots=True)
class _Memory:
    principal: Principal
    until: float
    """On the monotonic clock."""


class PrincipalMemory:
    """Principals by the text that was checked. Safe to share between threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._memory: dict[bytes, _Memory] = {}

    def recall(self, text: str) -> Principal | None:
        """Return the principal of a text, if it was remembered lately. Takes microseconds."""
        memory = self._memory.get(fingerprint_of(text))
        return memory.principal if memory is not None and self._monotonic() < memory.until else None

    def remember(self, text: str, principal: Principal, seconds: float) -> None:
        """Remember a principal for as long as its text is valid, at most `REMEMBERED_SECONDS`."""
        with self._lock:
            if len(self._memory) >= REMEMBERED:
                self._memory.clear()
            until = self._monotonic() + min(seconds, REMEMBERED_SECONDS)
            self._memory[fingerprint_of(text)] = _Memory(principal, until)

    def forget(self) -> None:
        """Empty the memory: this process has revoked a token, or ended a session."""
        with self._lock:
            self._memory.clear()


def fingerprint_of(text: str) -> bytes:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode(errors="replace")).digest()
