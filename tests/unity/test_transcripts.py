"""Every rule of `check_transcript` is one that a conversation can break, and is then told so."""

import math
import struct
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from uuid import UUID

import pytest

from ludus.protocol.mlagents import agent_pb2, unity_pb2
from tests.unity.communicator import Transcript
from tests.unity.descriptions import Behavior
from tests.unity.player import Player
from tests.unity.side_channels import ENGINE, PARAMETERS
from tests.unity.trainer import Trainer
from tests.unity.transcripts import check_transcript

NAME = "Learner?team=0"
SECOND = "Late?team=0"


def frame(channel: UUID, payload: bytes) -> bytes:
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


PARAMETER = frame(PARAMETERS, struct.pack("<i", 1) + b"k" + struct.pack("<if", 0, 1.0))
SIZE, QUALITY, TIME, TARGET, CAPTURE = (
    frame(ENGINE, payload)
    for payload in (
        struct.pack("<iii", 0, 84, 84),
        struct.pack("<ii", 1, 5),
        struct.pack("<if", 2, 20.0),
        struct.pack("<ii", 3, -1),
        struct.pack("<ii", 4, 60),
    )
)
ENGINE_CONFIGURATION = SIZE + QUALITY + TIME + TARGET + CAPTURE


@cache
def recorded() -> Transcript:
    """Two agents with one continuous action and two branches, episodes of three steps, a behavior that comes late."""

    def policy(name: str, info: agent_pb2.AgentInfoProto) -> tuple[list[float], list[int]]:
        mask = list(info.action_mask) or [False] * 5
        return [0.25], [mask[:3].index(False), mask[3:].index(False)]

    behavior = Behavior(NAME, 2, 1, (3, 2), masked=True, episode_length=3)
    late = Behavior(SECOND, 1, 1, (3, 2), appears_at=2)
    with Trainer(policy, seed=7, side_channels={2: PARAMETER + ENGINE_CONFIGURATION}, resets={7}) as trainer:
        player = Player(trainer.port, [behavior, late], record=True)
        player.play(6)
    return player.transcript


class Conversation:
    """A good conversation, to be spoilt. Messages and replies are counted from 1."""

    def __init__(self) -> None:
        self.transcript = deepcopy(recorded())

    def message(self, number: int) -> unity_pb2.UnityMessageProto:
        return self.transcript[2 * number - 2][1]

    def reply(self, number: int) -> unity_pb2.UnityMessageProto:
        return self.transcript[2 * number - 1][1]

    def output(self, number: int) -> unity_pb2.UnityOutputProto:
        return self.message(number).unity_output

    def infos(self, number: int) -> list[agent_pb2.AgentInfoProto]:
        return list(self.output(number).rl_output.agentInfos[NAME].value)

    def put(self, number: int, infos: list[agent_pb2.AgentInfoProto]) -> None:
        """Replace the infos of a message."""
        copies = deepcopy(infos)
        listed = self.output(number).rl_output.agentInfos[NAME].value
        del listed[:]
        listed.extend(copies)

    def announcement(self) -> agent_pb2.BrainParametersProto:
        return self.output(3).rl_initialization_output.brain_parameters[0]

    def welcome(self) -> unity_pb2.UnityRLInitializationInputProto:
        return self.reply(1).unity_input.rl_initialization_input

    def answer(self, number: int) -> unity_pb2.UnityRLInputProto:
        return self.reply(number).unity_input.rl_input

    def action(self, number: int) -> agent_pb2.AgentActionProto:
        return self.answer(number).agent_actions[NAME].value[0]


Spoiler = Callable[[Conversation], object]
SPOILERS: dict[str, Spoiler] = {
    # the order
    "reply 2: something was sent, where something is received": lambda it: it.transcript.pop(3),
    "the conversation does not end with status 400": lambda it: it.transcript.__delitem__(slice(-2, None)),
    "reply 4: the conversation goes on after status 400": lambda it: it.reply(4).CopyFrom(it.reply(9)),
    "message 4: the conversation goes on after status 400": lambda it: it.message(4).CopyFrom(it.message(9)),
    # the player
    "message 3: the player fills unity_input": lambda it: it.message(3).unity_input.SetInParent(),
    "message 9: a goodbye says something": lambda it: it.output(9).SetInParent(),
    "message 2: the second call says something": lambda it: it.output(2).SetInParent(),
    "message 1: the first call is not an introduction alone": lambda it: it.output(1).rl_output.SetInParent(),
    "message 1: the introduction announces behaviors": (
        lambda it: it.output(1).rl_initialization_output.brain_parameters.add()
    ),
    "message 1: the introduction lacks a name or a version": (
        lambda it: it.output(1).rl_initialization_output.ClearField("package_version")
    ),
    f"message 4: {NAME} is known and has no entry": lambda it: it.output(4).rl_output.agentInfos.pop(NAME),
    "message 4: nobody asks and nobody ends": lambda it: it.put(4, []),
    f"message 3: {NAME} has agents and was not announced": lambda it: it.output(3).ClearField(
        "rl_initialization_output"
    ),
    "message 3: side channel bytes are cut off: 01": (
        lambda it: setattr(it.output(3).rl_output, "side_channel", b"\x01")
    ),
    f"message 4: {NAME} is announced twice": (
        lambda it: it.output(4).rl_initialization_output.brain_parameters.append(it.announcement())
    ),
    f"message 3: {NAME} is announced without agents": lambda it: it.put(3, []),
    f"message 3: {NAME} is announced, but not for training": lambda it: setattr(
        it.announcement(), "is_training", False
    ),
    f"message 3: {NAME} has 3 branches and 2 sizes": (
        lambda it: setattr(it.announcement().action_spec, "num_discrete_actions", 3)
    ),
    f"message 6: {NAME}, agent 0: it ends after it has asked": (lambda it: it.put(6, it.infos(6)[::-1])),
    f"message 6: {NAME}, agent 0: it ends twice": lambda it: it.put(6, [it.infos(6)[0], *it.infos(6)]),
    f"message 4: {NAME}, agent 0: it asks twice": lambda it: it.put(4, [it.infos(4)[0], *it.infos(4)]),
    f"message 4: {NAME}, agent 0: it was cut, and is not done": (
        lambda it: setattr(it.infos(4)[0], "max_step_reached", True)
    ),
    f"message 4: {NAME}, agent 0: its mask has 4 entries for branches [3, 2]": (
        lambda it: it.infos(4)[0].action_mask.pop()
    ),
    f"message 5: {NAME}, agent 0: its mask has 0 entries for branches [3, 2]": (
        lambda it: it.infos(5)[0].ClearField("action_mask")
    ),
    f"message 4: {NAME}, agent 0: its rewards are inf and 0.0": lambda it: setattr(it.infos(4)[0], "reward", math.inf),
    f"message 4: {NAME}, agent 0: its observations have shapes [[9]], announced were [[8]]": (
        lambda it: it.infos(4)[0].observations[0].shape.__setitem__(0, 9)
    ),
    f"message 4: {NAME}, agent 0: 7 numbers are an observation of shape [8]": (
        lambda it: it.infos(4)[0].observations[0].float_data.data.pop()
    ),
    # the trainer
    "reply 3: the trainer fills unity_output": lambda it: it.reply(3).unity_output.SetInParent(),
    "reply 9: its status is 500": lambda it: setattr(it.reply(9).header, "status", 500),
    "reply 9: a goodbye says something": lambda it: it.reply(9).unity_input.SetInParent(),
    "reply 1: the first reply is not a welcome alone": lambda it: it.reply(1).unity_input.rl_input.SetInParent(),
    "reply 1: no communication version": lambda it: it.welcome().ClearField("communication_version"),
    "reply 1: no package version": lambda it: it.welcome().ClearField("package_version"),
    "reply 1: no capability hybridActions": lambda it: it.welcome().capabilities.ClearField("hybridActions"),
    "reply 1: 0 areas": lambda it: it.welcome().ClearField("num_areas"),
    "reply 1: seed 8, not 7": lambda it: setattr(it.welcome(), "seed", 8),
    "reply 2: it plays, although the versions 1.5.0 and 2.0.0 do not fit": (
        lambda it: setattr(it.welcome(), "communication_version", "2.0.0")
    ),
    "reply 2: the handshake does not end with RESET": lambda it: it.answer(2).ClearField("command"),
    "reply 3: not an answer alone": lambda it: it.reply(3).unity_input.rl_initialization_input.SetInParent(),
    "reply 4: side channel bytes are cut off: 01": lambda it: setattr(it.answer(4), "side_channel", b"\x01"),
    "reply 2: environment parameters come after the engine configuration": (
        lambda it: setattr(it.answer(2), "side_channel", ENGINE_CONFIGURATION + PARAMETER)
    ),
    "reply 2: engine configuration of the kinds [0, 2, 1, 3, 4]": (
        lambda it: setattr(it.answer(2), "side_channel", SIZE + TIME + QUALITY + TARGET + CAPTURE)
    ),
    "reply 2: engine configuration of the kinds [0, 1]": (
        lambda it: setattr(it.answer(2), "side_channel", SIZE + QUALITY)
    ),
    "reply 3: RESET comes with actions": lambda it: setattr(it.answer(3), "command", unity_pb2.RESET),
    "reply 3: command 2": lambda it: setattr(it.answer(3), "command", unity_pb2.QUIT),
    "reply 3: actions for Nobody, which nobody knows": lambda it: it.answer(3).agent_actions["Nobody"].value.add(),
    f"reply 3: {NAME}: 2 agents asked, 1 actions came": lambda it: it.answer(3).agent_actions[NAME].value.pop(),
    f"reply 3: {NAME}: 2 agents asked, 0 actions came": lambda it: it.answer(3).agent_actions.pop(NAME),
    f"reply 6: {NAME}: 2 agents asked, 4 actions came": (  # the two that ended do not ask
        lambda it: it.answer(6).agent_actions[NAME].value.extend([it.action(6)] * 2)
    ),
    f"reply 3: {NAME}, agent 0: 1 and 1 actions, of 1 and 2": lambda it: it.action(3).discrete_actions.pop(),
    f"reply 3: {NAME}, agent 0: the deprecated actions are not the continuous ones followed by the discrete ones": (
        lambda it: it.action(3).vector_actions_deprecated.reverse()
    ),
    f"reply 3: {NAME}, agent 0: its continuous actions are [inf]": (
        lambda it: it.action(3).continuous_actions.__setitem__(0, math.inf)
    ),
    f"reply 3: {NAME}, agent 0: it chooses [3, 0] of [3, 2]": (
        lambda it: it.action(3).discrete_actions.__setitem__(0, 3)
    ),
}


def test_a_good_conversation_has_no_problems() -> None:
    assert check_transcript(recorded(), seed=7) == []


@pytest.mark.parametrize("problem", SPOILERS)
def test_what_breaks_a_rule_is_found(problem: str) -> None:
    conversation = Conversation()
    SPOILERS[problem](conversation)

    assert problem in check_transcript(conversation.transcript, seed=7)


def test_a_choice_that_its_mask_forbids_is_found() -> None:
    conversation = Conversation()
    choice = conversation.action(4).discrete_actions[0]
    conversation.infos(4)[0].action_mask[choice] = True

    (problem,) = check_transcript(conversation.transcript, seed=7)

    assert problem.startswith(f"reply 4: {NAME}, agent 0: it chooses [{choice}, ")
    assert problem.endswith("which its mask forbids")


def test_no_conversation_at_all_has_no_end() -> None:
    assert check_transcript([]) == ["the conversation does not end with status 400"]
