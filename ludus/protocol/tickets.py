"""Tickets: signed, expiring proofs that a simulator was assigned to an attempt of a run.

The gateway signs them, collectors verify them without a database, and a gateway that relays a stream reads from them
where the stream goes. Opaque to clients. Format: `1.<claims>.<signature>`, claims as JSON in unpadded base64url,
signature = HMAC-SHA256 over everything before its dot, under one key that gateways and workers share. Not encrypted: a
ticket holds no secret but its signature. It opens one session: a collector remembers those that did until they expire,
and its successor on the same address, which has no such memory, has another generation.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields

MIN_KEY_BYTES = 32
MAX_TICKET_BYTES = 2048
"""Longer texts are refused unread."""

_VERSION = "1"


@dataclass(frozen=True, slots=True)
class TicketClaims:
    """The content of a ticket."""

    run_id: str
    attempt: int
    """The attempt: after a restart on another worker old tickets are worthless."""
    session_id: str
    number: int
    """The simulator's number in the run; its seed is the run's seed + number."""
    expires_at: float
    """Seconds since 1970. The ticket opens a session until then; an open session lives on."""
    endpoint: str = ""
    """`host:port` of the assigned collector, for a gateway that relays the stream."""
    token_id: str | None = None
    """The token that the simulator joined with, for a gateway that relays the stream; None: none of the database."""
    generation: int | None = None
    """Counts the processes that were the assigned collector; None: signed by an older release, for any of them."""


_CLAIMS = tuple(field.name for field in fields(TicketClaims))


class TicketInvalid(Exception):
    """The text is no ticket, or it was not signed with this key."""


class TicketExpired(Exception):
    """The ticket was valid once. Joining again gives a fresh one."""


def sign(key: bytes, claims: TicketClaims) -> str:
    """Make a ticket. `key` has at least 32 bytes."""
    _check_key(key)
    body = f"{_VERSION}.{_encode(json.dumps(asdict(claims), separators=(',', ':')).encode())}"
    return f"{body}.{_encode(_signature(key, body))}"


def verify(key: bytes, ticket: str, now: float) -> TicketClaims:
    """Return the content of a ticket. `now` in seconds since 1970. Raises TicketInvalid or TicketExpired."""
    _check_key(key)
    body, _, signature = ticket.rpartition(".")
    if len(ticket) > MAX_TICKET_BYTES or not body:
        raise TicketInvalid("this is no ticket; join at the gateway to get one")
    if not hmac.compare_digest(_signature(key, body), _decode(signature)):
        raise TicketInvalid("the ticket was not signed by a gateway of this installation")
    version, _, payload = body.partition(".")
    if version != _VERSION:
        raise TicketInvalid(f"the ticket is of version {version}, this server reads version {_VERSION}")
    signed = json.loads(_decode(payload))  # signed by us, so it is an output of `sign`; a newer release may add claims
    claims = TicketClaims(**{name: signed[name] for name in _CLAIMS if name in signed})
    if now >= claims.expires_at:
        raise TicketExpired(f"the ticket expired {now - claims.expires_at:.0f} s ago; join again for a fresh one")
    return claims


class TicketChecker:
    """Takes the tickets of one collector process: each opens one session."""

    def __init__(self, key: bytes, run_id: str, attempt: int, generation: int) -> None:
        self._key = key
        self._attempt = (run_id, attempt)
        self._generation = generation
        self._spent: dict[str, float] = {}
        """Tickets that have opened a session, until they expire: a copy of one opens none."""

    def read(self, ticket: str, ports: Collection[int], now: float) -> TicketClaims:
        """Return the content of a ticket for this process, which listens on `ports`. `now` in seconds since 1970.

        Raises TicketInvalid, or TicketExpired: joining again gives a fresh one.
        """
        claims = verify(self._key, ticket, now)
        if (claims.run_id, claims.attempt) != self._attempt:
            raise TicketExpired("the ticket is for another attempt; join again for a fresh one")
        elsewhere = claims.endpoint and claims.endpoint.rpartition(":")[2] not in map(str, ports)
        if elsewhere or claims.generation not in {None, self._generation}:
            raise TicketExpired("the ticket is for another collector; join again for one of this one")
        return claims

    def spend(self, ticket: str, claims: TicketClaims, session_id: str, now: float) -> None:
        """Take a ticket that opens a session.

        Raises TicketInvalid if it was given to another session id, TicketExpired if it has opened a session before.
        """
        if claims.session_id != session_id:
            raise TicketInvalid("the ticket was given to another session id; join again")
        self._spent = {spent: until for spent, until in self._spent.items() if until > now}
        if ticket in self._spent:
            raise TicketExpired("the ticket has opened a session already; join again for a fresh one")
        self._spent[ticket] = claims.expires_at


def _check_key(key: bytes) -> None:
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"a ticket key needs at least {MIN_KEY_BYTES} bytes, this one has {len(key)}")


def _signature(key: bytes, body: str) -> bytes:
    return hmac.digest(key, b"ludus ticket " + body.encode(errors="replace"), hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        data = None
    # Decoding also takes `+` for `-` and `/` for `_`, and ignores spare bits: a ticket has one spelling.
    if data is None or _encode(data) != text:
        raise TicketInvalid("this is no ticket; join at the gateway to get one")
    return data
