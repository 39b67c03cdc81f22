"""The flight recorder of a whole stack: recordings are stored, read, replayed, deleted; a kill costs one second."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.client import ApiError, Client
from ludus.play.recordings.file import summarize
from ludus.play.recordings.replay import Replay
from ludus.play.recordings.result import Replayed
from ludus.schemas import Recording, Run
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.e2e.test_faults import the
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]

Play = Callable[..., Player]


def recorded(client: Client, run: Run, cause: str) -> Recording:
    """Return a recording of a run with this cause, once it is stored."""
    found: list[Recording] = eventually(
        lambda: [one for one in client.recordings.list(run.id) if one.cause == cause], f"a recording ({cause})"
    )
    return found[0]


def replayed(file: Path) -> Replayed:
    with file.open("rb") as opened:
        return asyncio.run(Replay(opened).run())


@pytest.mark.long
def test_a_run_records_its_sessions_when_it_is_told_to(client: Client, play: Play, tmp_path: Path) -> None:
    run = client.runs.create(cartpole())
    game = play(run.id)
    wait_for_step(client, run, 500)
    assert list(client.recordings.list(run.id)) == []

    changed = client.runs.change(run.id, record=True)
    assert changed.config["simulators"]["record"]["share"] == 1.0
    wait_for_step(client, run, client.runs.get(run.id).step + 2000)
    client.runs.change(run.id, record=False)
    stopped = recorded(client, run, "stopped")
    game.kill()
    died = recorded(client, run, "error")

    assert (stopped.carrier, stopped.behaviors) == ("native", ("CartPole",))
    assert died.code == "disconnected"
    for one in (stopped, died):
        file = client.recordings.download(run.id, one.id, tmp_path / f"{one.id}.ludusrec")
        summary = summarize(file)
        assert (summary.header.run_id, summary.frames) == (run.id, one.frames)
        assert "CartPole" in summary.run["behaviors"]
        result = replayed(file)
        assert (result.differences, result.received > 10, result.steps > 100) == (0, True, True)
    shown = list(client.recordings.frames(run.id, stopped.id, limit=450))
    assert [frame.number for frame in shown] == list(range(1, len(shown) + 1))
    assert any(part.rewards for frame in shown for part in frame.behaviors)

    client.recordings.delete(run.id, stopped.id)
    with pytest.raises(ApiError, match=stopped.id):
        client.recordings.download(run.id, stopped.id, tmp_path / "gone")
    client.runs.stop(run.id)
    client.runs.wait(run.id, timeout=40)
    client.runs.delete(run.id)


@pytest.mark.faults
def test_a_collector_that_is_killed_in_the_middle_of_a_recording_costs_its_last_second(
    stack: LudusUp, client: Client, play: Play, tmp_path: Path
) -> None:
    config = cartpole()
    config["simulators"] |= {"record": True, "collectors": {"edge": 0}}
    run = client.runs.create(config)
    play(run.id)
    wait_for_step(client, run, 2000)

    the(stack.processes("worker.collectors")).kill()

    torn = recorded(client, run, "torn")
    file = client.recordings.download(run.id, torn.id, tmp_path / "torn.ludusrec")
    summary = summarize(file)
    assert (summary.torn_bytes, summary.frames, summary.end.cause) == (0, torn.frames, "torn")
    assert replayed(file).differences == 0
    wait_for_step(client, run, client.runs.get(run.id).step + 500)
    client.runs.stop(run.id)
    client.runs.wait(run.id, timeout=40)
    assert recorded(client, run, "session").frames > 0  # of the collector that followed
