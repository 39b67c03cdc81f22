"""The server's end of a stream in a test server: what its client has announced, and which agents play and wait.

It refuses a message that a real server refuses, with the same functions and the same code.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ludus.collector.spec_checks import UnsupportedSpec, check_actions, check_observations
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import BehaviorBatch, StatValue
from ludus.protocol.codec import decode_step
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import (
    MAX_AGENTS,
    MAX_UNADMITTED_STEPS,
    check_introduction,
    check_step_order,
    conflict,
    decision_pending,
    same_spec,
    too_many_agents,
    too_many_unadmitted,
)
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import BehaviorLayout

MAX_SHOWN: Final = 5
"""Maximum number of agents, rewards, ... of one message that are printed."""


def step_text(batches: Sequence[BehaviorBatch], stats: Sequence[StatValue]) -> Iterator[str]:
    """Yield a text for each part of a step."""
    for name, decisions, terminals in batches:
        if terminals is not None:
            truncated = int(terminals.truncated.sum())
            yield (
                f"{name}: episodes of agents {shortened(terminals.agent_ids.tolist())} ended "
                f"({len(terminals.agent_ids) - truncated} terminated, {truncated} truncated), rewards "
                f"{shortened(terminals.rewards.tolist())}"
            )
        if decisions is not None:
            masked = "" if decisions.action_masks is None else ", with masks"
            yield (
                f"{name}: agents {shortened(decisions.agent_ids.tolist())} ask, rewards "
                f"{shortened(decisions.rewards.tolist())}{masked}"
            )
    if stats:
        yield f"stats {shortened([f'{stat.key} {stat.value:g}' for stat in stats])}"


def shortened(values: Sequence[object]) -> str:
    """Return the first MAX_SHOWN values, and the number of the others."""
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values[:MAX_SHOWN]]
    return ", ".join(shown) + (f" and {len(values) - MAX_SHOWN} more" if len(values) > MAX_SHOWN else "")


def agents_text(agents: Mapping[str, set[int]]) -> str:
    """Return the agents of each behavior."""
    return ", ".join(f"{shortened(sorted(ids))} of {name}" for name, ids in agents.items()) or "none"


RUN_ID: Final = "run-fake"
LATER_MESSAGE: Final = bytes([0xA2, 0x06, 0x02, 0x08, 0x01])
"""A ConnectResponse with nothing but field 100, which no version has yet."""


class ServedStream:
    """The record of one stream. Its methods raise ProtocolError with the code with which a real server closes it."""

    def __init__(self, run_specs: dict[str, BehaviorSpec], visual_encoder: str) -> None:
        """`run_specs` has the spec of each behavior of the run, on which all streams must agree."""
        self.session_id = ""
        self.specs: dict[str, BehaviorSpec] = {}
        self.layouts: dict[str, BehaviorLayout] = {}
        self.running: defaultdict[str, set[int]] = defaultdict(set)
        """By behavior: agents whose episode runs."""
        self.waiting: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """By behavior: agent that waits -> the step in which it asked."""
        self.answered: set[str] = set()
        self.episodes = 0
        self.last_step = self.reset_id = 0
        self._run_specs = run_specs
        self._visual_encoder = visual_encoder
        self._unadmitted: defaultdict[str, int] = defaultdict(int)
        """Steps of each behavior that came before its first answer."""

    def introduce(self, spec: BehaviorSpec) -> None:
        """Record a behavior of Hello or Announce."""
        check_introduction(spec, self.specs)
        common = self._run_specs.setdefault(spec.behavior, spec)
        if not same_spec(common, spec):
            raise ProtocolError(CloseCode.SPEC_CONFLICT, conflict(common, spec))
        try:
            check_observations(spec.observations, spec.name, self._visual_encoder, hyper=True)
            check_actions(spec, "gaussian")
        except UnsupportedSpec as error:
            raise ProtocolError(CloseCode.BAD_SPEC, str(error)) from error
        self.specs.setdefault(spec.name, spec)
        self.layouts.setdefault(spec.name, BehaviorLayout(spec))

    def read_step(self, step: pb.Step) -> list[BehaviorBatch]:
        """Return the parts of a step that may come now."""
        check_step_order(step, last_step=self.last_step, last_reset=self.reset_id)
        self.last_step = step.step_id
        return decode_step(step, self.layouts)

    def account(self, batch: BehaviorBatch, ignored: Callable[[str], object] = lambda _: None) -> None:
        """Record the agents that play and wait after a part of the last step; tell `ignored` what has no effect."""
        running, waiting = self.running[batch.behavior], self.waiting[batch.behavior]
        if batch.terminals is not None:
            ended = set(batch.terminals.agent_ids.tolist())
            if ended - running:
                ignored(f"the end of agents {shortened(sorted(ended - running))}, which have no running episode")
            self.episodes += len(ended & running)
            running -= ended
            for agent in ended:
                waiting.pop(agent, None)
        if batch.decisions is not None:
            agents = batch.decisions.agent_ids.tolist()
            pending = [agent for agent in agents if agent in waiting]
            if pending:
                raise decision_pending(pending[0])
            rewards = zip(agents, batch.decisions.rewards.tolist(), strict=True)
            paid = [agent for agent, reward in rewards if reward and agent not in running]
            if paid:
                ignored(f"the rewards of agents {shortened(paid)}, whose episode begins with this decision")
            running |= set(agents)
            waiting.update(dict.fromkeys(agents, self.last_step))
            if len(running) > MAX_AGENTS:
                raise too_many_agents()
            if batch.behavior not in self.answered:
                self._unadmitted[batch.behavior] += 1
                if self._unadmitted[batch.behavior] > MAX_UNADMITTED_STEPS:
                    raise too_many_unadmitted()

    def stop_waiting(self, behavior: str, agents: Iterable[int]) -> None:
        """Record that agents are answered."""
        self.answered.add(behavior)
        for agent in agents:
            self.waiting[behavior].pop(agent, None)

    def begin_reset(self) -> None:
        """Record a Reset: no agent plays or waits."""
        self.reset_id += 1
        self.running.clear()
        self.waiting.clear()
