"""What the Unity protocol fixes, checked on a whole conversation, whoever the trainer was.

The rules are those of ML-Agents 1.1.0 and C# package 3.0.0. Both ends are held to them, so that a transcript without
problems says that the player was a good one, too.
"""

import itertools
import math
from collections.abc import Iterator
from uuid import UUID

from ludus.protocol.mlagents import agent_pb2, unity_pb2
from tests.unity.communicator import Transcript
from tests.unity.descriptions import CAPABILITIES
from tests.unity.player import compatible
from tests.unity.side_channels import ENGINE, PARAMETERS, frames

OK = 200
GOODBYE = 400
ENGINE_FRAMES = 5


def check_transcript(transcript: Transcript, *, seed: int | None = None) -> list[str]:
    """Return what is wrong, in a sentence each; nothing if all is well. `seed`: what the trainer should have sent."""
    return list(_Checker(seed).check(transcript))


class _Checker:
    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._versions = ("", "")
        """Of the communication API: the player's and the trainer's."""
        self._specs: dict[str, tuple[int, list[int]]] = {}
        """By behavior: number of continuous actions, branch sizes."""
        self._shapes: dict[str, list[list[int]]] = {}
        self._known: set[str] = set()
        """Behaviors that have stood in a message."""
        self._masked: set[tuple[str, int]] = set()
        """Agents that have sent a mask."""
        self._ended: set[tuple[str, int]] = set()
        """Agents whose episode ended, and that have not asked since."""
        self._asked: dict[str, list[agent_pb2.AgentInfoProto]] = {}
        """Infos of the last message that want actions."""

    def check(self, transcript: Transcript) -> Iterator[str]:
        expected = itertools.cycle(("sent", "received"))
        for index, ((direction, message), turn) in enumerate(zip(transcript, expected, strict=False)):
            where = f"message {index // 2 + 1}" if turn == "sent" else f"reply {index // 2 + 1}"
            if direction != turn:
                yield f"{where}: something was {direction}, where something is {turn}"
                return
            problems = (
                self._message(index // 2 + 1, message) if turn == "sent" else self._reply(index // 2 + 1, message)
            )
            yield from (f"{where}: {problem}" for problem in problems)
            if message.header.status != OK and index < len(transcript) - 1 - (turn == "sent"):
                yield f"{where}: the conversation goes on after status {message.header.status}"
        if not transcript or all(message.header.status != GOODBYE for _, message in transcript[-2:]):
            yield "the conversation does not end with status 400"

    # --- the player ---

    def _message(self, number: int, message: unity_pb2.UnityMessageProto) -> Iterator[str]:
        output = message.unity_output
        if message.HasField("unity_input"):
            yield "the player fills unity_input"
        if message.header.status != OK:
            if message.HasField("unity_output"):
                yield "a goodbye says something"
        elif number == 1:
            yield from self._hello(output)
        elif number == 2:
            if message.HasField("unity_output"):
                yield "the second call says something"
        else:
            yield from self._agents(output)

    def _hello(self, output: unity_pb2.UnityOutputProto) -> Iterator[str]:
        hello = output.rl_initialization_output
        self._versions = (hello.communication_version, "")
        if output.HasField("rl_output") or not output.HasField("rl_initialization_output"):
            yield "the first call is not an introduction alone"
        if hello.brain_parameters:
            yield "the introduction announces behaviors"
        if not (hello.name and hello.communication_version and hello.package_version):
            yield "the introduction lacks a name or a version"

    def _agents(self, output: unity_pb2.UnityOutputProto) -> Iterator[str]:
        infos = {name: list(listed.value) for name, listed in output.rl_output.agentInfos.items()}
        for parameters in output.rl_initialization_output.brain_parameters:
            yield from self._announcement(parameters, infos.get(parameters.brain_name, []))
        for name in sorted(self._known - infos.keys()):
            yield f"{name} is known and has no entry"
        self._known |= infos.keys()
        self._asked = {name: [info for info in listed if not info.done] for name, listed in infos.items()}
        if not any(infos.values()):
            yield "nobody asks and nobody ends"
        for name, listed in infos.items():
            if listed and name not in self._specs:
                yield f"{name} has agents and was not announced"
                continue
            asking: set[int] = set()
            for info in listed:
                yield from (f"{name}, agent {info.id}: {problem}" for problem in self._info(name, info, asking))
        yield from _unreadable(output.rl_output.side_channel)

    def _announcement(
        self, parameters: agent_pb2.BrainParametersProto, infos: list[agent_pb2.AgentInfoProto]
    ) -> Iterator[str]:
        name, spec = parameters.brain_name, parameters.action_spec
        if name in self._specs:
            yield f"{name} is announced twice"
        if not infos:
            yield f"{name} is announced without agents"
        if not parameters.is_training:
            yield f"{name} is announced, but not for training"
        if spec.num_continuous_actions or spec.num_discrete_actions:
            self._specs[name] = spec.num_continuous_actions, list(spec.discrete_branch_sizes)
        elif parameters.vector_action_space_type_deprecated == agent_pb2.continuous:
            self._specs[name] = sum(parameters.vector_action_size_deprecated), []
        else:
            self._specs[name] = 0, list(parameters.vector_action_size_deprecated)
        if spec.num_discrete_actions != len(spec.discrete_branch_sizes):
            yield f"{name} has {spec.num_discrete_actions} branches and {len(spec.discrete_branch_sizes)} sizes"
        if infos:
            self._shapes[name] = [list(observation.shape) for observation in infos[0].observations]

    def _info(self, name: str, info: agent_pb2.AgentInfoProto, asking: set[int]) -> Iterator[str]:
        agent = (name, info.id)
        if info.done:
            if info.id in asking:
                yield "it ends after it has asked"
            if agent in self._ended:
                yield "it ends twice"
            self._ended.add(agent)
        else:
            if info.id in asking:
                yield "it asks twice"
            asking.add(info.id)
            self._ended.discard(agent)
            if info.max_step_reached:
                yield "it was cut, and is not done"
        if info.action_mask:
            self._masked.add(agent)
        if len(info.action_mask) not in ({sum(self._specs[name][1])} if agent in self._masked else {0}):
            yield f"its mask has {len(info.action_mask)} entries for branches {self._specs[name][1]}"
        if not (math.isfinite(info.reward) and math.isfinite(info.group_reward)):
            yield f"its rewards are {info.reward} and {info.group_reward}"
        shapes = [list(observation.shape) for observation in info.observations]
        if shapes != self._shapes.setdefault(name, shapes):
            yield f"its observations have shapes {shapes}, announced were {self._shapes[name]}"
        for observation in info.observations:
            if not observation.compressed_data and len(observation.float_data.data) != math.prod(observation.shape):
                yield f"{len(observation.float_data.data)} numbers are an observation of shape {observation.shape}"

    # --- the trainer ---

    def _reply(self, number: int, reply: unity_pb2.UnityMessageProto) -> Iterator[str]:
        if reply.HasField("unity_output"):
            yield "the trainer fills unity_output"
        if reply.header.status != OK:
            if reply.header.status != GOODBYE:
                yield f"its status is {reply.header.status}"
            if reply.HasField("unity_input"):
                yield "a goodbye says something"
        elif number == 1:
            yield from self._welcome(reply.unity_input)
        else:
            yield from self._answer(number, reply.unity_input)

    def _welcome(self, message: unity_pb2.UnityInputProto) -> Iterator[str]:
        welcome = message.rl_initialization_input
        if message.HasField("rl_input") or not message.HasField("rl_initialization_input"):
            yield "the first reply is not a welcome alone"
        self._versions = (self._versions[0], welcome.communication_version)
        if not welcome.communication_version:
            yield "no communication version"
        if not welcome.package_version:
            yield "no package version"
        if missing := [name for name in CAPABILITIES if not getattr(welcome.capabilities, name)]:
            yield f"no capability {', '.join(missing)}"
        if welcome.num_areas < 1:
            yield f"{welcome.num_areas} areas"
        if self._seed is not None and welcome.seed != self._seed:
            yield f"seed {welcome.seed}, not {self._seed}"

    def _answer(self, number: int, message: unity_pb2.UnityInputProto) -> Iterator[str]:
        answer = message.rl_input
        if number == 2 and not compatible(*self._versions):
            yield f"it plays, although the versions {' and '.join(self._versions)} do not fit"
        if message.HasField("rl_initialization_input") or not message.HasField("rl_input"):
            yield "not an answer alone"
        yield from _unreadable(answer.side_channel) or _out_of_order(answer.side_channel)
        if number == 2 and answer.command != unity_pb2.RESET:
            yield "the handshake does not end with RESET"
        if answer.command == unity_pb2.RESET:
            if answer.agent_actions:
                yield "RESET comes with actions"
        elif answer.command == unity_pb2.STEP:
            yield from self._actions(answer)
        else:
            yield f"command {answer.command}"

    def _actions(self, answer: unity_pb2.UnityRLInputProto) -> Iterator[str]:
        actions = {name: list(listed.value) for name, listed in answer.agent_actions.items()}
        for name in sorted(actions.keys() - self._known):
            yield f"actions for {name}, which nobody knows"
        for name, asked in self._asked.items():
            given = actions.get(name, [])
            if len(given) != len(asked):
                yield f"{name}: {len(asked)} agents asked, {len(given)} actions came"
                continue
            for info, action in zip(asked, given, strict=True):
                yield from (f"{name}, agent {info.id}: {problem}" for problem in self._action(name, info, action))

    def _action(self, name: str, info: agent_pb2.AgentInfoProto, action: agent_pb2.AgentActionProto) -> Iterator[str]:
        continuous, branches = self._specs.get(name, (0, []))
        values, choices = list(action.continuous_actions), list(action.discrete_actions)
        if (len(values), len(choices)) != (continuous, len(branches)):
            yield f"{len(values)} and {len(choices)} actions, of {continuous} and {len(branches)}"
            return
        if list(action.vector_actions_deprecated) != [*values, *choices]:
            yield "the deprecated actions are not the continuous ones followed by the discrete ones"
        if not all(map(math.isfinite, values)):
            yield f"its continuous actions are {values}"
        if not all(0 <= choice < size for choice, size in zip(choices, branches, strict=True)):
            yield f"it chooses {choices} of {branches}"
        elif info.action_mask:
            starts = itertools.accumulate(branches[:-1], initial=0)
            if any(info.action_mask[start + choice] for start, choice in zip(starts, choices, strict=False)):
                yield f"it chooses {choices}, which its mask forbids"


def _unreadable(data: bytes) -> list[str]:
    try:
        frames(data)
    except ValueError as error:
        return [str(error)]
    return []


def _out_of_order(data: bytes) -> list[str]:
    """Environment parameters come before the engine configuration, of which there is all or nothing."""
    found = frames(data)
    order = [channel for channel, _ in found if channel in (PARAMETERS, ENGINE)]
    kinds = [int.from_bytes(payload[:4], "little") for channel, payload in found if channel == ENGINE]
    return [
        *(["environment parameters come after the engine configuration"] if order != sorted(order, key=_rank) else []),
        *([f"engine configuration of the kinds {kinds}"] if kinds not in ([], list(range(ENGINE_FRAMES))) else []),
    ]


def _rank(channel: UUID) -> int:
    return (PARAMETERS, ENGINE).index(channel)
