"""The lease as its holder sees it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.kit.db.database import Database
from server.kit.errors import LeaseLost
from server.kit.states import Intent
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.service import RunService
from tests.factories import RecordingWakeUp, make_claim, make_run, read_run
from tests.waiting import eventually
from tests.worker.host.supervisor.conftest import SETTINGS
from tests.worker.host.supervisor.outage import outage
from worker.host.supervisor.lease import Lease


def answers(lease: Lease, seconds: float) -> list[Intent]:
    """Ask all the time; return what was answered."""
    deadline, heard = time.monotonic() + seconds, []
    while time.monotonic() < deadline:
        if (renewal := lease.keep()) is not None:
            heard.append(renewal.intent)
        time.sleep(0.01)  # allow: sleep, because a supervisor asks at its pace
    return heard


def next_answer(lease: Lease) -> Intent:
    """Ask all the time until there is an answer."""
    return eventually(lease.keep, "the lease is renewed").intent


def test_a_lease_is_renewed_at_once_and_then_at_its_pace(database: Database, lease: Lease) -> None:
    """0.2 s apart, however often it is asked for; later on a busy machine, and never sooner."""
    lease.step = 5
    began = time.monotonic()

    assert next_answer(lease) is Intent.NONE
    assert lease.keep() is None
    assert read_run(database, "run").step == 5
    assert [next_answer(lease) for _ in range(2)] == [Intent.NONE] * 2
    assert time.monotonic() - began >= 2 * SETTINGS.heartbeat_seconds


def test_a_renewal_brings_what_users_want_until_it_is_done(database: Database, lease: Lease) -> None:
    with database.write() as session:
        RunService(session, RecordingWakeUp()).pause("run")

    assert [next_answer(lease) for _ in range(2)] == [Intent.PAUSE] * 2


def test_an_attempt_whose_run_was_taken_away_is_over_at_the_next_renewal(
    database: Database, lease: Lease, ledger: AttemptLedger
) -> None:
    assert next_answer(lease) is Intent.NONE
    ledger.release("lease_expired", "It was silent.")
    make_claim(database, "another")

    with pytest.raises(LeaseLost):
        next_answer(lease)


@pytest.fixture
def short(impatient: Path) -> Iterator[Callable[[], Lease]]:
    """Makes a lease on a database that gives up waiting for another writer soon."""
    database = Database(f"sqlite:///{impatient}", synchronous="NORMAL", busy_seconds=0.05)
    make_run(database, name="run")

    def make() -> Lease:
        claim = make_claim(database)
        return Lease(claim, AttemptLedger(database, claim), SETTINGS)

    yield make
    database.close()


def test_an_outage_is_waited_out(impatient: Path, short: Callable[[], Lease]) -> None:
    lease = short()
    lease.keep()

    with outage(impatient):
        during = answers(lease, SETTINGS.outage_seconds / 2)

    assert during == []
    assert next_answer(lease) is Intent.NONE


def test_an_outage_that_lasts_too_long_ends_the_attempt_and_not_before(
    impatient: Path, short: Callable[[], Lease]
) -> None:
    lease = short()
    lease.keep()
    began = time.monotonic()

    with outage(impatient), pytest.raises(LeaseLost):
        answers(lease, 30)

    assert time.monotonic() - began >= SETTINGS.outage_seconds - 0.05


def test_a_claim_that_has_not_answered_once_has_the_same_patience(impatient: Path, short: Callable[[], Lease]) -> None:
    """The database goes away between the claim and the first heartbeat."""
    lease = short()

    with outage(impatient):
        assert answers(lease, SETTINGS.outage_seconds / 2) == []
    assert next_answer(lease) is Intent.NONE
