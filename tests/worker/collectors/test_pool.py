"""Pool, collectors and simulators together, as processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import psutil
import pytest
import torch

from ludus.collector.messages import (
    BehaviorAnnounced,
    Kind,
    SimulatorConnected,
    SimulatorLeft,
    SimulatorStarted,
    StatsReported,
)
from ludus.collector.settings import CollectorSettings
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import Aggregation
from ludus.protocol.environment_parameters import Constant
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.tickets import TicketClaims, sign
from tests.ludus.collector.stack import SPEC, Learner, Simulator, learner, player
from tests.ludus.protocol.test_server_tls import CERTIFICATE, PRIVATE
from tests.waiting import eventually, never
from worker.collectors.events import CollectorDied, CollectorListening, EpisodesEnded, RoundCollected, SegmentsDelivered
from worker.collectors.pool import CollectorPool, CollectorStartError
from worker.collectors.processes import WarmCollector
from worker.experience.rollout import Rollout

KEY = b"k" * 32


class Playing:
    """A simulator that plays in a thread of its own until it is told to stop, or its stream ends."""

    def __init__(self, simulator: Simulator, agents: int) -> None:
        self.simulator = simulator
        self.answers = 0
        self.close: pb.Close | None = None
        self._agents = range(agents)
        self._stop = False
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        try:
            self.simulator.step(self._agents)
            while not self._stop:
                response = self.simulator.receive()
                if response.HasField("close"):
                    self.close = response.close
                    return
                self.answers += 1
                # Agent 0's episodes last 10 steps.
                ended = [0] if self.answers % 10 == 0 else []
                self.simulator.step(self._agents, ended=ended)
        except (StopIteration, grpc.RpcError):
            pass  # its collector died, or `stop` was called

    def stop(self) -> None:
        self._stop = True
        self.simulator.vanish()
        self._thread.join()


def pids_of(pool: CollectorPool) -> list[int]:
    return [child.warm.process.pid for child in pool._children if child.warm is not None]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# Rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collectors", [1, 2])
def test_a_round_of_one_collector_has_exactly_its_size_and_that_of_two_is_cut_at_it(collectors: int) -> None:
    def ticks_and_collector(rollout: Rollout) -> tuple[int, int]:
        return int(rollout.ticks[0]) >> 32, int(rollout.simulators) % collectors

    own = {(index, index) for index in range(collectors)}  # ticks of each collector lie in a range of its own
    with learner(count=collectors, size=100, horizon=16) as trainer:
        players = [
            Playing(player(endpoint.address), agents)
            for endpoint, agents in zip(trainer.endpoints * 2, (3, 7, 12, 1), strict=False)
        ]
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 12)
        # One collector may fill rounds alone while the other is slow: wait until both have delivered.
        trainer.until(
            lambda: {ticks_and_collector(each) for rollouts in trainer.rollouts.values() for each in rollouts} == own
        )
        for playing in players:
            playing.stop()

        for number in range(12):
            # Of two collectors the segment that completes the round may be longer than what it lacked.
            assert 0 <= sum(rollout.steps for rollout in trainer.rollouts[number]) - 100 < (16 if collectors > 1 else 1)
        for number in range(12):
            versions = torch.cat([rollout.versions for rollout in trainer.rollouts[number]])
            # Version r + 1 acts in round r; what a message had too much for the round before is a version older. Steps
            # of several collectors that arrive after their round was cut count into a later one, as they are.
            assert max(versions.tolist()) <= number + 1
            assert collectors > 1 or min(versions.tolist()) >= number
            assert {ticks_and_collector(rollout) for rollout in trainer.rollouts[number]} <= own
            assert collectors > 1 or (versions == number).sum() <= 3 + 7


@pytest.mark.parametrize("collectors", [1, 2])
@pytest.mark.parametrize("size", [1, 10])
def test_rounds_of_less_than_a_message_have_their_size_and_leave_nobody_out(size: int, collectors: int) -> None:
    with learner(count=collectors, size=size, horizon=16) as trainer:
        players = [Playing(player(endpoint.address), 12) for endpoint in trainer.endpoints * 2]
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 480 // size)
        for playing in players:
            playing.stop()

        rounds = [trainer.rollouts[number] for number in range(480 // size)]
        assert {sum(rollout.steps for rollout in rollouts) for rollouts in rounds} == {size}
        shares = Counter(int(rollout.simulators) for rollouts in rounds for rollout in rollouts)
        assert len(shares) == len(players)
        assert min(shares.values()) >= 48 // collectors


def test_segments_carry_what_followed_and_what_it_was_worth() -> None:
    with learner(size=30, horizon=8, lockstep=False) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([5, 9], 12)
        simulator.step([9], ended=[5], reward=3.0)
        simulator.receive()
        trainer.wait_for(EpisodesEnded)
        eventually(lambda: sum(rollout.steps for rollout in trainer.rollouts.get(0, [])) >= 20)
        simulator.leave()

        for rollout in trainer.rollouts[0]:
            observations, (following,) = rollout.observations[0], rollout.next_observations[0]
            # Observation 0 is the step that brought it: consecutive within the segment, and one more after it.
            first = float(observations[0, 0])
            assert observations[:, 0].tolist() == [first + step for step in range(rollout.steps)]
            assert following[0] == first + rollout.steps
            assert observations[:, 1].unique().tolist() == [following[1]]
        ended = next(rollout for rollout in trainer.rollouts[0] if rollout.endings[0] == 1)
        # 12 decisions of agent 5: a segment of 8, and one of 4 whose last step was worth 3.
        assert ended.rewards.tolist() == [1.0, 1.0, 1.0, 3.0]
        assert not ended.starts_episode[0]


def test_episodes_are_reported_with_their_undiscounted_return_and_length() -> None:
    with learner(size=1000) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 5)
        simulator.step([0], ended=[1, 0], reward=2.0)
        simulator.receive()

        episodes = trainer.wait_for(EpisodesEnded)
        simulator.leave()

        # The reward of the first message belongs to no decision: 4 x 1 + 2.
        assert sorted(zip(episodes.agents, episodes.returns, episodes.lengths, strict=True)) == [(0, 6, 5), (1, 6, 5)]
        assert not episodes.truncated.any()


def test_a_frozen_simulator_does_not_hold_up_the_others() -> None:
    with learner(size=50, late_agents_grace=0.1) as trainer:
        frozen = player(trainer.endpoints[0].address)
        frozen.step([0, 1])
        frozen.receive()
        playing = Playing(player(trainer.endpoints[0].address), 4)

        trainer.wait_for(RoundCollected, lambda notice: notice.round == 3)
        playing.stop()
        frozen.leave()

        assert [sum(rollout.steps for rollout in trainer.rollouts[number]) for number in range(3)] == [50, 50, 50]


def test_an_agent_that_its_game_forgets_does_not_hold_up_the_round() -> None:
    with learner(size=40, late_agents_grace=0.1) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1, 2], 1)

        playing = Playing(simulator, 2)  # agent 2 is never heard of again

        trainer.wait_for(RoundCollected, lambda notice: notice.round == 2)
        playing.stop()
        assert [sum(rollout.steps for rollout in trainer.rollouts[number]) for number in range(2)] == [40, 40]


def test_a_behavior_whose_training_is_over_is_still_answered() -> None:
    with learner(size=4, lockstep=False) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 2)
        trainer.wait_for(BehaviorAnnounced)
        trainer.pool.grant_unrecorded(SPEC.behavior)

        simulator.play([0, 1], 50)
        simulator.leave()

        assert sum(rollout.steps for rollouts in trainer.rollouts.values() for rollout in rollouts) <= 4


# Faults ------------------------------------------------------------------------------------------------------------


def test_a_killed_collector_costs_only_its_partial_segments() -> None:
    with learner(count=2, size=200, horizon=16) as trainer:
        lost = Playing(player(trainer.endpoints[0].address), 5)
        going_on = Playing(player(trainer.endpoints[1].address), 5)
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 1)
        victim = pids_of(trainer.pool)[0]

        os.kill(victim, signal.SIGKILL)

        died = trainer.wait_for(CollectorDied)
        listening = trainer.wait_for(CollectorListening)
        assert (died.index, died.exit_code, listening.endpoint.index) == (0, -signal.SIGKILL, 0)
        assert died.reason == "signal SIGKILL"
        left = trainer.wait_for(SimulatorLeft, lambda notice: notice.session_id == lost.simulator.session_id)
        assert (left.code, left.reason) == ("collector_died", "its collector ended (signal SIGKILL)")
        lost.stop()
        back = Playing(player(listening.endpoint.address), 5)
        rounds = len(trainer.heard(RoundCollected))
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= rounds + 4)
        assert not trainer.heard(SimulatorLeft)[1:], "the other collector's simulator did not notice"
        for playing in (going_on, back):
            playing.stop()

        for number in range(rounds + 3):
            assert 200 <= sum(rollout.steps for rollout in trainer.rollouts[number]) < 216, "at most a segment too much"
        ledger = trainer.pool._behaviors[SPEC.behavior].ledger
        eventually(lambda: ledger.owned_by(0) + ledger.owned_by(1) + ledger.free == len(ledger._owners))


def test_the_only_collector_is_started_again_and_its_round_goes_on() -> None:
    with learner(size=100) as trainer:
        first = Playing(player(trainer.endpoints[0].address), 4)
        trainer.wait_for(RoundCollected)

        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)
        listening = trainer.wait_for(CollectorListening)
        first.stop()
        second = Playing(player(listening.endpoint.address), 4)
        rounds = len(trainer.heard(RoundCollected))
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= rounds + 2)
        second.stop()

        assert [sum(r.steps for r in trainer.rollouts[number]) for number in range(rounds + 2)] == [100] * (rounds + 2)
        numbers = [notice.number for notice in trainer.heard(SimulatorConnected)]
        assert len(set(numbers)) == len(numbers), "numbers are not given twice"


def test_a_frozen_collector_is_replaced_and_one_that_only_idles_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.collectors.processes.SILENCE_SECONDS", 4.0)
    with learner(count=2, size=100) as trainer:
        frozen, idle = pids_of(trainer.pool)
        simulator = player(trainer.endpoints[0].address)

        os.kill(frozen, signal.SIGSTOP)

        died = trainer.wait_for(CollectorDied)
        assert (died.index, died.exit_code) == (0, -signal.SIGKILL)
        assert died.silent_seconds is not None
        assert died.silent_seconds > 4.0
        assert died.reason == f"it had said nothing for {died.silent_seconds:.0f} s, and the trainer killed it"
        assert trainer.wait_for(SimulatorLeft).reason == f"its collector ended ({died.reason})"
        simulator.leave()
        assert trainer.wait_for(CollectorListening).endpoint.index == 0
        assert pids_of(trainer.pool)[1] == idle


def test_collectors_end_when_the_learner_is_killed() -> None:
    command = [sys.executable, "-m", "tests.worker.collectors.killed_learner"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert all(psutil.pid_exists(pid) for pid in children)

    process.kill()
    process.wait()
    process.stdout.close()

    eventually(lambda: all(not psutil.pid_exists(pid) or is_zombie(pid) for pid in children))


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_warm_process_ends_when_its_learner_goes_away() -> None:
    warm = WarmCollector.spawn()

    warm.close()

    assert warm.process.exit_code() is not None


def test_a_simulator_that_breaks_off_is_reported() -> None:
    with learner() as trainer:
        polite, rude = player(trainer.endpoints[0].address), player(trainer.endpoints[0].address)
        polite.play([0], 2)

        polite.half_close()
        rude.vanish()

        left = trainer.wait_for(SimulatorLeft, lambda notice: notice.session_id == polite.session_id)
        assert (left.code, left.steps) == ("left", 1)
        assert (
            trainer.wait_for(SimulatorLeft, lambda notice: notice.session_id == rude.session_id).code == "disconnected"
        )
        polite.leave()


def test_a_simulator_that_hangs_is_ended_by_name_after_the_step_timeout() -> None:
    with learner(step_timeout=0.3) as trainer:
        hung, alive = player(trainer.endpoints[0].address), player(trainer.endpoints[0].address)
        hung.play([0, 1], 3)
        hung.step([0, 1])
        hung.receive()
        playing = Playing(alive, 2)

        close = hung.closed()

        assert (close.code, close.rejoin) == ("step_timeout", True)
        assert playing.close is None
        playing.stop()
        hung.leave()


def test_a_simulator_whose_agents_are_held_is_not_taken_for_hung() -> None:
    with learner(step_timeout=0.2, lockstep=False, size=2) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 1)
        simulator.step([0, 1])  # held: nothing was sent that it could answer
        trainer.wait_for(RoundCollected)
        never(lambda: trainer.heard(SimulatorLeft), "the simulator is sent away", 0.5)

        trainer.pool.grant(SPEC.behavior, 1, 2)

        assert simulator.receive().HasField("actions")
        simulator.leave()


def test_start_up_has_a_time_limit_of_its_own() -> None:
    with learner(step_timeout=0.1, startup_timeout=0.6) as trainer:
        slow = player(trainer.endpoints[0].address)
        begin = time.monotonic()

        close = slow.closed()

        assert close.code == "step_timeout"
        assert "Welcome" in close.reason
        assert time.monotonic() - begin > 0.4
        slow.leave()


# Sessions ----------------------------------------------------------------------------------------------------------


def test_welcome_tells_seed_number_parameters_and_limits() -> None:
    with learner(
        environment_parameters={"gravity": Constant(9.5)}, max_message_bytes=12345, step_timeout=33.0
    ) as trainer:
        first, second = Simulator(trainer.endpoints[0].address), Simulator(trainer.endpoints[0].address)
        welcomes = [first.hello(SPEC).welcome, second.hello().welcome]
        for simulator in (first, second):
            simulator.leave()

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
        for simulator in (first, second, third):
            simulator.leave()


def test_behaviors_may_be_announced_after_hello() -> None:
    with learner() as trainer:
        simulator = Simulator(trainer.endpoints[0].address)
        simulator.hello()

        simulator.send(pb.Announce(behaviors=simulator.make_hello(SPEC).behaviors))

        simulator.play([0], 3)
        started = trainer.wait_for(SimulatorStarted)
        assert (started.behaviors, started.agents) == ((SPEC.name,), 1)
        simulator.leave()


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
        for each in (simulator, later):
            each.leave()


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
        eventually(lambda: sum(len(each.lengths) for each in trainer.heard(EpisodesEnded)) >= 36)
        simulator.leave()

        reported = ended = 0
        for notice in list(trainer.events):
            if isinstance(notice, StatsReported):
                reported += notice.count
            elif isinstance(notice, EpisodesEnded):
                ended += len(notice.lengths)
                assert reported >= ended


def test_reset_voids_what_was_pending_and_ignores_what_was_under_way() -> None:
    with learner(size=4, lockstep=False) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 2)
        simulator.step([0, 1])  # held
        trainer.wait_for(RoundCollected)

        trainer.pool.reset({"gravity": Constant(1.5)})

        reset = simulator.receive().reset
        assert (reset.reset_id, dict(reset.environment_parameters)) == (1, {"gravity": 1.5})
        simulator.step([5])  # sent before the reset was carried out
        fresh = simulator.make_step([0])
        fresh.reset_id = 1
        simulator.send(fresh)
        trainer.pool.grant(SPEC.behavior, 1, 4)
        actions = simulator.receive().actions
        assert actions.step_id == simulator.step_id
        simulator.leave()


# Tickets -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("ticket", ["", "garbage", "1.e30.AAAA"])
def test_a_session_without_a_genuine_ticket_is_refused(guarded: Learner, ticket: str) -> None:
    simulator = Simulator(guarded.endpoints[0].address)

    simulator.send(simulator.make_hello(SPEC, ticket=ticket))

    assert simulator.closed().code == "bad_ticket"
    simulator.leave()


# Start and end -----------------------------------------------------------------------------------------------------


def test_a_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        pool = CollectorPool(CollectorSettings("run", 1, 7, port_range=(port, port)))

        with pytest.raises(CollectorStartError, match=f"collector 0 did not start: .*no free port.*{port}"):
            pool.start()


def test_a_collector_that_cannot_be_started_again_says_so_once(tmp_path: Path) -> None:
    certificate = tmp_path / "server.pem"
    shutil.copy(CERTIFICATE, certificate)
    with learner(tls_certificate=str(certificate), tls_key=str(PRIVATE)) as trainer:
        certificate.unlink()
        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)

        reason = trainer.wait_for(CollectorDied, lambda notice: notice.exit_code == 1).reason

        assert reason.startswith(f"exit code 1: ValueError: {certificate} cannot be read (No such file or directory)")
        child = trainer.pool._children[0]
        eventually(lambda: child.generation >= 3)
        assert [each.exit_code for each in trainer.heard(CollectorDied)] == [-signal.SIGKILL, 1]
        shutil.copy(CERTIFICATE, certificate)
        trainer.wait_for(CollectorListening)


def test_a_collector_that_makes_a_mistake_tells_its_simulators_so_before_it_ends() -> None:
    with learner() as trainer:
        simulator = player(trainer.endpoints[0].address)
        with trainer.pool._lock:
            trainer.pool._children.send(trainer.pool._children[0], Kind.MESSAGE, b"no message")

        close = simulator.closed()

        assert (close.code, close.rejoin) == ("internal_error", True)
        assert close.reason == "the collector made a mistake and is started again; its log has the details"
        left = trainer.wait_for(SimulatorLeft)
        assert (left.session_id, left.code, left.reason) == (simulator.session_id, close.code, close.reason)
        assert trainer.wait_for(CollectorDied).exit_code == 1
        trainer.wait_for(CollectorListening)


def test_collectors_take_the_ports_of_their_range() -> None:
    first = free_port()
    pool = CollectorPool(CollectorSettings("run", 1, 7, count=2, port_range=(first, first + 20)))

    endpoints = pool.start()
    pool.close("run_finished", "the test is over", rejoin=False)

    assert len({endpoint.port for endpoint in endpoints}) == 2
    assert all(first <= endpoint.port <= first + 20 for endpoint in endpoints)


def started(pool: CollectorPool) -> tuple[float, list[int]]:
    """Start and close a pool; return how long it took until its collector listened, and its processes."""
    begin = time.monotonic()
    (endpoint,) = pool.start()
    elapsed = time.monotonic() - begin
    assert endpoint.port
    pids = pids_of(pool)
    pool.close("run_finished", "the test is over", rejoin=False)
    return elapsed, pids


def test_a_warm_process_is_adopted_and_serves_much_sooner_than_a_cold_one() -> None:
    warm = WarmCollector.spawn()
    busy = psutil.Process(warm.process.pid)
    used = 0.0
    while (now := sum(busy.cpu_times()[:2])) > used or not now:
        used = now
        time.sleep(0.3)  # allow: sleep, because a process that imports uses up time, and one that waits does not

    soon, pids = started(CollectorPool(CollectorSettings("run", 1, 7), [warm]))
    late, _ = started(CollectorPool(CollectorSettings("run", 1, 7)))

    assert pids == [warm.process.pid]
    assert soon < late / 2


def test_closing_tells_every_simulator_why_and_ends_the_processes() -> None:
    pool = CollectorPool(CollectorSettings("run", 1, 7, count=2))
    endpoints = pool.start()
    simulators = [player(endpoint.address) for endpoint in endpoints]
    pids = pids_of(pool)

    pool.close("run_moved", "another worker goes on with it", rejoin=True)
    pool.close("run_finished", "twice is harmless", rejoin=False)

    for simulator in simulators:
        close = simulator.closed()
        assert (close.code, close.reason, close.rejoin) == ("run_moved", "another worker goes on with it", True)
        simulator.leave()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    left = [notice for notice in pool.poll(0) if isinstance(notice, SimulatorLeft)]
    assert sorted(notice.code for notice in left) == ["run_moved", "run_moved"]


def test_a_hundred_sessions_need_no_thread_each_and_little_memory() -> None:
    with learner(size=10_000) as trainer:
        warm_up = player(trainer.endpoints[0].address)
        warm_up.play([0], 3)
        process = psutil.Process(pids_of(trainer.pool)[0])
        threads, memory = process.num_threads(), process.memory_info().rss

        crowd = [player(trainer.endpoints[0].address) for _ in range(100)]
        for simulator in crowd:
            simulator.play([0, 1], 2)

        assert process.num_threads() <= threads + 8  # grpc's own pool may grow a little
        assert (process.memory_info().rss - memory) / len(crowd) < 1 << 20
        for simulator in [warm_up, *crowd]:
            simulator.leave()


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
        simulator.leave()


def test_collectors_act_on_the_device_of_the_program_if_the_policy_needs_torch() -> None:
    # On "meta" weights can be placed and nothing can be computed: whoever acts there can't go on.
    memory = {"hidden_units": 8, "num_layers": 1, "memory": {"memory_size": 4}}
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
