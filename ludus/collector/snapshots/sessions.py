"""A session's part in checkpoints: it goes on from the snapshot of a former attempt, and makes snapshots.

Only native simulators can go back to where they were, those that say so in Hello (proto/README.md, section 10).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ludus.collector.snapshots.agents import AgentsSnapshot, snapshot, waiting_of
from ludus.collector.snapshots.returning import Returning
from ludus.collector.snapshots.state import SessionSnapshot
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import BehaviorBatch
from ludus.protocol.contract import check_saved

if TYPE_CHECKING:
    from ludus.collector.native import NativeSession
    from ludus.collector.server import CollectorServer


class SessionCheckpoints:
    """Restores and snapshots one native session."""

    def __init__(self, session: "NativeSession", collector: "CollectorServer") -> None:
        self._session = session
        self._collector = collector
        self.resumes = False
        """Whether the simulator can go back to where it was."""
        self.former: SessionSnapshot | None = None
        """Its snapshot of a former attempt, until its first step shows whether it is there again."""
        self._returning: dict[str, tuple[int, BehaviorBatch | None, AgentsSnapshot]] = {}
        """By behavior that is not admitted yet: the first step, the agents that ask in it, and their snapshot."""
        self._asked = 0
        """The newest number of Save; counts up from 1."""
        self._position: bytes | None = None
        """The answer to it, as long as the simulator stays there."""
        self._checkpoint = 0
        """The newest checkpoint for which it was asked."""

    def begin(self, hello: pb.Hello) -> SessionSnapshot | None:
        """Return where the simulator was in a former attempt, if it can go back to it."""
        self.resumes = hello.resumes
        self.former = self._collector.barrier.session(hello.session_id) if hello.resumes else None
        return self.former

    # Going on ---------------------------------------------------------------------------------------------------

    def step(self, *, resumed: bool) -> None:
        """Record a step: the simulator has left its last position, and (unless `resumed`) its former one."""
        self._position = None
        if self.former is not None:
            self._collector.barrier.forget(self._session.session_id)
            self.former = self.former if resumed else None

    def resume(self, step_id: int, batches: Sequence[BehaviorBatch]) -> bool:
        """Restore the agents with the first step; return False if that asks for others: they begin new episodes."""
        former, self.former = self.former, None
        asked: dict[str, BehaviorBatch | None] = {batch.behavior: batch for batch in batches}
        if former is None or not self._is_there_again(former, batches):
            self._collector.troubled(
                self._session,
                "not_resumed",
                "it went back to where it was in the checkpoint, but asks for other agents than those that waited "
                "there; their episodes begin again. `resume` must ask again for exactly these agents, and end none",
            )
            return False
        for name, agents in former.agents.items():
            self._returning[name] = (step_id, asked.get(name), agents)
            if name in self._session.agent_indexes:
                self.admitted(name)
        if self._returning:
            reason = f"the run is preparing the behavior {next(iter(self._returning))}"
            self._session.send(pb.ConnectResponse(wait=pb.Wait(reason=reason)))
        return True

    def _is_there_again(self, former: SessionSnapshot, batches: Sequence[BehaviorBatch]) -> bool:
        """Whether a first step asks for exactly those agents that waited when the snapshot was taken."""
        asked = {batch.behavior: batch.decisions for batch in batches}
        if not asked.keys() <= former.agents.keys() or any(batch.terminals is not None for batch in batches):
            return False
        for name, agents in former.agents.items():
            decisions = asked.get(name)
            ids = set() if decisions is None else set(decisions.agent_ids.tolist())
            if name not in self._session.specs or ids != waiting_of(agents):
                return False
        return True

    def admitted(self, name: str) -> None:
        """Hand the agents of an admitted behavior to its runner, which restores them in its next turn."""
        if name in self._returning:
            step_id, batch, agents = self._returning.pop(name)
            runner, agent_index = self._session.agent_indexes[name]
            decisions = None if batch is None else batch.decisions
            runner.returning.add(Returning(self._session, agent_index, step_id, decisions, agents))
            runner.schedule()

    def forget(self) -> None:
        """Forget the agents that wait to be restored."""
        self._returning.clear()

    # Taking a snapshot ------------------------------------------------------------------------------------------

    def saved(self, saved: pb.Saved) -> None:
        """Take the answer to Save. Raises ProtocolError."""
        check_saved(saved, asked=self._asked)
        if saved.save_id == self._asked and self.is_at_rest:
            self._position = saved.position
            self._collector.came_to_rest()

    def told_position(self, checkpoint: int) -> bool:
        """Whether the simulator is at rest and has sent its position for this checkpoint. Asks for it at rest."""
        if not self.is_at_rest:
            self._checkpoint = 0  # a position that it may have sent is out of date
            return False
        if self._checkpoint != checkpoint:
            self._checkpoint, self._position = checkpoint, None
            self._asked += 1
            self._session.send(pb.ConnectResponse(save=pb.Save(save_id=self._asked)))
        return self._position is not None

    def snapshot(self) -> SessionSnapshot | None:
        """Return the session for a checkpoint; None where it has not sent its position."""
        session = self._session
        if self._position is None or not self.is_at_rest:
            return None
        return SessionSnapshot(
            session_id=session.session_id,
            number=session.number,
            position=self._position,
            parameter_set=session.parameter_set,
            has_heard=session.has_heard,
            parameters=session.told,
            draws=session.draws.state,
            agents={
                name: snapshot(runner.recorder, agent_index)
                for name, (runner, agent_index) in session.agent_indexes.items()
            },
        )

    @property
    def is_at_rest(self) -> bool:
        """Whether every agent of the simulator waits or is between episodes, and all that it sent is taken in."""
        session = self._session
        pairs = session.agent_indexes.values()
        if not session.started or session.unadmitted or self._returning or not pairs:
            return False
        if any(agent_index.staged or runner.returning.has(agent_index) for runner, agent_index in pairs):
            return False
        acts = any(len(runner.recorder.agents.acting([agent_index])) for runner, agent_index in pairs)
        return not acts and any(runner.recorder.agents.is_at_rest(agent_index) for runner, agent_index in pairs)
