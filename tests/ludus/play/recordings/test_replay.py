"""A recording of a real collector is played against another one: what ended the session then ends it now."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ludus.collector.messages import SimulatorLeft
from ludus.config.recording import RecordConfig
from ludus.play.players import Player
from ludus.play.recordings.file import (
    Direction,
    End,
    Frame,
    Header,
    Recording,
    pack_end,
    pack_frames,
    pack_header,
    summarize,
)
from ludus.play.recordings.reading import Interpreter, frame_text, shown_frames
from ludus.play.recordings.replay import Replay
from ludus.play.recordings.result import Finding, Replayed
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import BehaviorBatch, DecisionBatch, Floats, Ints, TerminalBatch
from ludus.protocol.codec import encode_step
from ludus.protocol.mlagents import unity_pb2
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import spec_to_message
from tests.ludus.collector.stack import SPEC, Learner, Simulator, edge_collectors, learner, player
from tests.ludus.collector.test_native import MAX_BYTES, MISTAKES
from tests.ludus.collector.unity.raw import GOODBYE, Raw, agents
from tests.recordings import frames as made_up_frames
from worker.collectors.events import EdgeCollectorJoined

REPLAYED_OTHERWISE = {
    # The limit is the run's, which a replay does not have; and nobody refuses a behavior there.
    "an oversized message": "malformed_message",
    "a behavior that is not configured": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def trainer(folder: Path) -> Iterator[Learner]:
    with learner(recordings=str(folder), max_message_bytes=MAX_BYTES) as running:
        running.refusals["Stranger"] = ("behavior_not_configured", "the run's configuration has no behavior 'Stranger'")
        yield running


def recorded(trainer: Learner, folder: Path, session_id: str) -> Path:
    """Return the recording of a session, once it is complete."""
    found: list[Path] = []

    def complete() -> bool:
        found[:] = [file for file in folder.glob("*.ludusrec") if summarize(file).header.session_id == session_id]
        return bool(found)

    trainer.until(complete)
    return found[0]


def replayed(file: Path, make: Callable[[BehaviorSpec], Player] | None = None) -> tuple[Replayed, list[Finding]]:
    findings: list[Finding] = []
    with file.open("rb") as opened:
        return asyncio.run(Replay(opened, make).run(findings.append)), findings


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found_again_at_its_frame(trainer: Learner, folder: Path, mistake: str) -> None:
    spoil, code = MISTAKES[mistake]
    culprit = player(trainer.endpoints[0].address)
    culprit.play([0, 1, 2], 2)
    spoil(culprit)
    assert culprit.closed().code == code
    culprit.leave()
    file = recorded(trainer, folder, culprit.session_id)

    result, findings = replayed(file)

    summary = summarize(file)
    assert (summary.end.cause, summary.end.code) == ("error", code)
    (finding,) = findings
    assert finding.frame == summary.frames - 1  # Close is the last one
    assert f"Close, {code}" in finding.then
    now = REPLAYED_OTHERWISE.get(mistake, code)
    assert f"Close, {now}" in finding.now if now else finding.now == "nothing"
    assert result.differences == (code not in {now, "behavior_not_configured"})


def test_answers_of_another_kind_are_told_and_values_are_not(trainer: Learner, folder: Path, tmp_path: Path) -> None:
    culprit = player(trainer.endpoints[0].address)
    culprit.play([0, 1, 2], 3)
    culprit.send_bytes(b"\xff")
    culprit.closed()
    culprit.leave()
    with recorded(trainer, folder, culprit.session_id).open("rb") as opened:
        frames = list(Recording(opened).frames())
    same = written(tmp_path / "same.ludusrec", frames[:-2])
    spoiled = [step_of_two(frame) for frame in frames[:-2]]
    fewer = written(tmp_path / "fewer.ludusrec", spoiled)

    assert replayed(same)[1] == []
    result, (finding, *_) = replayed(fewer)
    assert (result.differences, finding.differs) == (3, True)
    assert (finding.then, finding.now) == ("Actions for step 1: 3 of Cart", "Actions for step 1: 2 of Cart")


def step_of_two(frame: Frame) -> Frame:
    """Return a step of the agents 0 and 1 in place of one of three."""
    request = pb.ConnectRequest()
    if frame.direction & Direction.RECEIVED:
        request.MergeFromString(frame.data)
    if request.WhichOneof("message") != "step":
        return frame
    part = request.step.behaviors[0].decisions
    part.agent_ids, part.rewards = part.agent_ids[:8], part.rewards[:8]
    part.observations[0].shape[0], part.observations[0].data = 2, part.observations[0].data[:32]
    return frame._replace(data=request.SerializeToString())


def written(file: Path, frames: list[Frame], end: End | None = None, carrier: str = "native") -> Path:
    """Write a recording."""
    header = Header("run-1", 1, "session-x", 5, carrier, 1000.0)
    file.write_bytes(pack_header(header) + pack_frames(frames, 0.0) + pack_end(end or End("stopped")))
    return file


def test_a_recording_that_begins_in_the_middle_is_introduced_and_its_resets_are_made_up_for(tmp_path: Path) -> None:
    hello = pb.Hello(protocol_version=1, session_id="session-x", client="t", behaviors=[spec_to_message(SPEC)])
    batch = Interpreter("native")
    before = Frame(-90.0, Direction.RECEIVED | Direction.BEFORE, pb.ConnectRequest(hello=hello).SerializeToString())
    batch.read(before)
    simulator = Simulator("localhost:1", "session-x")  # makes messages, and dials nobody
    simulator.step_id = 700
    steps = [simulator.make_step([0, 1]) for _ in range(3)]
    for step in steps:
        step.reset_id = 4
    frames = [
        before,
        *(
            Frame(float(n), Direction.RECEIVED, pb.ConnectRequest(step=step).SerializeToString())
            for n, step in enumerate(steps)
        ),
    ]

    result, findings = replayed(written(tmp_path / "middle.ludusrec", frames))
    simulator.leave()

    assert (findings, result.received) == ([], 4)
    assert result.answers == 1 + 3  # Welcome, and an answer to each step
    assert encode_step(1, []).step_id == 1


def test_a_player_knows_an_agent_by_one_number_through_its_episode_and_by_another_in_the_next(tmp_path: Path) -> None:
    class Observer(Player):
        def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
            asked.append(decisions.agent_ids.tolist())
            return np.zeros((len(decisions.agent_ids), 1), np.float32), np.zeros(
                (len(decisions.agent_ids), 1), np.int32
            )

    asked: list[list[int]] = []
    frames = made_up_frames(6)
    ended = pb.ConnectRequest.FromString(frames[7].data)  # the fourth step: agent 7 begins again
    final = TerminalBatch(
        np.array([7], np.int32), np.zeros(1, np.float32), (np.zeros((1, 4), np.float32),), np.zeros(1, np.bool_)
    )
    decisions = DecisionBatch(np.array([0, 7], np.int32), np.zeros(2, np.float32), (np.full((2, 4), 0.5, np.float32),))
    ended.step.CopyFrom(encode_step(ended.step.step_id, [BehaviorBatch("CartPole", decisions, final)]))
    frames[7] = frames[7]._replace(data=ended.SerializeToString())

    replayed(written(tmp_path / "game.ludusrec", frames[:-1]), lambda _: Observer())

    first, second = asked[0]
    third = asked[3][1]
    assert asked == [[first, second]] * 3 + [[first, third]] * 3
    assert len({first, second, third}) == 3


def test_a_unity_player_is_recorded_and_replayed(trainer: Learner, folder: Path) -> None:
    game = Raw(trainer, ("ludus-session-id", "unity-1"))
    game.shake_hands()
    for announced in (True, False, False):
        assert game.call(agents(0, 1, announced=announced)).header.status == 200
    game.call(b"\x0a\xff")
    assert game.close_code == "malformed_message"
    game.close()
    file = recorded(trainer, folder, "unity-1")

    result, findings = replayed(file)

    assert (summarize(file).header.carrier, result.differences) == ("unity", 0)
    (finding,) = findings
    assert "closing" not in finding.what
    assert (finding.frame, result.received) == (11, 6)
    with file.open("rb") as opened:
        shown = [(frame.kind, frame.received) for frame in shown_frames(opened)]
    assert shown[0] == ("introduction", True)
    assert shown[-2:] == [("unreadable", True), ("closing", False)]


def test_a_unity_recording_from_the_middle_is_replayed(trainer: Learner, folder: Path, tmp_path: Path) -> None:
    game = Raw(trainer, ("ludus-session-id", "unity-2"))
    game.shake_hands()
    for announced in (True, False, False):
        game.call(agents(0, 1, announced=announced))
    game.call(b"\x0a\xff")
    game.close()
    with recorded(trainer, folder, "unity-2").open("rb") as opened:
        frames = list(Recording(opened).frames())
    pinned = [frame._replace(direction=frame.direction | Direction.BEFORE, seconds=-50.0) for frame in frames[0:6:2]]
    file = written(tmp_path / "middle.ludusrec", [*pinned, *frames[8:10]], carrier="unity")

    result, findings = replayed(file)

    assert (findings, result.answers) == ([], 4)


def test_a_goodbye_is_no_error_and_nothing_is_kept(trainer: Learner, folder: Path) -> None:
    game = Raw(trainer, ("ludus-session-id", "unity-3"))
    game.shake_hands()
    game.call(GOODBYE)
    game.close()
    trainer.wait_for(SimulatorLeft, lambda left: left.session_id == "unity-3")

    assert all(summarize(file).header.session_id != "unity-3" for file in folder.glob("*.ludusrec"))


class Forbidden(Player):
    """Fails."""

    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        raise RuntimeError("this player fails")


def test_a_collector_that_fails_is_told_at_its_frame(trainer: Learner, folder: Path, tmp_path: Path) -> None:
    culprit = player(trainer.endpoints[0].address)
    culprit.play([0], 1)
    culprit.send_bytes(b"\xff")
    culprit.closed()
    culprit.leave()
    file = shutil.copy(recorded(trainer, folder, culprit.session_id), tmp_path)

    result, findings = replayed(Path(file), lambda _: Forbidden())

    assert findings[-1].now == "the collector fails: RuntimeError('this player fails')"
    assert result.differences == len(findings)


def test_what_is_recorded_is_shown_agent_by_agent(trainer: Learner, folder: Path) -> None:
    culprit = player(trainer.endpoints[0].address)
    culprit.play([4, 5], 2)
    culprit.step([4], ended=[5], reward=-2.5)
    culprit.receive()
    culprit.send_bytes(b"\xff")
    culprit.closed()
    culprit.leave()
    with recorded(trainer, folder, culprit.session_id).open("rb") as opened:
        shown = [frame for frame in shown_frames(opened) if frame.kind != "wait"]  # one for each wait, where it is slow

    assert [frame.kind for frame in shown] == ["hello", "welcome", *("step", "actions") * 3, "unreadable", "close"]
    ended, asks = shown[6].behaviors
    assert (ended.agents, ended.ended, ended.rewards, ended.truncated) == ((5,), True, (-2.5,), (False,))
    assert (asks.agents, asks.observations) == ((4,), (((3.0, 4.0, 0.0, 0.0),),))
    assert "Cart agent 5: terminated, reward -2.5, observation [3, 5, 0, 0]" in frame_text(shown[6])


def test_an_edge_collector_sends_its_recordings(tmp_path: Path) -> None:
    with learner(recordings=str(tmp_path), count=2, edge_places=1) as trainer, edge_collectors(trainer) as (edge,):
        trainer.wait_for(EdgeCollectorJoined)
        culprit = player(edge.address)
        culprit.play([0, 1], 2)
        culprit.send_bytes(b"\xff")
        assert culprit.closed().code == "malformed_message"
        culprit.leave()
        file = recorded(trainer, tmp_path, culprit.session_id)

    assert file.name.startswith("edge1-")
    assert replayed(file)[0].differences == 0


def test_recording_is_switched_on_and_off_in_running_collectors(tmp_path: Path) -> None:
    with learner(recordings=str(tmp_path), record=RecordConfig(errors=False)) as trainer:
        game = player(trainer.endpoints[0].address)
        game.play([0, 1], 2)

        trainer.pool.record(RecordConfig(share=1, errors=False))
        trainer.until(lambda: any(tmp_path.glob("*.part")) or bool(game.play([0, 1], 1)))
        trainer.pool.record(RecordConfig(errors=False))
        file = recorded(trainer, tmp_path, game.session_id)
        game.play([0, 1], 1)
        game.leave()

    assert summarize(file).end == End("stopped", behaviors=("Cart",))
    assert replayed(file)[0].differences == 0
    assert np.isfinite(summarize(file).seconds)
    assert unity_pb2.RESET == 1
