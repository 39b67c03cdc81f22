"""The processes of a pool: started, watched, restarted, and ended; what their deaths cost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ludus.collector.messages import Kind, SimulatorConnected, SimulatorLeft
from ludus.collector.settings import CollectorSettings
from tests.ludus.collector.stack import SPEC, Playing, learner, pids_of, player
from tests.ludus.protocol.test_tls import CERTIFICATE, PRIVATE
from tests.ports import free_port
from tests.waiting import eventually, never
from worker.collectors.events import CollectorDied, Endpoint, RoundCollected
from worker.collectors.pool import CollectorPool, CollectorStartError
from worker.collectors.processes import WarmCollector

pytestmark = pytest.mark.usefixtures("started_collectors")


@pytest.mark.long
def test_a_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        pool = CollectorPool(CollectorSettings("run", 1, 7, port_range=(port, port)))

        with pytest.raises(CollectorStartError, match=f"collector 0 did not start: .*no free port.*{port}"):
            pool.start()


@pytest.mark.long
def test_a_collector_that_cannot_be_started_again_says_so_once(tmp_path: Path) -> None:
    certificate = tmp_path / "server.pem"
    shutil.copy(CERTIFICATE, certificate)
    with learner(tls_certificate=str(certificate), tls_key=str(PRIVATE)) as trainer:
        certificate.unlink()
        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)

        reason = trainer.wait_for(CollectorDied, lambda notice: notice.exit_code == 1).reason

        assert reason.startswith(f"exit code 1: ValueError: {certificate} cannot be read (No such file or directory)")
        child = trainer.pool.children[0]
        eventually(lambda: child.generation >= 3)
        assert [each.exit_code for each in trainer.heard(CollectorDied)] == [-signal.SIGKILL, 1]
        shutil.copy(CERTIFICATE, certificate)
        trainer.wait_for(Endpoint)


@pytest.mark.long
def test_a_collector_that_makes_a_mistake_tells_its_simulators_so_before_it_ends() -> None:
    with learner() as trainer:
        simulator = player(trainer.endpoints[0].address)
        with trainer.pool.lock:
            trainer.pool.children.send(trainer.pool.children[0], Kind.MESSAGE, b"no message")

        close = simulator.closed()

        assert (close.code, close.rejoin) == ("internal_error", True)
        assert close.reason == "the collector made a mistake and is started again; its log has the details"
        left = trainer.wait_for(SimulatorLeft)
        assert (left.session_id, left.code, left.reason) == (simulator.session_id, close.code, close.reason)
        assert trainer.wait_for(CollectorDied).exit_code == 1
        trainer.wait_for(Endpoint)


@pytest.mark.long
def test_collectors_take_the_ports_of_their_range() -> None:
    first = free_port(2)
    pool = CollectorPool(CollectorSettings("run", 1, 7, count=2, port_range=(first, first + 1)))

    endpoints = pool.start()
    pool.close("run_finished", "the test is over", rejoin=False)

    assert len({endpoint.port for endpoint in endpoints}) == 2
    assert all(first <= endpoint.port <= first + 1 for endpoint in endpoints)


def started(pool: CollectorPool) -> tuple[float, list[int]]:
    """Start and close a pool; return how long it took until its collector listened, and its processes."""
    begin = time.monotonic()
    (endpoint,) = pool.start()
    elapsed = time.monotonic() - begin
    assert endpoint.port
    pids = pids_of(pool)
    pool.close("run_finished", "the test is over", rejoin=False)
    return elapsed, pids


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_killed_collector_costs_only_its_partial_segments() -> None:
    with learner(count=2, size=200, horizon=16) as trainer:
        lost = Playing(player(trainer.endpoints[0].address), 5)
        going_on = Playing(player(trainer.endpoints[1].address), 5)
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 1)
        victim = pids_of(trainer.pool)[0]

        os.kill(victim, signal.SIGKILL)

        died = trainer.wait_for(CollectorDied)
        listening = trainer.wait_for(Endpoint)
        assert (died.index, died.exit_code, listening.index) == (0, -signal.SIGKILL, 0)
        assert died.reason == "signal SIGKILL"
        left = trainer.wait_for(SimulatorLeft, lambda notice: notice.session_id == lost.simulator.session_id)
        assert (left.code, left.reason) == ("collector_died", "its collector ended (signal SIGKILL)")
        lost.stop()
        back = Playing(player(listening.address), 5)
        rounds = len(trainer.heard(RoundCollected))
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= rounds + 4)
        assert not trainer.heard(SimulatorLeft)[1:], "the other collector's simulator did not notice"
        for playing in (going_on, back):
            playing.stop()

        for number in range(rounds + 3):
            assert 200 <= sum(rollout.steps for rollout in trainer.rollouts[number]) < 216, "at most a segment too much"
        ledger, blocks = trainer.pool._behaviors[SPEC.behavior].ledger, trainer.arenas[SPEC.behavior].layout.blocks
        eventually(lambda: ledger.owned_by(0) + ledger.owned_by(1) + ledger.free == blocks)


@pytest.mark.long
def test_the_only_collector_is_started_again_and_its_round_goes_on() -> None:
    with learner(size=100) as trainer:
        first = Playing(player(trainer.endpoints[0].address), 4)
        trainer.wait_for(RoundCollected)

        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)
        listening = trainer.wait_for(Endpoint)
        first.stop()
        second = Playing(player(listening.address), 4)
        rounds = len(trainer.heard(RoundCollected))
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= rounds + 2)
        second.stop()

        assert [sum(r.steps for r in trainer.rollouts[number]) for number in range(rounds + 2)] == [100] * (rounds + 2)
        numbers = [notice.number for notice in trainer.heard(SimulatorConnected)]
        assert len(set(numbers)) == len(numbers), "numbers are not given twice"


@pytest.mark.long
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
        assert trainer.wait_for(Endpoint).index == 0
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_a_simulator_whose_agents_are_held_is_not_taken_for_hung() -> None:
    with learner(step_timeout=0.2, lockstep=False, size=2) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 1)
        simulator.step([0, 1])  # held: nothing was sent that it could answer
        trainer.wait_for(RoundCollected)
        never(lambda: trainer.heard(SimulatorLeft), "the simulator is sent away", 0.5)

        trainer.pool.grant(SPEC.behavior, 1, 2)

        assert simulator.receive().HasField("actions")


@pytest.mark.long
def test_start_up_has_a_time_limit_of_its_own() -> None:
    with learner(step_timeout=0.1, startup_timeout=0.6) as trainer:
        slow = player(trainer.endpoints[0].address)
        begin = time.monotonic()

        close = slow.closed()

        assert close.code == "step_timeout"
        assert "Welcome" in close.reason
        assert time.monotonic() - begin > 0.4
