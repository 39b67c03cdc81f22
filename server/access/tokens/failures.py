"""Limits how many wrong tokens and cookies an address may try, wherever they are checked."""

from typing import Protocol

import structlog

from server.kit.errors import TokenRefused
from server.kit.http.errors import refuse_excess
from server.kit.principal import Principal
from server.kit.rates import Rate

_log = structlog.get_logger(__name__)


class Checker(Protocol):
    """Finds the principal of a secret text."""

    def check(self, text: str) -> Principal:
        """Return the principal. Raises TokenRefused, and others for which no failure counts."""
        ...


class FailedAttempts:
    """Counts failures by address. Safe to share between threads."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate

    def check(self, checker: Checker, text: str, address: str) -> Principal:
        """Return the principal of a text that came from an address.

        Raises TooManyRequests, without checking, after too many failures; TokenRefused; and what the checker raises.
        """
        refuse_excess(self._rate, self._rate.exhausted(address))
        try:
            return checker.check(text)
        except TokenRefused as refusal:
            _log.info("token_refused", reason=refusal.reason, client=address)
            refuse_excess(self._rate, self._rate.count(address))
            raise
