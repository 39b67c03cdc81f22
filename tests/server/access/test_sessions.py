"""A session stands for its token, for as long as both are valid."""

import threading
from typing import Any

import pytest
from sqlalchemy import func, select, update

from ludus.schemas.tokens import Scope
from server.access.checker import REMEMBERED_SECONDS, SessionChecker, TokenChecker, watch_credentials
from server.access.models import BrowserSession, Token
from server.access.repository import KEPT_SECONDS, LIFETIME_SECONDS, SessionRepository, TokenRepository
from server.access.secrets import SessionCookie
from server.access.service import Made, TokenService, open_session
from server.kit.db.database import Database
from server.kit.errors import TokenRefused, Unauthenticated
from server.kit.http.errors import SessionEnded
from server.kit.principal import CONFIGURED, everything
from tests.clock import Clock

BOSS = "open sesame"


def make_token(database: Database, seconds: float | None = None) -> Made:
    with database.write() as session:
        return TokenService(session, everything("test")).create("t", [Scope.RUN], project="p", seconds=seconds)


def sign_in(database: Database, token: str, project: str = "p", configured: str | None = None) -> SessionCookie:
    principal = TokenChecker(database, configured).check(token)
    with database.write() as session:
        return open_session(session, principal, project, configured)[0]


def change(database: Database, cookie: SessionCookie, **columns: Any) -> None:
    with database.write() as session:
        session.execute(update(BrowserSession).where(BrowserSession.id == cookie.session_id).values(**columns))


def stored(database: Database, cookie: SessionCookie) -> BrowserSession:
    with database.read() as session:
        found = SessionRepository(session).find(cookie.session_id)
        assert found is not None
        return found.session


def refusal(database: Database, text: str, configured: str | None = None) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as refused:
        SessionChecker(database, configured).check(text)
    return refused.value


def test_a_session_has_the_rights_of_its_token_and_the_project_that_was_chosen(database: Database) -> None:
    made = make_token(database)

    principal = SessionChecker(database, None).check(sign_in(database, made.text).text)

    assert (principal.name, principal.token_id, principal.project) == ("t", made.token.id, "p")
    assert principal.scopes == {Scope.RUN, Scope.READ, Scope.SIMULATE}
    chosen = SessionChecker(database, BOSS).check(sign_in(database, BOSS, "bots", BOSS).text)
    assert (chosen.name, chosen.project, chosen.home) == (CONFIGURED, "*", "bots")


def test_a_cookie_that_was_not_given_is_unknown(database: Database) -> None:
    token = make_token(database)
    cookie, other = sign_in(database, token.text), sign_in(database, token.text)
    forged = [
        "",
        "x",
        token.text,
        cookie.session_id,
        f"{cookie.session_id}.",
        f"{cookie.session_id}.{other.secret}",
        f"{other.session_id}.{cookie.secret}",
        f"{cookie.session_id}.{cookie.digest}",
        f"{cookie.text} ",
        f"{cookie.text}x",
        SessionCookie.draw().text,
    ]

    for text in forged:
        error = refusal(database, text)
        assert isinstance(error, TokenRefused), text
        assert error.reason == "unknown", text
    with pytest.raises(TokenRefused):
        TokenChecker(database, None).check(cookie.text)


def test_the_database_knows_no_secret(database: Database) -> None:
    cookie = sign_in(database, BOSS, configured=BOSS)
    row = stored(database, cookie)

    texts = [str(value) for value in vars(row).values()]
    assert not any(cookie.secret in text or BOSS in text for text in texts)
    assert TokenChecker(database, BOSS)
    again = stored(database, sign_in(database, BOSS, configured=BOSS))
    assert again.configured_digest != row.configured_digest, "equal tokens would be seen"
    assert "secret" not in repr(cookie)


@pytest.mark.parametrize("configured", [None, "another", ""])
def test_sessions_of_the_settings_token_end_when_it_changes(database: Database, configured: str | None) -> None:
    cookie = sign_in(database, BOSS, configured=BOSS)
    assert SessionChecker(database, BOSS).check(cookie.text).name == CONFIGURED

    assert isinstance(refusal(database, cookie.text, configured), SessionEnded)


def test_a_session_ends_after_thirty_days(database: Database) -> None:
    cookie = sign_in(database, make_token(database).text)
    row = stored(database, cookie)
    assert row.expires_at - row.created_at == LIFETIME_SECONDS == 30 * 86400

    change(database, cookie, expires_at=row.created_at - 1.0)

    assert isinstance(refusal(database, cookie.text), SessionEnded)


def test_a_session_does_not_outlive_its_token(database: Database) -> None:
    revoked, expired = make_token(database), make_token(database, seconds=3600.0)
    of_revoked, of_expired = sign_in(database, revoked.text), sign_in(database, expired.text)
    row = stored(database, of_expired)
    assert row.expires_at - row.created_at == pytest.approx(3600.0, abs=60.0)

    with database.write() as session:
        TokenRepository(session).revoke(revoked.token.id)
        session.execute(update(Token).where(Token.id == expired.token.id).values(expires_at=1.0))

    errors = [refusal(database, of_revoked.text), refusal(database, of_expired.text)]
    assert [error.reason for error in errors if isinstance(error, TokenRefused)] == ["revoked", "expired"]


def test_an_ended_session_stays_ended(database: Database) -> None:
    cookie = sign_in(database, make_token(database).text)
    checker = SessionChecker(database, None)
    checker.check(cookie.text)
    with database.write() as session:
        SessionRepository(session).end(cookie.session_id, "another's digest")
    checker.forget()
    checker.check(cookie.text)

    with database.write() as session:
        SessionRepository(session).end(cookie.session_id, cookie.digest)
    ended = stored(database, cookie).ended_at
    with database.write() as session:
        SessionRepository(session).end(cookie.session_id)

    assert stored(database, cookie).ended_at == ended is not None
    assert checker.recall(cookie.text) is not None, "another process knows it for a few seconds"
    checker.forget()
    assert isinstance(refusal(database, cookie.text), SessionEnded)


def test_a_session_is_remembered_for_a_few_seconds_and_no_longer(database: Database) -> None:
    clock = Clock(100.0)
    checker = SessionChecker(database, None, clock)
    cookie = sign_in(database, make_token(database).text)
    checker.check(cookie.text)
    change(database, cookie, ended_at=1.0)

    clock.now += REMEMBERED_SECONDS - 0.1
    assert checker.check(cookie.text)
    clock.now += 0.2

    with pytest.raises(SessionEnded):
        checker.check(cookie.text)


def test_the_use_of_a_session_and_of_its_token_is_noted_to_the_minute(database: Database) -> None:
    made = make_token(database)
    cookie = sign_in(database, made.text)
    with database.write() as session:
        session.execute(update(Token).values(last_used_at=1.0))

    SessionChecker(database, None).check(cookie.text)
    first = stored(database, cookie).last_used_at
    SessionChecker(database, None).check(cookie.text)

    assert first is not None
    assert stored(database, cookie).last_used_at == first
    with database.read() as session:
        used = TokenRepository(session).get(made.token.id).last_used_at
    assert used is not None
    assert used > 1.0


def test_old_sessions_are_deleted_and_others_kept(database: Database) -> None:
    token = make_token(database).text
    ended, expired, lately, valid = [sign_in(database, token) for _ in range(4)]
    now = stored(database, valid).created_at
    change(database, ended, ended_at=now - KEPT_SECONDS - 60.0)
    change(database, expired, expires_at=now - KEPT_SECONDS - 60.0)
    change(database, lately, ended_at=now - KEPT_SECONDS + 600.0)

    with database.write() as session:
        assert SessionRepository(session).forget(10) == 2

    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(BrowserSession)) == 2
    assert stored(database, lately)
    assert SessionChecker(database, None).check(valid.text)


def test_sessions_go_with_their_token(database: Database) -> None:
    made = make_token(database)
    cookie = sign_in(database, made.text)

    with database.write() as session:
        session.delete(session.get_one(Token, made.token.id))

    assert isinstance(refusal(database, cookie.text), TokenRefused)


def end_session(database: Database, cookie: SessionCookie, _token: Made) -> None:
    with database.write() as session:
        SessionRepository(session).end(cookie.session_id)


def expire_session(database: Database, cookie: SessionCookie, _token: Made) -> None:
    change(database, cookie, expires_at=1.0)


def revoke_token(database: Database, _cookie: SessionCookie, token: Made) -> None:
    with database.write() as session:
        TokenRepository(session).revoke(token.token.id)


def delete_token(database: Database, _cookie: SessionCookie, token: Made) -> None:
    with database.write() as session:
        session.delete(session.get_one(Token, token.token.id))


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (end_session, "session_ended"),
        (expire_session, "session_ended"),
        (revoke_token, "token_refused"),
        (delete_token, "session_ended"),
    ],
)
def test_what_is_open_with_a_session_ends_with_it_and_nothing_else(database: Database, end: Any, code: str) -> None:
    token = make_token(database)
    cookie, kept = sign_in(database, token.text), sign_in(database, make_token(database).text)
    watcher = watch_credentials(database, seconds=0.05)
    woken, untouched = threading.Event(), threading.Event()
    try:
        with (
            watcher.watch(cookie.session_id, woken.set) as watched,
            watcher.watch(kept.session_id, untouched.set) as other,
            watcher.watch(make_token(database).token.id, untouched.set),
        ):
            end(database, cookie, token)

            assert woken.wait(30.0)
            assert watched.refusal is not None
            assert watched.refusal.code == code
            assert other.refusal is None
            assert not untouched.is_set()
    finally:
        watcher.close()
