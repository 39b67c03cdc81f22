"""A pool goes on when collectors or simulators die, hang or come to nothing."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ludus.collector.messages import (
    SimulatorConnected,
    SimulatorLeft,
)
from tests.ludus.collector.stack import SPEC, learner, player
from tests.waiting import eventually, never
from tests.worker.collectors.playing import Playing, pids_of
from worker.collectors.collector_process import WarmCollector
from worker.collectors.events import CollectorDied, CollectorListening, RoundCollected

pytestmark = pytest.mark.usefixtures("started_collectors")


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
