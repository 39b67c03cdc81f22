"""What the agents of a player lived through, read from its transcript, and whether a learner was told just that."""

import io
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from ludus.collector.segments import SegmentEnd
from ludus.protocol.batches import Array
from ludus.protocol.mlagents import agent_pb2, unity_pb2
from tests.unity.communicator import Transcript
from worker.experience.rollout import Rollout

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS_LAST = ([2, 2, 1], [])
"""Dimension properties of images before package 3.0; the oldest packages have none."""


@dataclass
class Step:
    """A decision: what was seen, what may be chosen, what was done, and what it brought."""

    observations: list[Array]
    allowed: list[bool]
    continuous: list[float]
    discrete: list[int]
    reward: float = 0.0
    group_reward: float = 0.0


@dataclass
class Life:
    """An episode of one agent."""

    group: int
    steps: list[Step] = field(default_factory=list)
    ending: SegmentEnd = SegmentEnd.CUT
    final: list[Array] = field(default_factory=list)
    """What was seen at its end."""
    void: bool = False
    """Whether a reset came in between."""


Lives = dict[tuple[str, int], list[Life]]
"""By behavior (without the team) and agent: its episodes, in their order."""


def lives_of(transcript: Transcript) -> Lives:
    """Follow the agents of a conversation."""
    lives: defaultdict[tuple[str, int], list[Life]] = defaultdict(list)
    branches: dict[str, list[int]] = {}
    open_lives: dict[tuple[str, int], Life] = {}
    messages = [message for _, message in transcript]
    for sent, reply in zip(messages[4::2], messages[5::2], strict=False):
        output = sent.unity_output
        for brain in output.rl_initialization_output.brain_parameters:
            branches[brain.brain_name] = _branches(brain)
        answer = reply.unity_input.rl_input
        is_answered = reply.header.status == 200 and answer.command != unity_pb2.RESET
        for name, listed in output.rl_output.agentInfos.items():
            actions = iter(answer.agent_actions[name].value) if name in answer.agent_actions else iter(())
            for info in listed.value:
                key = (name.partition("?")[0], info.id)
                life = open_lives.get(key)
                if life is not None and life.steps:
                    life.steps[-1].reward = info.reward
                    life.steps[-1].group_reward = info.group_reward
                seen = [values_of(observation) for observation in info.observations]
                if info.done:
                    if life is not None:
                        life.ending = SegmentEnd.TRUNCATED if info.max_step_reached else SegmentEnd.TERMINATED
                        life.final = seen
                    open_lives.pop(key, None)
                elif is_answered:
                    if life is None:
                        life = open_lives[key] = Life(info.group_id)
                        lives[key].append(life)
                    life.steps.append(_step(info, seen, branches[name], next(actions)))
        if answer.command == unity_pb2.RESET:
            for life in open_lives.values():
                life.void = True
            open_lives.clear()
    return dict(lives)


def _step(
    info: agent_pb2.AgentInfoProto, seen: list[Array], branches: list[int], action: agent_pb2.AgentActionProto
) -> Step:
    allowed = [not forbidden for forbidden in info.action_mask] or [True] * sum(branches)
    return Step(seen, allowed, list(action.continuous_actions), list(action.discrete_actions))


def _branches(brain: agent_pb2.BrainParametersProto) -> list[int]:
    spec = brain.action_spec
    if spec.num_continuous_actions or spec.num_discrete_actions:
        return list(spec.discrete_branch_sizes)
    is_discrete = brain.vector_action_space_type_deprecated == agent_pb2.discrete
    return list(brain.vector_action_size_deprecated) if is_discrete else []


def values_of(observation: agent_pb2.ObservationProto) -> Array:
    """Return what an observation shows, images as (channels, height, width)."""
    shape = tuple(observation.shape)
    turned = len(shape) == 3 and list(observation.dimension_properties) in CHANNELS_LAST
    if observation.WhichOneof("observation_data") == "compressed_data":
        return _picture(observation, shape[2] if turned else shape[0])
    values = np.array(observation.float_data.data, np.float32).reshape(shape)
    return values.transpose(2, 0, 1) if turned else values


def _picture(observation: agent_pb2.ObservationProto, channels: int) -> Array:
    parts = [SIGNATURE + part for part in observation.compressed_data.split(SIGNATURE)[1:]]
    pixels = np.concatenate([np.asarray(Image.open(io.BytesIO(part))).transpose(2, 0, 1) for part in parts])
    mapping = list(observation.compressed_channel_mapping)
    if mapping:
        return np.stack([pixels[mapping.index(channel)] for channel in range(channels)])
    return pixels[:channels]


def check_delivered(lives: Lives, delivered: dict[str, list[Rollout]], simulator: int) -> int:
    """Hold the segments of a simulator against what its agents lived through, and return the steps that came.

    Every life that ended is there as a whole; one that a reset or the player's end has cut is there in part, or not.
    """
    steps = 0
    for (behavior, agent), expected in lives.items():
        segments = [
            rollout
            for rollout in delivered.get(behavior, [])
            if (int(rollout.simulators), int(rollout.agents)) == (simulator, agent)
        ]
        told = _told_lives(segments)
        for life in expected:
            if told and _is_part_of(life, told[0]):
                steps += _check_life(life, told.pop(0))
            else:
                assert life.ending is SegmentEnd.CUT, f"an episode of {behavior}, agent {agent}, did not arrive"
        assert not told, f"an episode of {behavior}, agent {agent}, that was never lived"
    return steps


def _told_lives(segments: list[Rollout]) -> list[list[Rollout]]:
    """Put the segments of an agent together to lives."""
    told: list[list[Rollout]] = []
    for segment in segments:
        if segment.starts_episode:
            told.append([])
        assert int(segment.sequences) == len(told[-1])
        told[-1].append(segment)
    return told


def _is_part_of(life: Life, segments: list[Rollout]) -> bool:
    first = segments[0].observations
    return all(np.array_equal(first[index][0], seen) for index, seen in enumerate(life.steps[0].observations))


def _check_life(life: Life, segments: list[Rollout]) -> int:
    count = sum(segment.steps for segment in segments)
    lived = life.steps[:count]
    assert len(lived) == count
    for index in range(len(lived[0].observations)):
        seen = torch.cat([segment.observations[index] for segment in segments])
        np.testing.assert_array_equal(seen, np.stack([step.observations[index] for step in lived]))
    samples = torch.cat([segment.continuous for segment in segments])
    np.testing.assert_allclose(samples.clip(-3, 3) / 3, [step.continuous for step in lived], atol=1e-6)
    np.testing.assert_array_equal(
        torch.cat([segment.discrete for segment in segments]), [step.discrete for step in lived]
    )
    if segments[0].action_masks is not None:
        masks = torch.cat([segment.action_masks for segment in segments if segment.action_masks is not None])
        np.testing.assert_array_equal(masks, [step.allowed for step in lived])
    for name in ("rewards", "group_rewards"):
        told = torch.cat([getattr(segment, name) for segment in segments])
        np.testing.assert_array_equal(told, np.array([getattr(step, name[:-1]) for step in lived], np.float32))
    assert {int(segment.groups) for segment in segments} == {life.group}
    assert all(int(segment.endings) == SegmentEnd.CUT for segment in segments[:-1])
    last = segments[-1]
    if life.ending is SegmentEnd.CUT:
        assert int(last.endings) == SegmentEnd.CUT
    else:
        assert (count, int(last.endings)) == (len(life.steps), life.ending)
        for index, seen in enumerate(life.final):
            np.testing.assert_array_equal(last.next_observations[index][0], seen)
    return count
