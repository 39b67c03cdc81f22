"""Which collector serves which simulator, and with which ticket."""

import os
import signal
import socket
import time

import pytest

from ludus.collector.messages import SimulatorLeft, SimulatorStarted, StatsReported
from ludus.config.network import MemorySettings, NetworkSettings
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import Aggregation
from ludus.protocol.environment_parameters import Constant
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.tickets import TicketClaims, sign
from tests.ludus.collector.stack import SPEC, Learner, Playing, Simulator, learner, pids_of, player
from tests.waiting import eventually
from worker.collectors.events import CollectorDied, Endpoint, EpisodesEnded, RoundCollected, SegmentsDelivered


def test_welcome_tells_seed_number_parameters_and_limits() -> None:
    with learner(
        environment_parameters={"gravity": Constant(9.5)}, max_message_bytes=12345, step_timeout=33.0
    ) as trainer:
        first, second = Simulator(trainer.endpoints[0].address), Simulator(trainer.endpoints[0].address)
        welcomes = [first.hello(SPEC).welcome, second.hello().welcome]

    # The run's seed is 7.
    assert [(welcome.simulator_number, welcome.seed) for welcome in welcomes] == [(0, 7), (1, 8)]
    assert dict(welcomes[0].environment_parameters) == {"gravity": 9.5}
    assert (welcomes[0].run_id, welcomes[0].max_message_bytes, welcomes[0].step_timeout_seconds) == ("run-1", 12345, 33)


def test_a_newer_stream_of_an_session_id_takes_the_place_of_the_older_one() -> None:
    with learner(count=2) as trainer:
        here, there = (endpoint.address for endpoint in trainer.endpoints)
        first = player(here, session_id="twin")
        second = player(here, session_id="twin")
        assert first.closed().code == "superseded"
        third = player(there, session_id="twin")
        assert second.closed().code == "superseded"
        third.play([0], 2)


def test_behaviors_may_be_announced_after_hello() -> None:
    with learner() as trainer:
        simulator = Simulator(trainer.endpoints[0].address)
        simulator.hello()

        simulator.send(pb.Announce(behaviors=simulator.make_hello(SPEC).behaviors))

        simulator.play([0], 3)
        started = trainer.wait_for(SimulatorStarted)
        assert (started.behaviors, started.agents) == ((SPEC.name,), 1)


def test_agents_wait_while_the_learner_decides_and_end_when_it_refuses() -> None:
    with learner() as trainer:
        trainer.refusals["Cart"] = ("behavior_not_configured", "no such behavior; the configuration has 'Other'")
        simulator = Simulator(trainer.endpoints[0].address)
        simulator.send(simulator.make_hello(SPEC))
        simulator.step([0])

        assert simulator.receive().HasField("welcome")
        close = simulator.closed()
        assert (close.code, "Other" in close.reason) == ("behavior_not_configured", True)
        later = Simulator(trainer.endpoints[0].address)
        later.send(later.make_hello(SPEC))
        assert later.closed().code == "behavior_not_configured"


def test_reported_numbers_arrive_summed_up() -> None:
    with learner() as trainer:
        simulator = player(trainer.endpoints[0].address)
        for value in (1.0, 2.0, 6.0):
            step = simulator.make_step([0])
            step.stats.add(key="Score", value=value)
            step.stats.add(key="Level", value=value, aggregation=pb.AGGREGATION_HISTOGRAM)
            simulator.send(step)
            simulator.receive()

        def collected() -> dict[str, list[StatsReported]]:
            rows = trainer.heard(StatsReported)
            return {key: [row for row in rows if row.key == key] for key in ("Score", "Level")}

        eventually(lambda: all(sum(row.count for row in rows) == 3 for rows in collected().values()))
        simulator.leave()

        rows = collected()
        assert sum(row.total for row in rows["Score"]) == 9.0
        assert (rows["Score"][-1].last, rows["Score"][0].aggregation) == (6.0, Aggregation.AVERAGE)
        assert [value for row in rows["Level"] for value in row.values] == [1.0, 2.0, 6.0]


def test_what_was_reported_in_an_episode_arrives_before_its_end() -> None:
    with learner(size=4) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0], 1)
        for _ in range(40):
            step = simulator.make_step([0], ended=[0])
            step.stats.add(key="Won", value=1.0)
            simulator.send(step)
            simulator.receive()
        eventually(lambda: sum(len(each.records) for each in trainer.heard(EpisodesEnded)) >= 36)
        simulator.leave()

        reported = ended = 0
        for notice in list(trainer.events):
            if isinstance(notice, StatsReported):
                reported += notice.count
            elif isinstance(notice, EpisodesEnded):
                ended += len(notice.records)
                assert reported >= ended


def test_reset_voids_what_was_pending_and_ignores_what_was_under_way() -> None:
    with learner(size=4, lockstep=False) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 2)
        simulator.step([0, 1])  # held
        trainer.wait_for(RoundCollected)

        trainer.pool.send_parameters({"gravity": Constant(1.5)}, 0, reset=True)

        reset = simulator.receive().reset
        assert (reset.reset_id, dict(reset.environment_parameters)) == (1, {"gravity": 1.5})
        simulator.step([5])  # sent before the reset was carried out
        fresh = simulator.make_step([0])
        fresh.reset_id = 1
        simulator.send(fresh)
        trainer.pool.grant(SPEC.behavior, 1, 4)
        actions = simulator.receive().actions
        assert actions.step_id == simulator.step_id


def test_two_behaviors_of_one_simulator_learn_apart() -> None:
    other = BehaviorSpec("Other", SPEC.observations, SPEC.actions)
    with learner(size=6, lockstep=False) as trainer:
        simulator = Simulator(trainer.endpoints[0].address)
        simulator.hello(SPEC, other)
        for _ in range(3):
            step = simulator.make_step([0, 1])
            step.behaviors.add().CopyFrom(step.behaviors[0])
            step.behaviors[1].behavior = "Other"
            simulator.send(step)
            answered = {simulator.receive().actions.behaviors[0].behavior for _ in range(2)}
            assert answered == {"Cart", "Other"}
        simulator.step([0, 1])

        trainer.wait_for(RoundCollected, lambda notice: notice.behavior == "Cart")
        assert {notice.behavior for notice in trainer.heard(SegmentsDelivered)} == {"Cart"}


@pytest.mark.long
def test_collectors_act_on_the_device_of_the_program_if_the_policy_needs_torch() -> None:
    # On "meta" weights can be placed and nothing can be computed: whoever acts there can't go on.
    memory = NetworkSettings(hidden_units=8, num_layers=1, memory=MemorySettings(memory_size=4))
    with learner(network=memory, device="meta") as trainer:
        playing = Playing(player(trainer.endpoints[0].address), 2)
        died = trainer.wait_for(CollectorDied)
        assert died.index == 0
        assert "NotImplementedError: Cannot copy out of meta tensor" in died.reason
        playing.stop()
    with learner(device="meta") as trainer:
        playing = Playing(player(trainer.endpoints[0].address), 2)
        trainer.wait_for(RoundCollected)
        playing.stop()

        assert not trainer.heard(CollectorDied), "plain policies act in numpy"


KEY = b"k" * 32


def make_ticket(simulator: Simulator, **changes: object) -> str:
    claims = {
        "run_id": "run-1",
        "attempt": 1,
        "session_id": simulator.session_id,
        "number": 41,
        "expires_at": time.time() + 60,
        **changes,
    }
    return sign(KEY, TicketClaims(**claims))  # type: ignore[arg-type]  # by name


@pytest.fixture(scope="module")
def guarded() -> object:
    with learner(ticket_key=KEY) as trainer:
        yield trainer


def test_a_ticket_opens_a_session_under_its_number(guarded: Learner) -> None:
    simulator = Simulator(guarded.endpoints[0].address)

    welcome = simulator.hello(SPEC, ticket=make_ticket(simulator)).welcome

    assert (welcome.simulator_number, welcome.seed) == (41, 48)
    simulator.leave()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"expires_at": time.time() - 1}, "ticket_expired"),
        ({"run_id": "run-2"}, "ticket_expired"),
        ({"attempt": 2}, "ticket_expired"),
        ({"session_id": "someone-else"}, "bad_ticket"),
        ({"endpoint": "127.0.0.1:1"}, "ticket_expired"),
        ({"generation": 1}, "ticket_expired"),
    ],
)
def test_a_ticket_for_something_else_is_refused(guarded: Learner, changes: dict[str, object], code: str) -> None:
    simulator = Simulator(guarded.endpoints[0].address)

    simulator.send(simulator.make_hello(SPEC, ticket=make_ticket(simulator, **changes)))

    assert simulator.closed().code == code
    left = guarded.wait_for(SimulatorLeft, lambda notice: notice.session_id == simulator.session_id)
    assert (left.code, left.number) == (code, -1)
    simulator.leave()


@pytest.mark.parametrize("ended", [True, False])
def test_a_ticket_opens_one_session_and_a_copy_of_it_none(guarded: Learner, ended: bool) -> None:
    simulator = Simulator(guarded.endpoints[0].address)
    ticket = make_ticket(simulator, endpoint=guarded.endpoints[0].address)
    simulator.hello(SPEC, ticket=ticket)
    if ended:
        simulator.leave()
        guarded.wait_for(SimulatorLeft, lambda notice: notice.session_id == simulator.session_id)
    thief = Simulator(guarded.endpoints[0].address)
    thief.session_id = simulator.session_id

    thief.send(thief.make_hello(SPEC, ticket=ticket))

    assert thief.closed().code == "ticket_expired"
    thief.leave()
    if not ended:  # it plays on
        simulator.leave()
        left = guarded.wait_for(SimulatorLeft, lambda notice: notice.number == 41)
        assert left.code not in {"replaced", "ticket_expired"}


def test_a_copy_of_a_ticket_opens_no_session_at_the_collectors_successor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with learner(ticket_key=KEY, port_range=(port, port)) as trainer:
        first = trainer.endpoints[0]
        simulator = Simulator(first.address)
        ticket = make_ticket(simulator, endpoint=first.address, generation=first.generation)
        simulator.hello(SPEC, ticket=ticket)
        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)
        second = trainer.wait_for(Endpoint)
        assert (second.address, second.generation) == (first.address, first.generation + 1)
        simulator.leave()
        thief = Simulator(second.address)
        thief.session_id = simulator.session_id

        thief.send(thief.make_hello(SPEC, ticket=ticket))

        assert thief.closed().code == "ticket_expired"
        fresh = make_ticket(simulator, endpoint=second.address, generation=second.generation)
        again = Simulator(second.address)
        again.session_id = simulator.session_id
        again.hello(SPEC, ticket=fresh)


@pytest.mark.parametrize("ticket", ["", "garbage", "1.e30.AAAA"])
def test_a_session_without_a_genuine_ticket_is_refused(guarded: Learner, ticket: str) -> None:
    simulator = Simulator(guarded.endpoints[0].address)

    simulator.send(simulator.make_hello(SPEC, ticket=ticket))

    assert simulator.closed().code == "bad_ticket"
    simulator.leave()
