"""Idempotency keys and heads of event logs, on every database."""

import threading

import pytest

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.http.repository import IdempotencyRepository
from server.runs.events.repository import EventRepository
from server.runs.events.tailer import Head
from tests.factories import make_run
from tests.waiting import never


def test_a_key_is_free_once_and_then_brings_its_answer(database: Database) -> None:
    with database.write() as session:
        keys = IdempotencyRepository(session)
        assert keys.claim("POST /v1/runs", "a", "f1") is None
        keys.answer("POST /v1/runs", "a", 201, {"body": {"id": "run_1"}, "location": None})

    with database.write() as session:
        first = IdempotencyRepository(session).claim("POST /v1/runs", "a", "f2")

    assert first is not None
    assert (first.fingerprint, first.status) == ("f1", 201)
    assert first.response == {"body": {"id": "run_1"}, "location": None}


def test_a_key_whose_transaction_failed_is_free_again(database: Database) -> None:
    def fail() -> None:
        with database.write() as session:
            IdempotencyRepository(session).claim("POST /v1/runs", "a", "f")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    with database.write() as session:
        assert IdempotencyRepository(session).claim("POST /v1/runs", "a", "f") is None


def test_the_second_of_two_at_once_waits_and_gets_the_first_ones_answer(database: Database) -> None:
    found: list[int | None] = []

    def claim_too() -> None:
        with database.write() as session:
            first = IdempotencyRepository(session).claim("POST /v1/runs", "a", "f")
            found.append(None if first is None else first.status)

    with database.write() as session:
        keys = IdempotencyRepository(session)
        keys.claim("POST /v1/runs", "a", "f")
        second = threading.Thread(target=claim_too)
        second.start()
        never(lambda: found, "the second claims beside the first", 0.2)
        keys.answer("POST /v1/runs", "a", 201, {})
    second.join(10)

    assert found == [201]


def test_heads_are_known_of_the_runs_that_exist(database: Database) -> None:
    run = make_run(database)

    with database.read() as session:
        assert EventRepository(session).heads([run.id, "run_none"]) == {run.id: Head(1, RunState.QUEUED)}
