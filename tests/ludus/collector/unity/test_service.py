"""Whose a call is: a bridge says it with its session id, which others may know, and proves it with its ticket."""

import time
from collections.abc import Iterator

import pytest

from ludus.protocol.options import SESSION_ID_METADATA, TICKET_METADATA
from ludus.protocol.tickets import TicketClaims, sign
from tests.ludus.collector.stack import Learner, learner
from tests.ludus.collector.unity.players import left, port_of
from tests.ludus.collector.unity.raw import GOODBYE, Message, Raw, agents, introduction

KEY = b"k" * 32
numbers = iter(range(100, 200))


@pytest.fixture(scope="module")
def trainer() -> Iterator[Learner]:
    with learner(size=96, ticket_key=KEY) as running:
        yield running


def ticket(trainer: Learner, session_id: str) -> str:
    """Return a fresh ticket for a session id."""
    endpoint = f"localhost:{port_of(trainer)}"
    return sign(KEY, TicketClaims("run-1", 1, session_id, next(numbers), time.time() + 60, endpoint))


def bridge(trainer: Learner, session_id: str, shown: str) -> Raw:
    return Raw(trainer, (SESSION_ID_METADATA, session_id), (TICKET_METADATA, shown))


@pytest.mark.parametrize("call", [agents(0), introduction(), GOODBYE, b"\xff" * 64])
@pytest.mark.parametrize("shown", ["", "1.e30.x", "another's"])
def test_who_only_knows_an_session_id_cannot_speak_for_it(trainer: Learner, call: Message | bytes, shown: str) -> None:
    session_id = f"known-{next(numbers)}"
    player = bridge(trainer, session_id, ticket(trainer, session_id))
    number = player.shake_hands()
    assert player.call(agents(0)).header.status == 200
    stranger = bridge(trainer, session_id, ticket(trainer, "stranger") if shown == "another's" else shown)

    assert stranger.call(call).header.status == 400

    assert stranger.close_code in {"bad_ticket", "malformed_message"}
    assert player.call(agents(0, announced=False)).header.status == 200
    player.call(GOODBYE)
    assert left(trainer, number).code == "left"
    player.close()
    stranger.close()


def test_the_same_session_id_comes_back_with_a_fresh_ticket(trainer: Learner) -> None:
    first = bridge(trainer, "again", ticket(trainer, "again"))
    number = first.shake_hands()
    assert first.call(agents(0)).header.status == 200
    second = bridge(trainer, "again", ticket(trainer, "again"))

    second.shake_hands()

    assert left(trainer, number).code == "superseded"
    assert second.call(agents(0)).header.status == 200
    assert first.call(agents(0, announced=False)).header.status == 400
    first.close()
    second.close()
