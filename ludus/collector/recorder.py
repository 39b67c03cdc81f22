"""Records the messages of one behavior in one collector into episodes and segments of its agents.

Messages are numbered by *ticks*, across all simulators of the runner. A step is written when it is answered, and
complete when the agent comes back with its reward.
"""

from collections.abc import Sequence

import numpy as np

from ludus.collector.acted import Acted
from ludus.collector.agents import ACTING, FREE, IDLE, UNRECORDED, WAITING, AgentIndex, Agents, Slots
from ludus.collector.arena import Arena
from ludus.collector.messages import EPISODE_DTYPE
from ludus.collector.rows import Ticks, select
from ludus.collector.segment_builder import SegmentBuilder
from ludus.collector.segments import SegmentEnd
from ludus.collector.step_quota import StepQuota
from ludus.protocol.batches import Array, Bytes, DecisionBatch, Floats, Ints, TerminalBatch, rows_of


class TrajectoryRecorder:
    """Records the trajectories of one behavior's agents. All `slots` arguments hold each slot once."""

    def __init__(self, arena: Arena, time_horizon: int, quota: StepQuota) -> None:
        self.arena = arena
        self.quota = quota
        self.agents = Agents(arena.layout, -(-time_horizon // arena.layout.rows))
        self.segments = SegmentBuilder(arena, self.agents, time_horizon)
        self._scratch = arena.layout.scratch_row
        self._episodes: list[tuple[Array, ...]] = []

    # Messages ---------------------------------------------------------------------------------------------------

    def wait(self, slots: Slots, batch: DecisionBatch, ticks: Ticks) -> None:
        """Take decision steps in: complete the steps that were out, begin episodes, and cut full segments.

        `ticks` are the numbers of the messages that the rows came with, or that of the one message.
        """
        agents, segments = self.agents, self.segments
        back, rewards, group_rewards, observations = slots, batch.rewards, batch.group_rewards, batch.observations
        if agents.state[slots].tobytes().count(ACTING) < len(slots):
            returning = agents.state[slots] == ACTING
            agents.begin(slots[~returning])
            back, rewards = slots[returning], rewards[returning]
            observations = tuple([values[returning] for values in observations])
            group_rewards = group_rewards[returning] if group_rewards is not None else None
        agents.state[slots] = WAITING
        agents.tick[slots] = ticks
        agents.note_groups(slots, batch.group_ids)
        if len(back):
            self._complete(back, rewards, group_rewards)
            if segments.longest >= segments.horizon:
                segments.cut_full(back, observations)

    def end(self, slots: Slots, batch: TerminalBatch, ticks: Ticks) -> Slots:
        """Take terminal steps in. Returns the slots whose pending decision is void now."""
        agents = self.agents
        agents.tick[slots] = ticks
        states = agents.state[slots].tobytes()
        void: Slots = slots[:0]
        if states.count(ACTING) == len(slots):
            agents.note_groups(slots, batch.group_ids)
            self._complete(slots, batch.rewards, batch.group_rewards)
        else:
            acting, waiting = agents.state[slots] == ACTING, agents.state[slots] == WAITING
            running = acting | waiting  # the end of an agent without an episode is ignored
            self._complete(slots[acting], batch.rewards[acting], select(batch.group_rewards, acting))
            void = np.asarray(slots[waiting], np.intp)
            self._reward_more(void, rows_of(batch, waiting))
            slots, batch = slots[running], rows_of(batch, running)
            if not len(slots):
                return void
            agents.note_groups(slots, batch.group_ids)
        agents.state[slots] = IDLE
        recorded = agents.length[slots] > 0
        endings = batch.truncated + np.int32(SegmentEnd.TERMINATED)  # TRUNCATED is the number after it
        if recorded.all():
            self.segments.close(slots, batch.observations, endings)
        elif recorded.any():
            observations = [values[recorded] for values in batch.observations]
            self.segments.close(slots[recorded], observations, endings[recorded])
        self._note_episodes(slots, batch)
        return void

    def answer(
        self,
        slots: Slots,
        observations: Sequence[Array],
        masks: Bytes | None,
        acted: Acted,
        version: int,
        round_number: int | Ints,
    ) -> None:
        """Write the steps that waiting agents were just answered with. There must be a free block for each slot."""
        self.segments.extend(slots, observations, masks, acted, version, round_number)
        self._note_answers(slots, acted, version)

    def answer_unrecorded(self, slots: Slots, acted: Acted, version: int) -> None:
        """Update the state of agents that were answered without recording."""
        agents = self.agents
        agents.row[slots] = self._scratch
        agents.length[slots] = 0
        agents.round[slots] = UNRECORDED
        self._note_answers(slots, acted, version)

    def release(self, slots: Slots) -> None:
        """Move the steps that are out from the current round to later ones (see `StepQuota.release`)."""
        tags = self.quota.release(len(slots))
        self.segments.move(slots, [number for number, count in tags for _ in range(count)])

    def drop(self, agent_index: AgentIndex) -> None:
        """Forget a session's agents, with their open segments; their answered steps are refunded to their round."""
        agents, slots = self.agents, agent_index.slots
        for number in np.unique(agents.round[slots]).tolist():
            if number != UNRECORDED:
                those = slots[agents.round[slots] == number]
                self.quota.returned(number, int((agents.state[those] == ACTING).sum()))
                self.quota.refund(number, int(agents.length[those].sum()))
        self.segments.discard(slots)
        agents.drop(agent_index)

    def stop_recording(self) -> None:
        """Discard every open segment."""
        slots = np.flatnonzero(self.agents.state != FREE)
        self.segments.discard(slots)
        self.agents.round[slots] = UNRECORDED

    def take_episodes(self) -> bytes | None:
        """Return the episodes that ended, packed, and forget them."""
        if not self._episodes:
            return None
        columns = [np.concatenate(parts) for parts in zip(*self._episodes, strict=True)]
        self._episodes.clear()
        records = np.empty(len(columns[0]), EPISODE_DTYPE)
        for name, column in zip(EPISODE_DTYPE.names or (), columns, strict=True):
            records[name] = column
        return records.tobytes()

    # Parts ------------------------------------------------------------------------------------------------------

    def _note_answers(self, slots: Slots, acted: Acted, version: int) -> None:
        agents = self.agents
        if acted.memory is not None:
            agents.memory[slots] = acted.memory
        if agents.new_episodes:
            agents.note_starts(slots, version)
        agents.state[slots] = ACTING

    def _complete(self, slots: Slots, rewards: Floats, group_rewards: Floats | None) -> None:
        """Write the rewards of steps that came back."""
        agents = self.agents
        rows = agents.row[slots]
        self.arena.rewards[rows] = rewards
        agents.returns[slots] += rewards
        if group_rewards is None:
            self.arena.group_rewards[rows] = 0.0
        else:
            self.arena.group_rewards[rows] = group_rewards
            agents.group_returns[slots] += group_rewards
        agents.decisions[slots] += 1
        rounds = agents.round[slots].tolist()
        for number in set(rounds):
            if number != UNRECORDED:
                self.quota.returned(number, rounds.count(number))

    def _reward_more(self, slots: Slots, batch: TerminalBatch) -> None:
        """Add rewards to the last complete steps of agents that ended while they waited.

        Where that step's segment was cut and delivered already, the reward only counts in the episode's return.
        """
        agents = self.agents
        agents.returns[slots] += batch.rewards
        opened = agents.length[slots] > 0
        rows = agents.row[slots[opened]]
        np.add.at(self.arena.rewards, rows, batch.rewards[opened])
        if batch.group_rewards is not None:
            agents.group_returns[slots] += batch.group_rewards
            np.add.at(self.arena.group_rewards, rows, batch.group_rewards[opened])

    def _note_episodes(self, slots: Slots, batch: TerminalBatch) -> None:
        agents = self.agents
        decisions = agents.decisions[slots]
        if np.count_nonzero(decisions) < len(slots):  # ended before the first step was complete: not an episode
            lived = decisions > 0
            slots, decisions, batch = slots[lived], decisions[lived], rows_of(batch, lived)
        outcomes = np.zeros(len(slots), np.uint8) if batch.outcomes is None else batch.outcomes
        identity = agents.records[slots, :2].T
        self._episodes.append(
            (
                *(agents.returns[slots], agents.group_returns[slots], decisions),
                *(*identity, agents.began[slots], batch.truncated, outcomes, agents.parameter_set[slots]),
                np.full(len(slots), self.segments.waiting, np.int32),
            )
        )
        agents.steps[slots] += decisions
        agents.decisions[slots] = 0
