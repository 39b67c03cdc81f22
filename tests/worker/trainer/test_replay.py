"""A recording teaches a learner without a game: what was done, seen and earned then, and a learner's fault is named."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.arena import Arena
from ludus.collector.segments import Segments
from ludus.config.behavior import PPOConfig
from ludus.play.recordings.file import Frame, finish, summarize
from ludus.play.recordings.replay import Replay
from ludus.protocol import simulation_pb2 as pb
from tests.recordings import SPEC, content, frames
from worker.experience.rollout import Rollout, gather
from worker.trainer.replay import Lesson, RecordedActions, learn

DEMONSTRATION = f"dem_{'0' * 26}"
REMEMBERS = {"memory": {"memory_size": 16, "sequence_length": 8}}
SAC = {"trainer_type": "sac", "hyperparameters": {"buffer_init_steps": 256, "batch_size": 64}, "max_steps": 10_000}
SMALL: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 64, "buffer_size": 512},
    "time_horizon": 32,
}


def recording(tmp_path: Path, listed: list[Frame], section: dict[str, Any] | None = None) -> Path:
    """Write a recording; `section` trains its behavior."""
    file = tmp_path / "game.ludusrec"
    file.write_bytes(content(listed))
    if section is not None:
        finish(file, {"behaviors": {"CartPole": section}})
    return file


def taught(file: Path) -> tuple[int, list[str]]:
    said: list[str] = []
    return learn(file, summarize(file), said.append), said


def spoiled(listed: list[Frame], reward: float) -> list[Frame]:
    """Return the messages with another reward in each step."""
    changed = []
    for frame in listed:
        request = pb.ConnectRequest()
        if frame.direction and frame.data != b"\xff":
            request.MergeFromString(frame.data)
        if request.WhichOneof("message") == "step":
            request.step.behaviors[0].decisions.rewards = np.full(2, reward, np.float32).tobytes()
            changed.append(frame._replace(data=request.SerializeToString()))
        else:
            changed.append(frame)
    return changed


@pytest.mark.parametrize(
    "section",
    [
        SMALL,
        {**SMALL, "network_settings": REMEMBERS},
        pytest.param(SAC, marks=pytest.mark.long),
        pytest.param({**SAC, "network_settings": REMEMBERS}, marks=pytest.mark.long),
    ],
    ids=["ppo", "ppo with a memory", "sac", "sac with a memory"],
)
def test_a_learner_learns_from_a_recording(tmp_path: Path, section: dict[str, Any]) -> None:
    code, said = taught(recording(tmp_path, frames(700), section))

    assert code == 0, said
    assert "702 messages played, 1280 steps of experience" in said[0]
    assert "its weights are finite" in said[-1]
    assert "drawn" not in said[-1]
    assert any(line.startswith("update 2 with") for line in said)
    assert section["trainer_type"] == "ppo" or not any("Acting KL" in line for line in said), "a recording has none"


def test_recorded_steps_are_not_too_old_for_a_learner_with_a_limit(tmp_path: Path) -> None:
    section = {**SMALL, "hyperparameters": {**SMALL["hyperparameters"], "max_policy_lag": 0}}

    code, said = taught(recording(tmp_path, frames(700), section))

    updates = [line for line in said if line.startswith("update ")]
    assert (code, len(updates)) == (0, 3)
    assert all("Policy/Lag 0, Policy/Stale Share 0" in line for line in updates), updates


def test_the_recorded_actions_are_what_is_learned_from(tmp_path: Path) -> None:
    file = recording(tmp_path, frames(200))
    actions, rollouts = RecordedActions(SPEC), list[Rollout]()

    def taken(arena: Arena, segments: Segments) -> None:
        rollouts.append(gather(arena, segments))

    with file.open("rb") as opened:
        replay = Replay(
            opened,
            lambda _: actions,
            taken=taken,
            answered=lambda message, given: (
                [
                    actions.answered(part.decisions.agent_ids, given)
                    for part in message.batches
                    if part.decisions is not None
                ]
                and None
            ),
        )
        asyncio.run(replay.run())

    rollout = rollouts[0].followed_by(*rollouts[1:])
    of_seven = torch.repeat_interleave(rollout.agents == 7, rollout.lengths)
    assert actions.drawn == 0
    assert (rollout.discrete[of_seven] == 1).all()
    assert (rollout.discrete[~of_seven] == 0).all()
    assert (rollout.continuous[of_seven] == -0.5).all()
    assert (rollout.continuous[~of_seven] == 0.25).all()
    assert rollout.rewards[~of_seven].unique().tolist() == [1.0]


def test_on_policy_steps_count_as_the_present_policy_s_own(tmp_path: Path) -> None:
    lesson = Lesson(PPOConfig(), SPEC, 1)
    file = recording(tmp_path, frames(200))
    rollouts: list[Rollout] = []
    with file.open("rb") as opened:
        replay = Replay(
            opened, lambda _: lesson.actions, taken=lambda arena, part: rollouts.append(gather(arena, part))
        )
        asyncio.run(replay.run())
    log_probs = lesson._log_probs(rollouts[0])

    actor = lesson.algorithm.actor
    head, _ = actor(actor.encode(rollouts[0].observations))
    masks = rollouts[0].action_masks
    expected = actor.joint(head, rollouts[0].continuous, rollouts[0].discrete, masks).log_prob
    assert torch.equal(log_probs.sum(1), expected.detach())  # so the ratio is 1


def test_a_network_remembers_each_segment_from_its_first_step(tmp_path: Path) -> None:
    lesson = Lesson(PPOConfig.model_validate({"network_settings": REMEMBERS}), SPEC, 1)
    with recording(tmp_path, frames(200)).open("rb") as opened:
        asyncio.run(Replay(opened, lambda _: lesson.actions, taken=lesson.take).run())
    rollout = lesson._rounds[0][0]
    actor = lesson.algorithm.actor
    assert rollout.memories is not None

    for first, length in zip(rollout.firsts.tolist(), rollout.lengths.tolist(), strict=True):
        memory = torch.zeros(1, actor.memory_size)
        for row in range(first, first + length):
            assert torch.allclose(rollout.memories[row], memory[0], atol=1e-6)
            _, after = actor(actor.encode([column[row : row + 1] for column in rollout.observations]), memory)
            assert after is not None
            memory = after.detach()
        assert memory.any()


@pytest.mark.parametrize("reward", [3e38, 1e30])
def test_a_learner_that_diverges_is_named(tmp_path: Path, reward: float) -> None:
    section = {**SMALL, "reward_signals": {"extrinsic": {"strength": 1e6}}}

    code, said = taught(recording(tmp_path, spoiled(frames(700), reward), section))

    assert code == 1
    assert any("CartPole: the update after" in line and "diverged" in line for line in said), said
    assert any("its weights are finite" in line for line in said)


CANNOT = {
    "a clone": ({"trainer_type": "clone", "demonstrations": [DEMONSTRATION]}, "learns from no game"),
    "another release's": ({**SMALL, "no_such_key": 1}, "of another release"),
    "demonstrations": (
        {**SMALL, "reward_signals": {"gail": {"demonstrations": [DEMONSTRATION]}}},
        "CartPole cannot be learned here",
    ),
}


@pytest.mark.parametrize("what", CANNOT)
def test_what_cannot_be_learned_alone_is_told(tmp_path: Path, what: str) -> None:
    section, sentence = CANNOT[what]

    code, said = taught(recording(tmp_path, frames(20), section))

    assert code == 1
    assert any(sentence in line for line in said), said


def test_without_a_configuration_the_defaults_of_ppo_learn(tmp_path: Path) -> None:
    code, said = taught(recording(tmp_path, frames(200)))

    assert code == 0
    assert said[-1].startswith("CartPole: 1 updates with")
    assert json.dumps(said)
