"""Restarts are counted as ML-Agents counts them, logs are kept, and games use no proxy for this machine."""

from pathlib import Path

import pytest

from ludus.games.process import PlayerLog, RestartQuota, player_environment
from tests.clock import Clock


def test_restarts_are_limited_within_a_period() -> None:
    clock = Clock()
    quota = RestartQuota(lifetime=10, rate=2, period_seconds=60, clock=clock)

    taken = []
    for clock.now in (0, 1, 2, 61, 62, 63):
        taken.append(quota.take())

    assert taken == [True, True, False, True, True, False]


def test_restarts_are_limited_over_a_lifetime() -> None:
    clock = Clock()
    quota = RestartQuota(lifetime=2, rate=1, period_seconds=60, clock=clock)

    taken = []
    for clock.now in (0, 100, 200):
        taken.append(quota.take())

    assert taken == [True, True, False]


def test_minus_one_means_any_number() -> None:
    assert all(RestartQuota(lifetime=-1, rate=-1).take() for _ in range(50))
    assert not RestartQuota(lifetime=0, rate=-1).take()
    assert not RestartQuota(lifetime=-1, rate=0).take()


def test_logs_of_earlier_processes_are_put_aside(tmp_path: Path) -> None:
    log = PlayerLog(tmp_path / "logs", worker=3)
    for life in ("first", "second", "third"):
        log.make_room()
        log.player.write_text(life)

    kept = {file.name: file.read_text() for file in log.folder.iterdir()}
    assert kept == {"Player-3.log": "third", "Player-3.1.log": "first", "Player-3.2.log": "second"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"no_proxy": "localhost,127.0.0.1,::1", "NO_PROXY": "localhost,127.0.0.1,::1"}),
        (
            {"NO_PROXY": "intra.net,localhost", "HTTP_PROXY": "http://proxy:3128"},
            {
                "NO_PROXY": "intra.net,localhost,127.0.0.1,::1",
                "no_proxy": "localhost,127.0.0.1,::1",
                "HTTP_PROXY": "http://proxy:3128",
            },
        ),
        # gRPC reads this one alone where it is set.
        (
            {"no_grpc_proxy": "a"},
            {
                "no_grpc_proxy": "a,localhost,127.0.0.1,::1",
                "no_proxy": "localhost,127.0.0.1,::1",
                "NO_PROXY": "localhost,127.0.0.1,::1",
            },
        ),
    ],
)
def test_a_games_calls_to_this_machine_go_through_no_proxy(before: dict[str, str], after: dict[str, str]) -> None:
    assert player_environment(before) == after
