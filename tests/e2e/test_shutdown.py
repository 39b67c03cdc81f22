"""`ludus up` ends without leaving anything behind, and goes on where it was at the next start."""

from pathlib import Path

import psutil
import pytest

from server.kit.processes import marked
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(300)]

QUICK = {"LUDUS_WORKER__LEASE_SECONDS": "3", "LUDUS_WORKER__HEARTBEAT_SECONDS": "0.5"}


def test_one_interrupt_hands_the_run_back_the_next_start_resumes_it_and_two_leave_nothing(
    tmp_path: Path,
) -> None:
    up = LudusUp(tmp_path / "home", **QUICK)
    with up.client() as client:
        run = client.runs.create(cartpole(checkpoint_interval=1_000_000))
        player = Player(up, run.id)
        wait_for_step(client, run, 600)
    code = up.stop()
    player.kill()

    assert code == 0
    assert marked(up.mark) == []
    again = LudusUp(tmp_path / "home", **QUICK)
    player = Player(again, run.id)
    try:
        with again.client() as client:
            eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt")
            resumed = wait_for_step(client, run, 1500)
            assert resumed.restarts_without_progress == 0, "an orderly shutdown is nobody's fault"
            assert client.runs.attempts(run.id)[-1].resumed_from or client.runs.attempts(run.id)[0].resumed_from
    finally:
        again.interrupt()
        again.interrupt()
        again.stop()
        player.kill()
    assert marked(again.mark) == []


def test_a_killed_ludus_up_leaves_nothing_and_frees_its_home_for_the_next_one(tmp_path: Path) -> None:
    up = LudusUp(tmp_path / "home", **QUICK)
    with up.client() as client:
        run = client.runs.create(cartpole())
        player = Player(up, run.id)
        wait_for_step(client, run, 600)

    psutil.Process(up.process.pid).kill()
    up.process.wait()
    player.kill()
    up.output.close()

    again = LudusUp(tmp_path / "home", **QUICK)
    try:
        eventually(lambda: not marked(up.mark), "everything of the first one is gone", 15)
    finally:
        code = again.stop()
    assert code == 0
