"""An edge collector does everything that a local one does, and its learner sees no difference."""

import platform
import time
from pathlib import Path

import numpy as np
import pytest

from ludus.collector.messages import TimesMeasured
from ludus.protocol.mlagents import agent_pb2 as agent
from tests.ludus.collector.stack import PATIENCE, Learner, edge_collectors, learner, player
from tests.ludus.collector.unity.messages import NAME, brain, message, numbers
from tests.ludus.games.unity.fakes import introduction
from tests.ports import free_port
from worker.collectors import processes
from worker.collectors.events import (
    CollectorDied,
    EdgeCollectorJoined,
    EdgeCollectorLeft,
    EdgeReaderFailed,
    Endpoint,
    RoundCollected,
)
from worker.experience.rollout import Rollout

ROUNDS = 3


def play_rounds(it: Learner, address: str) -> list[Rollout]:
    """Let one simulator play until some rounds are complete; return their segments in order."""
    simulator = player(address)
    simulator.step([1, 2, 3])
    number = 0
    while not it.heard(RoundCollected) or it.heard(RoundCollected)[-1].round < ROUNDS - 1:
        response = simulator.receive()
        if response.HasField("actions"):
            number += 1
            simulator.step([1, 2, 3] if number % 7 else [1, 2], ended=[] if number % 7 else [3])
    simulator.vanish()
    return [rollout for number in range(ROUNDS) for rollout in it.rollouts[number]]


@pytest.mark.parametrize("shares_memory", [False, True])
def test_segments_of_an_edge_collector_have_the_same_bits_as_those_of_a_local_one(shares_memory: bool) -> None:
    with learner() as local:
        expected = play_rounds(local, local.endpoints[0].address)
    with learner(count=1, edge_places=1) as remote, edge_collectors(remote, shares_memory=shares_memory) as (edge,):
        remote.wait_for(EdgeCollectorJoined)
        actual = play_rounds(remote, edge.address)
        assert edge.said[-1].endswith("in the memory of its worker") is shares_memory

    assert len(actual) == len(expected) > 0
    for one, other in zip(actual, expected, strict=True):
        for name in ("continuous", "discrete", "log_probs", "rewards", "versions", "lengths", "endings"):
            assert getattr(one, name).numpy().tobytes() == getattr(other, name).numpy().tobytes(), name
        for mine, theirs in zip(
            (*one.observations, *one.next_observations), (*other.observations, *other.next_observations), strict=True
        ):
            assert np.array_equal(mine.numpy(), theirs.numpy())


def test_a_run_without_edge_collectors_has_no_process_for_them_until_the_first_one_asks() -> None:
    with learner(count=17, edge_places=16) as it:
        local = player(it.endpoints[0].address)
        local.play([1, 2], 3)
        assert (len(it.endpoints), it.pool.children.reader) == (1, None)

        it.pool.open_places()
        it.pool.open_places()

        assert it.wait_for(Endpoint).edge
        with edge_collectors(it) as (edge,):
            joined = it.wait_for(EdgeCollectorJoined)
            assert (joined.index, joined.host) == (1, platform.node())
            remote = player(edge.address)
            remote.play([1, 2], 3)
            local.play([1, 2], 3)


def test_without_a_port_for_the_edge_reader_the_run_goes_on_and_says_so_once() -> None:
    port = free_port()
    with learner(count=17, edge_places=16, port_range=(port, port)) as it:
        it.pool.open_places()

        failed = it.wait_for(EdgeReaderFailed)

        assert f"no free port to listen on: 127.0.0.1, ports ({port}, {port})" in failed.reason
        local = player(it.endpoints[0].address)
        local.play([1, 2], 20)
        local.leave()
        assert it.pool.children.reader is None, "it is not tried again"
        assert not it.heard(CollectorDied)


@pytest.mark.long
def test_the_reader_maps_the_memory_of_the_learner_once_for_all_places() -> None:
    with learner(count=3, edge_places=3) as it, edge_collectors(it, count=3) as edges:
        it.until(lambda: len(it.heard(EdgeCollectorJoined)) == 3)
        simulators = [player(edge.address) for edge in edges]
        for simulator in simulators:
            simulator.play([1, 2], 2)
        reader = it.pool.children.reader
        assert reader is not None
        assert reader.process is not None

        maps = Path(f"/proc/{reader.process.pid}/maps").read_text()
        held = [link.readlink().name for link in Path(f"/proc/{reader.process.pid}/fd").iterdir()]

        for name in ("memfd:ludus-arena-Cart (deleted)", "memfd:ludus-weights (deleted)"):
            assert (maps.count(name), held.count(name)) == (1, 1), "a mapping keeps one descriptor"


def test_the_time_between_an_answer_and_the_next_call_of_a_unity_game_beside_its_edge_collector_is_the_games() -> None:
    agents = {NAME: [agent.AgentInfoProto(id=1, observations=[numbers([1.0, 2.0])])]}
    with learner(count=1, edge_places=1) as it, edge_collectors(it) as (edge,):
        it.wait_for(EdgeCollectorJoined)
        edge.exchange(introduction().SerializeToString(), "unity-1")
        edge.exchange(message({}).SerializeToString(), "unity-1")
        edge.exchange(message(agents, [brain()]).SerializeToString(), "unity-1")

        told = it.wait_for(TimesMeasured, lambda event: any(each.away > 0.1 for each in event.simulators))

        (times,) = told.simulators
        assert times.game == times.away


def test_the_end_of_an_edge_collector_frees_its_place_for_another() -> None:
    with learner(count=1, edge_places=1) as it:
        with edge_collectors(it) as (edge,):
            it.wait_for(EdgeCollectorJoined)
            simulator = player(edge.address)
            simulator.play([1, 2, 3], 4)
            simulator.vanish()
        it.wait_for(EdgeCollectorLeft)

        with edge_collectors(it) as (edge,):
            it.until(lambda: len(it.heard(EdgeCollectorJoined)) == 2)
            assert play_rounds(it, edge.address)


@pytest.mark.parametrize("victim", ["edge reader", "edge collector"])
def test_the_death_of_one_end_costs_its_steps_and_nothing_else(victim: str) -> None:
    with learner(count=2, edge_places=1) as it, edge_collectors(it) as (edge,):
        it.wait_for(EdgeCollectorJoined)
        local = player(next(each.address for each in it.endpoints if not each.edge))
        local.play([1, 2], 3)
        remote = player(edge.address)
        remote.play([1, 2], 3)

        if victim == "edge reader":
            reader = it.pool.children.reader
            assert reader is not None
            assert reader.process is not None
            reader.process.kill()
            assert remote.closed().rejoin
        else:
            edge.close()

        it.wait_for(EdgeCollectorLeft)
        local.play([1, 2], 3)
        for simulator in (local, remote):
            simulator.vanish()


def test_a_collector_in_the_memory_of_its_worker_plays_on_without_the_edge_reader_and_frees_its_place_at_its_end() -> (
    None
):
    with learner(count=1, edge_places=1) as it, edge_collectors(it, shares_memory=True) as (edge,):
        it.wait_for(EdgeCollectorJoined)
        simulator = player(edge.address)
        simulator.play([1, 2, 3], 4)
        reader = it.pool.children.reader
        assert reader is not None
        assert reader.process is not None

        reader.process.kill()
        it.wait_for(Endpoint)  # the next edge reader
        simulator.play([1, 2, 3], 4)
        assert not it.heard(EdgeCollectorLeft)

        edge.close()
        assert simulator.closed().rejoin
        it.wait_for(EdgeCollectorLeft)
        with edge_collectors(it):
            it.until(lambda: len(it.heard(EdgeCollectorJoined)) == 2)


def test_a_place_that_was_opened_to_a_dead_edge_reader_is_opened_to_the_next_one() -> None:
    with learner(count=1, edge_places=1) as it:
        children = it.pool.children
        reader = children.reader
        assert reader is not None
        assert reader.process is not None
        with it.pool.lock:  # the pool's thread hears of the place's end first, and of the reader's only then
            reader.process.kill()
            reader.process.end(PATIENCE)
            children.reap(children[0])
            children.launch(children[0])
        it.wait_for(Endpoint)

        with edge_collectors(it):
            it.wait_for(EdgeCollectorJoined)


def test_an_edge_collector_that_is_interrupted_tells_its_simulators_to_join_again() -> None:
    with learner(count=1, edge_places=1) as it, edge_collectors(it) as (edge,):
        it.wait_for(EdgeCollectorJoined)
        simulator = player(edge.address)

        edge.close()

        closed = simulator.closed()
        assert (closed.code, closed.rejoin) == ("collector_closing", True)


@pytest.mark.long
def test_an_edge_reader_without_anything_to_read_is_not_taken_for_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENCE_SECONDS", 2.0)
    with learner(count=1, edge_places=1) as it:
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            assert not it.heard(CollectorDied)
            with it.heard_one:
                it.heard_one.wait(0.5)


def test_the_end_of_the_run_ends_edge_collectors_and_their_simulators() -> None:
    with learner(count=1, edge_places=1) as it, edge_collectors(it) as (edge,):
        it.wait_for(EdgeCollectorJoined)
        simulator = player(edge.address)

        it.pool.close("run_finished", "every behavior reached its max_steps", rejoin=False)

        assert simulator.closed().code == "run_finished"
        edge.join()
        assert edge.end is not None
        assert "max_steps" in str(edge.end.reason)  # type: ignore[union-attr]  # it is no error
