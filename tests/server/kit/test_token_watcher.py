"""What is open when its token holds no longer: it ends, whatever it is, and costs next to nothing until then."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
from sqlalchemy import event, text

from ludus.schemas.tokens import Scope
from server.access.checker import watch_credentials
from server.access.repository import TokenRepository
from server.access.service import TokenService
from server.kit.db.base import Base
from server.kit.db.database import Database
from server.kit.principal import everything
from server.kit.token_watcher import TokenWatcher
from tests.waiting import eventually, never

PATIENCE = 30.0


@pytest.fixture
def watcher(database: Database) -> Iterator[TokenWatcher]:
    watcher = watch_credentials(database, seconds=0.05)
    yield watcher
    watcher.close()


def made(database: Database, seconds: float | None = None) -> str:
    with database.write() as session:
        return (
            TokenService(session, everything("test")).create("t", [Scope.READ], project="p", seconds=seconds).token.id
        )


def revoke(database: Database, token_id: str) -> None:
    with database.write() as session:
        TokenRepository(session).revoke(token_id)


def test_everything_that_is_open_with_a_revoked_token_is_told_and_nothing_else(
    database: Database, watcher: TokenWatcher
) -> None:
    revoked, kept = made(database), made(database)
    woken, untouched = [threading.Event() for _ in range(3)], threading.Event()
    with ExitStack() as stack:
        requests = [stack.enter_context(watcher.watch(revoked, each.set)) for each in woken]
        other = stack.enter_context(watcher.watch(kept, untouched.set))
        configured = stack.enter_context(watcher.watch(None, untouched.set))

        revoke(database, revoked)

        assert all(each.wait(PATIENCE) for each in woken)
        assert {stay.refusal.reason for stay in requests if stay.refusal is not None} == {"revoked"}
        never(untouched.is_set, "another one is woken", 0.2)
        assert other.refusal is configured.refusal is None


@pytest.mark.parametrize(("ending", "reason"), [("expiry", "expired"), ("deletion", "unknown")])
def test_a_token_ends_by_itself_too(database: Database, watcher: TokenWatcher, ending: str, reason: str) -> None:
    token_id = made(database, seconds=0.3 if ending == "expiry" else None)
    woken = threading.Event()
    with watcher.watch(token_id, woken.set) as request:
        if ending == "deletion":
            with database.write() as session:
                session.execute(text("DELETE FROM tokens"))

        assert woken.wait(PATIENCE)
    assert request.refusal is not None
    assert request.refusal.reason == reason


def test_nothing_is_opened_again_with_a_token_that_was_refused(database: Database, watcher: TokenWatcher) -> None:
    token_id = made(database)
    woken = threading.Event()
    with watcher.watch(token_id, woken.set):
        revoke(database, token_id)
        assert woken.wait(PATIENCE)

    again = threading.Event()
    with watcher.watch(token_id, again.set) as request:
        assert again.is_set()
        assert request.refusal is not None
    assert watcher.open == 0


def test_who_has_revoked_a_token_need_not_wait_for_the_next_look(database: Database) -> None:
    watcher = watch_credentials(database, seconds=3600)
    token_id = made(database)
    woken = threading.Event()
    with watcher.watch(token_id, woken.set):
        revoke(database, token_id)
        watcher.hurry()

        assert woken.wait(PATIENCE)
    watcher.close()


def test_hundreds_that_are_open_cost_one_query_per_look_and_none_when_nothing_is(database: Database) -> None:
    watcher = watch_credentials(database, seconds=0.1)
    token_ids = [made(database) for _ in range(5)]
    queries: list[str] = []
    event.listen(database._reader, "before_cursor_execute", lambda *arguments: queries.append(arguments[2]))
    with ExitStack() as stack:
        for number in range(200):
            stack.enter_context(watcher.watch(token_ids[number % 5], lambda: None))
        assert watcher.open == 200
        began = time.monotonic()
        looks = eventually(lambda: max(0, sum("FROM tokens" in query for query in queries) - 3), "four looks") + 3
        seconds = time.monotonic() - began
    assert 4 <= looks <= seconds / 0.1 + 3
    time.sleep(0.3)  # allow: sleep, because a look that had begun takes a moment
    queries.clear()
    never(lambda: queries, "a query for nobody", 0.3)
    watcher.close()


def test_a_database_that_is_away_throws_nobody_out(tmp_path: Path) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    database = Database(f"sqlite:///{here / 'ludus.db'}", synchronous="OFF")
    Base.metadata.create_all(database.engine)
    watcher = watch_credentials(database, seconds=0.05)
    token_id = made(database)
    woken = threading.Event()
    with watcher.watch(token_id, woken.set) as stay, structlog.testing.capture_logs() as logs:
        here.rename(away)

        def failed() -> bool:
            database.close()  # connections that are open do not notice
            return any(log["event"] == "token_look_failed" for log in logs)

        eventually(failed, "a look fails")
        assert stay.refusal is None
        away.rename(here)
        revoke(database, token_id)

        assert woken.wait(PATIENCE)
    watcher.close()
    database.close()
