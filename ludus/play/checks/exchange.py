"""A port at which games of any engine are answered with random actions and looked at: a collector without a learner.

Native clients and Unity players find the sessions of a real collector there, so what those refuse is refused.
"""

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any, Final, Self, cast

import grpc
import numpy as np

from ludus.collector.agent_queue import AgentQueue
from ludus.collector.agents import AgentIndex
from ludus.collector.messages import Message, SimulatorProblem
from ludus.collector.service import SimulationHandler, join_handler, make_server, relayed
from ludus.collector.session import DISCONNECTED, LEFT, Host, RunnerOf, Session, SessionListener
from ludus.collector.settings import CollectorSettings
from ludus.collector.stats import StatSums
from ludus.collector.unity.service import UnityHandler
from ludus.play.checks.watch import GameWatch
from ludus.play.players import RandomPlayer
from ludus.protocol.batches import BehaviorBatch
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import SERVICE
from ludus.protocol.spec import BehaviorSpec

RUN: Final = "doctor"
STOP_SECONDS: Final = 1.0


class RandomRunner:
    """Answers all agents of one behavior at once: the part of an `AgentQueue` that sessions call."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self._player = RandomPlayer(spec.actions)
        self.recorder = SimpleNamespace(agents=SimpleNamespace(steps_of=lambda _: 0, tell=lambda *_: None))

    def stage(self, session: Session, agent_index: AgentIndex, step_id: int, batch: BehaviorBatch) -> None:
        """Answer a part of a step."""
        if batch.decisions is not None:
            session.answer(step_id, agent_index, None, *self._player.act(batch.decisions))

    def drop(self, agent_index: AgentIndex) -> None:
        """Forget the agents of a session: nothing is known of them."""


class LocalExchange:
    """Listens at a port of this machine while the block runs."""

    def __init__(self, port: int = 0) -> None:
        self.watch = GameWatch()
        self.specs: dict[str, BehaviorSpec] = {}
        """The announced behaviors, by name."""
        self.problem: tuple[str, str] | None = None
        """Code and sentence of the first session that ended by a mistake of its game."""
        self.notes: list[tuple[str, str]] = []
        """Codes and sentences of what is probably a mistake, of sessions that go on."""
        self.port = port
        self.decisions = 0
        self._sessions: list[Session] = []
        self._runners: dict[str, RandomRunner] = {}

    async def __aenter__(self) -> Self:
        settings = CollectorSettings(RUN, 1, 1)
        loop = asyncio.get_running_loop()
        host = Host(
            settings=settings,
            now=loop.time,
            wall_clock=time.time,
            tickets=None,
            numbers=itertools.count(),
            index_numbers=itertools.count(1),
            tell=self._told,
            listener=SessionListener(
                opened=self._sessions.append,
                announced=self._announced,
                welcomed=lambda *_: None,
                position_came=lambda: None,
                ended=lambda _: None,
            ),
            snapshots={},
            stats=StatSums(),
            observe=self._observed,
        )
        self._server = make_server(settings.max_message_bytes, settings.bind_host)
        join: Any = {"Join": join_handler(lambda: relayed(RUN))}
        handlers = (SimulationHandler(host), UnityHandler(host, tickets=False))
        self._server.add_generic_rpc_handlers(
            (*handlers, grpc.method_handlers_generic_handler(SERVICE.strip("/"), join))
        )
        self.port = self._server.add_insecure_port(f"{settings.bind_host}:{self.port}")
        host.ports = (self.port,)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions:
            session.end(CloseCode.RUN_FINISHED.value, "the doctor has seen enough", rejoin=False)
        await self._server.stop(STOP_SECONDS)

    def look(self) -> None:
        """Look whether a session has ended by a mistake of its game."""
        for session in self._sessions:
            if self.problem is None and session.closed is not None and session.closed[0] not in {LEFT, DISCONNECTED}:
                self.problem = session.closed

    def _told(self, message: Message) -> None:
        if isinstance(message, SimulatorProblem):
            self.notes.append((message.code, message.sentence))

    def _announced(self, _: Session, spec: BehaviorSpec) -> RunnerOf:
        self.specs.setdefault(spec.name, spec)
        runner = self._runners.setdefault(spec.behavior, RandomRunner(spec))
        return lambda _team: cast("AgentQueue", runner)  # sessions call nothing else of it

    def _observed(self, batches: Any, specs: Any, game: str) -> bool:
        self.watch.look(batches, specs, game)
        asked = [len(batch.decisions.agent_ids) for batch in batches if batch.decisions is not None]
        self.decisions += int(np.sum(asked))
        return True
