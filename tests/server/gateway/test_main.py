"""What a gateway checks before it serves, and how long it counts a game as waiting."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from ludus.protocol.tls import is_loopback
from server.gateway.main import check, open_placement
from server.gateway.waiting import LONGEST_PAUSE_SECONDS
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.listening import GatewaySettings
from server.kit.ports import CannotStart
from server.kit.settings import Settings
from server.runs.repository import RunRepository
from server.simulators.repository import RENEW_SHARE
from tests.factories import make_run, read_run


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "games.example"])
def test_listening_to_the_world_needs_a_token(host: str) -> None:
    with pytest.raises(CannotStart, match="LUDUS_GATEWAY__TOKEN"):
        check(GatewaySettings(host=host))

    check(GatewaySettings(host=host, token=SecretStr("secret")))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check(GatewaySettings(host=host))


def test_a_short_ticket_key_is_refused() -> None:
    with pytest.raises(CannotStart, match="at least 32 bytes"):
        check(GatewaySettings(ticket_key=SecretStr("short")))


@pytest.mark.parametrize("hold_seconds", [1.0, 30.0, 100.0])
def test_a_game_counts_as_waiting_until_it_asks_again_whether_its_call_is_held_or_not(
    tmp_path: Path, hold_seconds: float
) -> None:
    settings = Settings(home=tmp_path, gateway=GatewaySettings(hold_seconds=hold_seconds))
    database = Database.from_settings(settings.database)
    upgrade_database(database)
    make_run(database, name="run")
    open_placement(settings, database).join("run", "inc")
    with database.read() as session:
        left = (read_run(database, "run").awaited_until or 0.0) - RunRepository(session).clock()
    database.close()

    longest = max(hold_seconds, LONGEST_PAUSE_SECONDS / 0.8)
    assert left * RENEW_SHARE > longest
