"""A ticket opens exactly what it was signed for, and only for a while."""

import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.protocol.tickets import TicketClaims, TicketExpired, TicketInvalid, sign, verify

KEY = bytes(range(32))
CLAIMS = TicketClaims("run-1", 3, "a" * 32, 7, expires_at=1000.0, endpoint="worker-1:41000")


@given(
    st.builds(
        TicketClaims,
        run_id=st.text(max_size=40),
        attempt=st.integers(0, 2**31),
        session_id=st.text(max_size=64),
        number=st.integers(0, 2**31),
        expires_at=st.floats(1, 1e12),
        endpoint=st.text(max_size=80),
        token_id=st.none() | st.text(max_size=40),
    )
)
def test_a_ticket_says_what_was_signed(claims: TicketClaims) -> None:
    assert verify(KEY, sign(KEY, claims), now=0) == claims


def test_a_ticket_expires_at_its_time() -> None:
    ticket = sign(KEY, CLAIMS)

    assert verify(KEY, ticket, now=999.9) == CLAIMS
    with pytest.raises(TicketExpired, match="expired 5 s ago"):
        verify(KEY, ticket, now=1005.0)


def test_another_key_is_refused() -> None:
    with pytest.raises(TicketInvalid, match="not signed by a gateway of this installation"):
        verify(bytes(32), sign(KEY, CLAIMS), now=0)


@given(st.data())
def test_a_changed_character_makes_a_ticket_invalid(data: st.DataObject) -> None:
    ticket = sign(KEY, CLAIMS)
    position = data.draw(st.integers(0, len(ticket) - 1))
    other = data.draw(st.characters(exclude_characters=ticket[position]))

    with pytest.raises(TicketInvalid):
        verify(KEY, ticket[:position] + other + ticket[position + 1 :], now=0)


@pytest.mark.parametrize(("character", "same"), [("-", "+"), ("_", "/")])
def test_the_other_alphabet_of_base64_is_refused(character: str, same: str) -> None:
    tickets = (sign(KEY, TicketClaims("run-1", n, "a" * 32, 7, expires_at=1000.0)) for n in range(100))
    ticket = next(each for each in tickets if character in each)

    with pytest.raises(TicketInvalid):
        verify(KEY, ticket.replace(character, same), now=0)


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(TicketInvalid):
        verify(KEY, text, now=0)


def test_an_overlong_text_is_refused_unread() -> None:
    with pytest.raises(TicketInvalid, match="no ticket"):
        verify(KEY, "1." * 1_000_000, now=0)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        sign(b"short", CLAIMS)


def test_verifying_needs_no_grpc() -> None:
    script = "import sys; import ludus.protocol.tickets; sys.exit('grpc' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@dataclass(frozen=True)
class NewerClaims(TicketClaims):
    colour: str = "red"


@dataclass(frozen=True)
class OlderClaims:
    run_id: str = "run-1"
    attempt: int = 3
    session_id: str = "one"
    number: int = 7
    expires_at: float = 1000.0
    endpoint: str = "worker-1:41000"


def test_a_ticket_of_a_newer_release_is_read_without_what_it_adds() -> None:
    assert verify(KEY, sign(KEY, NewerClaims(**asdict(CLAIMS))), now=0) == CLAIMS


def test_a_ticket_of_an_older_release_names_no_token() -> None:
    claims: Any = OlderClaims()

    assert verify(KEY, sign(KEY, claims), now=0) == TicketClaims(**asdict(claims), token_id=None)
