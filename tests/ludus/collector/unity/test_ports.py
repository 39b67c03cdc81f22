"""A fixed port for players on the worker's host, beside the port of everybody else."""

import socket
from collections.abc import Iterator

import pytest

from ludus.collector.messages import SimulatorConnected
from ludus.collector.settings import CollectorSettings
from tests.ludus.collector.stack import Learner, learner
from tests.ludus.collector.unity.players import Participant, left, number_of, port_of
from tests.ports import free_port
from tests.unity.descriptions import Behavior
from tests.unity.player import Player
from tests.unity.transcripts import check_transcript
from worker.collectors.pool import CollectorPool, CollectorStartError

GAME = [Behavior("Local?team=0", agents=2, continuous=1)]


UNITY_PORT = free_port()


@pytest.fixture(scope="module")
def trainer() -> Iterator[Learner]:
    with learner(count=2, size=96, unity_port=UNITY_PORT, ticket_key=b"k" * 32) as running:
        yield running


def test_collectors_share_the_port_and_ask_for_no_tickets(trainer: Learner) -> None:
    participants = [Participant(Player(UNITY_PORT, GAME, record=True), 10) for _ in range(16)]
    summaries = [participant.end() for participant in participants]

    assert {summary.ending for summary in summaries} == {"left"}
    assert all(check_transcript(participant.player.transcript) == [] for participant in participants)
    numbers = {number_of(summary) for summary in summaries}
    assert len(numbers) == 16
    collectors = {notice.collector for notice in trainer.heard(SimulatorConnected) if notice.number in numbers}
    assert collectors == {0, 1}, "the kernel deals the players out"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_players_may_dial_either_loopback(host: str, trainer: Learner) -> None:
    participant = Participant(Player(UNITY_PORT, GAME, host=host), 3)

    assert participant.end().ending == "left"
    notice = left(trainer, number_of(participant.player.summary))
    assert notice.peer.startswith("ipv4:127.0.0.1" if host == "127.0.0.1" else "ipv6:%5B::1%5D")


def test_the_other_port_still_asks_for_tickets(trainer: Learner) -> None:
    summary = Participant(Player(port_of(trainer), GAME)).end()

    assert summary.ending == "inference"
    assert trainer.wait_for(type(left(trainer, -1)), lambda notice: notice.number == -1).code == "bad_ticket"


def test_a_collector_does_not_start_on_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(CollectorStartError, match=rf"port {port} \(simulators.unity_port\) is taken on this host"):
            CollectorPool(CollectorSettings("run", 1, 7, unity_port=port)).start()
