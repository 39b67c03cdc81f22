"""Limits how many wrong tokens and cookies an address may try, wherever they are checked."""

from typing import Protocol

import structlog

from server.kit.errors import TokenRefused
from server.kit.http.errors import TooManyFailures
from server.kit.principal import Principal
from server.kit.rates import Rate

_log = structlog.get_logger(__name__)


class Checker(Protocol):
    """Finds the principal of a secret text."""

    def check(self, text: str) -> Principal:
        """Return the principal. Raises TokenRefused, and others for which no failure counts."""
        ...


class FailedAttempts:
    """Counts failures by address. Safe to share between threads.

    Many clients can have one address (NAT, a proxy), so a right text is accepted whatever others have tried. Guessing
    gains nothing by that: a secret has 256 random bits.
    """

    def __init__(self, rate: Rate) -> None:
        self._rate = rate

    def suspects(self, address: str) -> bool:
        """Whether an address has had too many failures: its checks should take few threads."""
        return self._rate.exhausted(address) is not None

    def check(self, checker: Checker, text: str, address: str) -> Principal:
        """Return the principal of a text that came from an address.

        Raises TokenRefused; TooManyFailures instead, after too many failures; and what the checker raises.
        """
        try:
            return checker.check(text)
        except TokenRefused as refusal:
            _log.info("token_refused", reason=refusal.reason, client=address)
            wait = self._rate.count(address)
            if wait is not None:
                raise TooManyFailures(self._rate.per_minute, wait) from None
            raise
