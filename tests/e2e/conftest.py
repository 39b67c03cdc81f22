"""One embedded stack for the tests that leave it as they found it, and players that never outlive a test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ludus.client import Client
from tests.e2e.stack import LudusUp, Player


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LudusUp]:
    """A stack that all tests of a process share, with quick leases."""
    up = LudusUp(
        tmp_path_factory.mktemp("ludus"), LUDUS_WORKER__LEASE_SECONDS="3", LUDUS_WORKER__HEARTBEAT_SECONDS="0.5"
    )
    yield up
    up.stop()


@pytest.fixture
def client(stack: LudusUp) -> Iterator[Client]:
    """A client of the shared stack. What a test leaves running is cancelled: there is one slot for all."""
    with stack.client() as client:
        yield client
        left = [run for run in client.runs.list(limit=10) if run.state not in {"SUCCEEDED", "FAILED", "CANCELLED"}]
        for run in left:
            client.runs.cancel(run.id)
            client.runs.wait(run.id, timeout=60)


@pytest.fixture
def play(stack: LudusUp) -> Iterator[Callable[..., Player]]:
    """Start players; they are ended with the test."""
    players: list[Player] = []

    def start(run: str, *options: str, **settings: Any) -> Player:
        players.append(Player(stack, run, *options, **settings))
        return players[-1]

    yield start
    for player in players:
        player.kill()
