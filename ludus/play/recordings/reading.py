"""The messages of a recording in words: what each says, agent by agent, as far as it can be read.

`Interpreter` remembers the behaviors that were announced, so it is to be given the frames in their order. Nothing here
refuses a message: what cannot be read is said so. Which rule a message breaks, `ludus.play.recordings.replay` finds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
from google.protobuf.message import DecodeError

from ludus.collector.unity.decoding import InfoReader
from ludus.play.recordings.file import Direction, Frame, Recording
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, Array, BehaviorBatch, TerminalBatch
from ludus.protocol.codec import decode_actions, decode_stats, decode_step
from ludus.protocol.codes import ProtocolError
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import shallow_pb2 as shallow
from ludus.protocol.mlagents import unity_pb2 as unity
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import BehaviorLayout, spec_from_message
from ludus.schemas.recordings import MessagePart, RecordedFrame
from ludus.sdk.contract.served_stream import shortened, step_text

MOST_AGENTS: Final = 64
MOST_NUMBERS: Final = 32
"""Agents of a message, and numbers of an agent's observations, that are shown."""
STATUS_OK: Final = 200


@dataclass(slots=True)
class Message:
    """A message that was read."""

    kind: str
    """The name of the message; of Unity players: `introduction`, `agents`, `answer`, `reset`, `closing`."""
    sentence: str
    batches: Sequence[BehaviorBatch] = ()
    actions: Sequence[ActionBatch] = ()
    step: int | None = None
    """Id of a native session's step, or of the step that is answered."""
    code: str = ""
    """Of a Close."""
    problem: str = ""
    """Why its agents cannot be read."""


@dataclass(slots=True)
class Interpreter:
    """Reads the messages of one session, in their order."""

    carrier: str
    layouts: dict[str, BehaviorLayout] = field(default_factory=dict)
    """Of the behaviors of a native session, by name."""
    _brains: dict[str, agent.BrainParametersProto] = field(default_factory=dict)
    _readers: dict[str, InfoReader] = field(default_factory=dict)

    @property
    def specs(self) -> dict[str, BehaviorSpec]:
        """The behaviors that were announced, by name; those of Unity players once their agents were seen."""
        native = {name: layout.spec for name, layout in self.layouts.items()}
        return native | {name: reader.spec for name, reader in self._readers.items()}

    def read(self, frame: Frame) -> Message:
        """Return what a frame says."""
        received = bool(frame.direction & Direction.RECEIVED)
        read: Callable[[bytes], Message]
        if self.carrier == "unity":
            read = self._player if received else self._reply
        else:
            read = self._request if received else self._response
        try:
            return read(frame.data)
        except DecodeError:
            return Message("unreadable", f"{len(frame.data)} bytes that are no message", problem="malformed_message")

    # ludus.v1 ---------------------------------------------------------------------------------------------------

    def _request(self, data: bytes) -> Message:
        request = pb.ConnectRequest.FromString(data)
        kind = request.WhichOneof("message") or "unknown"
        match kind:
            case "hello":
                names = self._introduce(request.hello.behaviors)
                who = f"{request.hello.client or 'a client'}, session {request.hello.session_id}"
                return Message(kind, f"Hello of {who}: {names or 'no behavior yet'}")
            case "announce":
                return Message(kind, f"Announce: {self._introduce(request.announce.behaviors)}")
            case "step":
                return self._step(request.step)
            case "saved":
                saved = request.saved
                return Message(kind, f"Saved {saved.save_id}: a position of {len(saved.position)} bytes")
        return Message(kind, "a message without a known kind")

    def _introduce(self, behaviors: Sequence[pb.BehaviorSpec]) -> str:
        texts = []
        for behavior in behaviors:
            try:
                spec = spec_from_message(behavior)
            except ProtocolError as error:
                texts.append(f"{behavior.name!r} ({error.code.value}: {error.message})")
            else:
                self.layouts.setdefault(spec.name, BehaviorLayout(spec))
                shapes = ", ".join(f"{item.dtype} {list(item.shape)}" for item in spec.observations)
                branches = list(spec.actions.discrete_branches)
                texts.append(
                    f"{spec.name} observes [{shapes}], acts with {spec.actions.continuous_size} continuous values and "
                    f"branches {branches}"
                )
        return "; ".join(texts)

    def _step(self, step: pb.Step) -> Message:
        head = f"Step {step.step_id}" + (f" after reset {step.reset_id}" if step.reset_id else "")
        try:
            batches = decode_step(step, self.layouts)
            text = "; ".join(step_text(batches, decode_stats(step)))
        except ProtocolError as error:
            problem = f"{error.code.value}: {error.message}"
            return Message("step", f"{head}: {problem}", step=step.step_id, problem=problem)
        return Message("step", f"{head}: {text or 'nothing'}", batches, step=step.step_id)

    def _response(self, data: bytes) -> Message:
        response = pb.ConnectResponse.FromString(data)
        kind = response.WhichOneof("message") or "unknown"
        match kind:
            case "welcome":
                welcome = response.welcome
                where = ", with the position to go on from" if welcome.HasField("position") else ""
                return Message(kind, f"Welcome to simulator {welcome.simulator_number}, seed {welcome.seed}{where}")
            case "actions":
                return self._actions(response.actions)
            case "reset":
                parameters = dict(response.reset.environment_parameters)
                return Message(kind, f"Reset {response.reset.reset_id}, environment parameters {parameters}")
            case "wait":
                return Message(kind, f"Wait: {response.wait.reason}")
            case "close":
                close = response.close
                rejoin = "; join again" if close.rejoin else ""
                return Message(kind, f"Close, {close.code}: {close.reason}{rejoin}", code=close.code)
            case "save":
                return Message(kind, f"Save {response.save.save_id}")
        return Message(kind, "a message without a known kind")

    def _actions(self, message: pb.Actions) -> Message:
        try:
            actions = decode_actions(message, self.layouts)
        except ProtocolError as error:
            problem = f"{error.code.value}: {error.message}"
            return Message("actions", f"Actions for step {message.step_id}: {problem}", problem=problem)
        counts = ", ".join(f"{len(batch.continuous)} of {batch.behavior}" for batch in actions)
        news = ", with environment parameters" if message.environment_parameters or message.samplers else ""
        sentence = f"Actions for step {message.step_id}: {counts or 'none'}{news}"
        return Message("actions", sentence, actions=actions, step=message.step_id)

    # Unity ------------------------------------------------------------------------------------------------------

    def _player(self, data: bytes) -> Message:
        message = shallow.Message.FromString(data)
        output = message.unity_output
        hello = output.rl_initialization_output
        if message.header.status != STATUS_OK:
            return Message("closing", f"the player ends the conversation (status {message.header.status})")
        for brain in hello.brain_parameters:
            self._brains.setdefault(brain.brain_name, brain)
        if hello.communication_version:
            sentence = f"a player of ML-Agents {hello.package_version}, API {hello.communication_version}"
            return Message("introduction", sentence)
        batches: list[BehaviorBatch] = []
        problems = []
        infos = output.rl_output.agent_infos
        for name in sorted(infos):
            values = infos[name].value
            try:
                if values and name not in self._readers and name in self._brains:
                    self._readers[name] = InfoReader.of(self._brains[name], values[0], lambda *_: None)
                if values and name in self._readers:
                    batches.append(self._readers[name].read(values))
                elif values:
                    problems.append(f"{name!r} was not announced")
            except ProtocolError as error:
                problems.append(f"{error.code.value}: {error.message}")
        news = [f"announces {', '.join(brain.brain_name for brain in hello.brain_parameters)}"]
        texts = [*(news if hello.brain_parameters else ()), *step_text(batches, ()), *problems]
        return Message("agents", "; ".join(texts) or "no agents", batches, problem="; ".join(problems))

    def _reply(self, data: bytes) -> Message:
        message = unity.UnityMessageProto.FromString(data)
        if message.header.status != STATUS_OK:
            return Message("closing", f"the end of the conversation (status {message.header.status})")
        reply = message.unity_input
        if reply.HasField("rl_initialization_input"):
            return Message("welcome", f"the answer to the introduction, seed {reply.rl_initialization_input.seed}")
        if reply.rl_input.command == unity.RESET:
            return Message("reset", "the command to begin new episodes")
        actions = []
        for name in sorted(reply.rl_input.agent_actions):
            values = reply.rl_input.agent_actions[name].value
            continuous = _columns([value.continuous_actions for value in values], float)
            discrete = _columns([value.discrete_actions for value in values], int)
            actions.append(ActionBatch(name, None, continuous, discrete))
        counts = ", ".join(f"{len(batch.continuous)} of {batch.behavior}" for batch in actions)
        return Message("answer", f"actions: {counts or 'none'}", actions=actions)


def _columns(rows: Sequence[Sequence[Any]], kind: type) -> Array:
    width = max((len(row) for row in rows), default=0)
    dtype = np.float32 if kind is float else np.int32
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], dtype).reshape(len(rows), width)


def shown_frames(file: BinaryIO, start: int = 1, limit: int | None = None) -> Iterator[RecordedFrame]:
    """Yield the frames of a recording from the number `start` on, as numbers and words. Raises BadRecording."""
    recording = Recording(file)
    interpreter = Interpreter(recording.header.carrier)
    for number, frame in enumerate(recording.frames(), 1):
        if limit is not None and number >= start + limit:
            return
        message = interpreter.read(frame)
        if number >= start:
            yield shown(number, frame, message)


def shown(number: int, frame: Frame, message: Message) -> RecordedFrame:
    """Return a frame as numbers and words: of `MOST_AGENTS` agents of each behavior."""
    behaviors = [part for batch in message.batches for part in _parts(batch)]
    behaviors += [
        MessagePart(
            behavior=batch.behavior,
            agents=() if batch.agent_ids is None else tuple(batch.agent_ids[:MOST_AGENTS].tolist()),
            continuous=_rows(batch.continuous),
            discrete=_rows(batch.discrete),
        )
        for batch in message.actions
    ]
    return RecordedFrame(
        number=number,
        seconds=frame.seconds,
        received=bool(frame.direction & Direction.RECEIVED),
        before=bool(frame.direction & Direction.BEFORE),
        size=len(frame.data),
        kind=message.kind,
        sentence=message.sentence,
        problem=message.problem or None,
        behaviors=tuple(behaviors),
    )


def _parts(batch: BehaviorBatch) -> Iterator[MessagePart]:
    for part in (batch.terminals, batch.decisions):
        if part is not None:
            yield MessagePart(
                behavior=batch.behavior,
                agents=tuple(part.agent_ids[:MOST_AGENTS].tolist()),
                ended=part is batch.terminals,
                rewards=tuple(part.rewards[:MOST_AGENTS].tolist()),
                truncated=tuple(part.truncated[:MOST_AGENTS].tolist()) if isinstance(part, TerminalBatch) else (),
                observations=tuple(_rows(values) for values in part.observations),
            )


def _rows(values: Array) -> tuple[tuple[float, ...], ...]:
    flat = values[:MOST_AGENTS].reshape(min(len(values), MOST_AGENTS), -1)
    return tuple(tuple(row) for row in flat[:, :MOST_NUMBERS].tolist())


def frame_text(frame: RecordedFrame) -> str:
    """Return a frame in lines for people: agent by agent."""
    arrow = "got " if frame.received else "sent"
    before = ", before the recording" if frame.before else ""
    lines = [f"frame {frame.number}  {frame.seconds:+.3f} s{before}  {arrow} {frame.size} bytes  {frame.sentence}"]
    for part in frame.behaviors:
        rows = max(len(part.agents), len(part.continuous), len(part.discrete))
        for row in range(rows):
            who = f"agent {part.agents[row]}" if row < len(part.agents) else f"agent in place {row + 1}"
            facts = []
            if part.ended:
                facts.append("truncated" if part.truncated[row] else "terminated")
            if row < len(part.rewards):
                facts.append(f"reward {part.rewards[row]:g}")
            facts += [f"observation [{shortened(column[row])}]" for column in part.observations]
            if part.continuous and part.continuous[row]:
                facts.append(f"continuous [{shortened(part.continuous[row])}]")
            if part.discrete and part.discrete[row]:
                facts.append(f"discrete [{shortened(part.discrete[row])}]")
            lines.append(f"    {part.behavior} {who}: {', '.join(facts)}")
    return "\n".join(lines)
