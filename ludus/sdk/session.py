"""The client's side of one Connect stream, without I/O: builds requests, interprets responses, tracks waiting agents.

One session per stream; after a reconnection everything starts again with Hello. The order of messages is in
proto/README.md.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, BehaviorBatch, Ints
from ludus.protocol.codec import PROTOCOL_VERSION, decode_actions, encode_step, samplers_from_messages
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import BehaviorLayout, spec_to_message
from ludus.sdk.environment_parameters import EnvironmentParameters
from ludus.sdk.steps import Actions, StepBuilder

Observer: TypeAlias = Callable[[Sequence[BehaviorBatch], Mapping[str, BehaviorSpec]], bool]
"""Looks at the parts of a step, and the specs of all behaviors by name; returns whether it wants the next one."""


class Session:
    """State of one stream: announced behaviors, steps in flight, the last reset."""

    def __init__(self, behaviors: Iterable[BehaviorSpec], observe: Observer | None = None) -> None:
        self._observe = observe
        self._layouts = {spec.name: BehaviorLayout(spec) for spec in behaviors}
        self._step_id = 0
        self._reset_id = 0
        self._in_flight: dict[int, dict[str, Ints]] = {}
        """Step -> behavior -> the agents that it asked for, for answers that do not name them."""
        self._unanswered: dict[int, int] = {}
        """Step -> how many of its agents still wait."""
        self._waiting: dict[str, dict[int, int]] = {}
        """Behavior -> agent -> step whose answer it waits for."""
        self.parameters = EnvironmentParameters()
        self._answered_at: float | None = None
        """When the newest actions came, until the next step is sent."""
        self.decisions = 0
        self.episodes = 0

    @property
    def behaviors(self) -> list[BehaviorSpec]:
        """Everything announced so far."""
        return [layout.spec for layout in self._layouts.values()]

    @property
    def idle(self) -> bool:
        """Whether no agent waits for an answer, so that none will come."""
        return not any(self._waiting.values())

    def hello(self, ticket: str, session_id: str, client: str, *, resumes: bool = False) -> pb.ConnectRequest:
        """Build the first message of the stream. `resumes`: the game can go back to where it was."""
        return pb.ConnectRequest(
            hello=pb.Hello(
                ticket=ticket,
                protocol_version=PROTOCOL_VERSION,
                session_id=session_id,
                behaviors=[spec_to_message(spec) for spec in self.behaviors],
                client=client,
                resumes=resumes,
            )
        )

    def new_step(self) -> StepBuilder:
        """Return a builder of the next step, for the game to fill."""
        return StepBuilder(self._layouts, self._waiting, self.parameters)

    def requests(self, builder: StepBuilder, *, resumed: bool = False) -> list[pb.ConnectRequest]:
        """Build the messages that carry a step to the server: none if nothing happened in it.

        `resumed`: the game has just gone back to the position that `Welcome` named, and asks again.
        """
        messages = []
        if builder.announced:
            self._layouts.update((spec.name, BehaviorLayout(spec)) for spec in builder.announced)
            announce = pb.Announce(behaviors=[spec_to_message(spec) for spec in builder.announced])
            messages.append(pb.ConnectRequest(announce=announce))
        batches = builder.batches()
        if not batches and not builder.stats:
            return messages
        if self._observe is not None and not self._observe(batches, {spec.name: spec for spec in self.behaviors}):
            self._observe = None
        self._step_id += 1
        asking: dict[str, Ints] = {}
        for name, decisions, terminals in batches:
            waiting = self._waiting.setdefault(name, {})
            if terminals is not None:
                self.episodes += len(terminals.agent_ids)
                # The end of an episode voids a decision that was not answered yet.
                for agent in waiting.keys() & terminals.agent_ids.tolist():
                    self._settle(waiting.pop(agent), 1)
            if decisions is not None:
                asking[name] = decisions.agent_ids.astype(np.int32)  # a copy: games use their arrays again
                self.decisions += len(asking[name])
                waiting.update(dict.fromkeys(decisions.agent_ids.tolist(), self._step_id))
        if asking:
            self._in_flight[self._step_id] = asking
            self._unanswered[self._step_id] = sum(map(len, asking.values()))
        step = encode_step(self._step_id, batches, builder.stats, self._reset_id)
        step.resumed = resumed
        if self._answered_at is not None:
            step.game_seconds = time.monotonic() - self._answered_at
            self._answered_at = None
        messages.append(pb.ConnectRequest(step=step))
        return messages

    @staticmethod
    def saved(message: pb.Save, position: bytes) -> pb.ConnectRequest:
        """Return the answer to Save: the game's position."""
        return pb.ConnectRequest(saved=pb.Saved(save_id=message.save_id, position=position))

    def welcome(self, message: pb.Welcome) -> None:
        """Take the server's answer to Hello."""
        samplers = samplers_from_messages(message.samplers)
        self.parameters = EnvironmentParameters(message.environment_parameters, samplers, message.simulator_number)

    def actions(self, message: pb.Actions) -> Actions:
        """Interpret an answer. Agents whose decision has become void meanwhile are left out."""
        self._answered_at = time.monotonic()
        if message.environment_parameters:
            self._change_parameters(message)
        asking = self._in_flight.get(message.step_id, {})
        batches = decode_actions(message, self._layouts)
        unasked = np.zeros(0, np.int32)
        valid = [self._valid(batch, message.step_id, asking.get(batch.behavior, unasked)) for batch in batches]
        answered = Actions(valid)
        self._settle(message.step_id, len(answered))
        return answered

    def reset(self, message: pb.Reset) -> None:
        """Carry out the server's Reset: every pending decision is void."""
        self._change_parameters(message)
        self._reset_id = message.reset_id
        self._in_flight.clear()
        self._unanswered.clear()
        self._waiting.clear()

    def _change_parameters(self, message: pb.Actions | pb.Reset) -> None:
        self.parameters.change(message.environment_parameters, samplers_from_messages(message.samplers))

    def _settle(self, step_id: int, agents: int) -> None:
        """Count agents of a step that no longer wait; remove the step when none waits."""
        waiting = self._unanswered.get(step_id, 0) - agents
        if waiting > 0:
            self._unanswered[step_id] = waiting
        else:
            self._unanswered.pop(step_id, None)
            self._in_flight.pop(step_id, None)

    def _valid(self, batch: ActionBatch, step_id: int, asked: Ints) -> ActionBatch:
        """Return the part of an answer whose agents still wait for it: not for a later step, nor ended meanwhile."""
        waiting = self._waiting.get(batch.behavior, {})
        ids = asked if batch.agent_ids is None else batch.agent_ids
        if len(ids) != len(batch.continuous):
            raise ProtocolError(
                CloseCode.COLUMN_LENGTH,
                f"step {step_id} asked for {len(ids)} agents of {batch.behavior!r}, not {len(batch.continuous)}",
            )
        batch = batch._replace(agent_ids=ids)
        # All agents of this behavior wait for this step, and all are answered: nothing has to be looked up.
        everyone = ids is asked and len(waiting) == len(ids) and len(self._in_flight.get(step_id, ())) == 1
        if everyone and self._unanswered[step_id] == len(ids):
            waiting.clear()
            return batch
        agents = ids.tolist()
        keep = [waiting.get(agent) == step_id for agent in agents]
        for agent, takes_it in zip(agents, keep, strict=True):
            if takes_it:
                del waiting[agent]
        if all(keep):
            return batch
        rows = np.array(keep, np.bool_)
        return ActionBatch(batch.behavior, ids[rows], batch.continuous[rows], batch.discrete[rows])
