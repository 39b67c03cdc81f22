"""Who comes with which token, as the HTTP API and the gateway ask."""

from typing import Any

import pytest
from sqlalchemy import text, update

from ludus.schemas.tokens import Scope
from server.access.checker import REMEMBERED_SECONDS, TokenChecker
from server.access.models import Token
from server.access.repository import TokenRepository
from server.access.service import Made, TokenService
from server.kit.db.database import Database
from server.kit.errors import TokenRefused
from server.kit.principal import CONFIGURED, everything, including


class Clock:
    """A monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(database: Database, *scopes: Scope, project: str = "p", **fields: Any) -> Made:
    with database.write() as session:
        return TokenService(session, everything("test")).create("t", scopes or [Scope.READ], project=project, **fields)


def change(database: Database, made: Made, **columns: Any) -> None:
    with database.write() as session:
        session.execute(update(Token).where(Token.id == made.token.id).values(**columns))


def stored(database: Database, made: Made) -> Token:
    with database.read() as session:
        return TokenRepository(session).get(made.token.id)


def refusal(checker: TokenChecker, token: str) -> str:
    with pytest.raises(TokenRefused) as refused:
        checker.check(token)
    return refused.value.reason


def test_a_token_says_who_may_do_what_where(database: Database) -> None:
    made = make(database, Scope.RUN)

    principal = TokenChecker(database, None).check(made.text)

    assert (principal.name, principal.project, principal.token_id) == ("t", "p", made.token.id)
    assert principal.scopes == {Scope.RUN, Scope.READ, Scope.SIMULATE}
    assert principal.sees("p")
    assert not principal.sees("q")
    assert not principal.sees("*")


def test_scopes_include_those_below_them() -> None:
    assert including([Scope.SIMULATE]) == {Scope.SIMULATE}
    assert including([Scope.READ]) == {Scope.READ}
    assert including([Scope.ADMIN]) == set(Scope)


def test_the_configured_token_may_do_everything_and_costs_no_query(database: Database) -> None:
    checker = TokenChecker(database, "open sesame")

    principal = checker.recall("open sesame")

    assert principal == everything(CONFIGURED)
    assert checker.recall("open sesam") is None


@pytest.mark.parametrize("expired", [True, False])
def test_a_token_that_holds_no_longer_is_refused(database: Database, expired: bool) -> None:
    made = make(database)
    change(database, made, **{"expires_at" if expired else "revoked_at": 1.0})

    assert refusal(TokenChecker(database, None), made.text) == ("expired" if expired else "revoked")


def test_a_wrong_secret_is_as_unknown_as_a_wrong_id(database: Database) -> None:
    made, other = make(database), make(database)
    checker = TokenChecker(database, None)
    secret = other.text.rpartition(other.token.id.removeprefix("tok_"))[2]

    assert refusal(checker, made.text.rpartition(made.token.id[4:])[0] + made.token.id[4:] + secret) == "unknown"
    assert refusal(checker, made.text.replace(made.token.id[4:], "0" * 26)) == "unknown"
    assert refusal(checker, "open sesame") == "unknown"


def test_a_known_token_costs_no_query_for_some_seconds_and_is_asked_for_again_then(database: Database) -> None:
    clock = Clock()
    checker = TokenChecker(database, None, clock)
    made = make(database)
    checker.check(made.text)
    change(database, made, revoked_at=1.0)

    clock.now += REMEMBERED_SECONDS - 0.1
    assert checker.recall(made.text) is not None
    clock.now += 0.2
    assert checker.recall(made.text) is None
    assert refusal(checker, made.text) == "revoked"


def test_a_token_is_not_remembered_beyond_its_expiry(database: Database) -> None:
    clock = Clock()
    checker = TokenChecker(database, None, clock)
    made = make(database, seconds=1.0)
    checker.check(made.text)

    clock.now += 1.1

    assert checker.recall(made.text) is None


def test_forgetting_makes_a_revocation_hold_at_once(database: Database) -> None:
    checker = TokenChecker(database, None)
    made = make(database)
    checker.check(made.text)
    change(database, made, revoked_at=1.0)

    checker.forget()

    assert refusal(checker, made.text) == "revoked"


def test_the_last_use_is_written_at_most_once_a_minute(database: Database) -> None:
    clock = Clock()
    checker = TokenChecker(database, None, clock)
    made = make(database)
    checker.check(made.text)
    first = stored(database, made).last_used_at
    assert first is not None

    clock.now += 10
    checker.check(made.text)
    assert stored(database, made).last_used_at == first

    change(database, made, last_used_at=first - 61)
    clock.now += 10
    checker.check(made.text)
    again = stored(database, made).last_used_at
    assert again is not None
    assert again >= first


def test_the_secret_is_nowhere_in_the_database(database: Database) -> None:
    made = make(database)
    secret = made.text.rpartition("_" + made.token.id[4:] + "_")[2]
    with database.read() as session:
        rows = session.execute(text("SELECT * FROM tokens")).all()

    assert secret not in str(rows)
    assert made.token.digest in str(rows)
