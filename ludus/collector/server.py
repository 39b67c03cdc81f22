"""State of a collector process: sessions on one side, the learner's channel on the other, runners between them.

Everything here runs in the event loop and returns at once (see `process.py`).
"""

import asyncio
import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import structlog

from ludus.collector import commands, messages
from ludus.collector.agent_waits import CHECKPOINT, LEARNER, NETWORK, STRAGGLERS, WaitReason
from ludus.collector.behaviors import Behaviors
from ludus.collector.carriers.connection import LearnerConnection
from ludus.collector.channel import Frame
from ludus.collector.messages import Kind, read, unpack_numbered
from ludus.collector.native import NativeSession
from ludus.collector.policy import PolicyFactory
from ludus.collector.runner_factory import RunnerFactory
from ludus.collector.runners import LearningRunner
from ludus.collector.session import CONNECTION_LOST, DISCONNECTED, Host, Session, SessionListener
from ludus.collector.settings import CollectorSettings
from ludus.collector.snapshots.barrier import CheckpointBarrier
from ludus.collector.snapshots.state import SessionSnapshot, State
from ludus.collector.stats import StatSums
from ludus.collector.ticks import BatchTicks
from ludus.play.recordings.tape import BACKLOG_BYTES, FlightRecorder, Sink, folder_sink
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.tickets import TicketChecker

log = structlog.get_logger()

TICK_SECONDS = 0.05
"""Period of everything that watches time, and the longest that closed segments stay here."""
STATS_SECONDS = 1.0
FAILED = "the collector made a mistake and is started again; its log has the details"


def seconds_without_processor() -> float:
    """Return for how long this thread has waited for a processor that others used: proc(5), `schedstat`; 0 where the
    system does not say.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


class CollectorServer:
    """The state of a collector process."""

    def __init__(
        self, link: LearnerConnection, policies: PolicyFactory, start: commands.Settings, restored: State | None = None
    ) -> None:
        """`restored` are the snapshots of a former attempt, if there are any (`snapshots.state.merged`)."""
        settings = CollectorSettings.from_json(start.settings)
        self._index = start.index
        self.link = link
        self._loop = asyncio.get_running_loop()
        self.sessions: set[Session] = set()
        """Open sessions."""
        self._by_session_id: dict[str, Session] = {}
        snapshots, stats = dict[str, SessionSnapshot](), StatSums()
        self._barrier = CheckpointBarrier(restored, snapshots, lambda payload: link.send(Kind.SNAPSHOTS, payload))
        self._ticks = BatchTicks(link, stats, self._finish_checkpoint, self.fail)
        factory = RunnerFactory(settings, start, policies, self._ticks.schedule)
        self._behaviors = Behaviors(link, factory, self._ticks.opponents_of, self._barrier.restore)
        self._runners = self._behaviors.runners
        key = settings.ticket_key
        self.host = Host(
            settings=settings,
            now=self._loop.time,
            wall_clock=time.time,
            tickets=None if key is None else TicketChecker(key, settings.run_id, settings.attempt, start.generation),
            numbers=itertools.count(start.first_number, start.number_step),
            index_numbers=itertools.count(1),
            tell=link.tell,
            listener=SessionListener(
                opened=self.sessions.add,
                announced=self._behaviors.announced,
                welcomed=self._welcomed,
                position_came=self._finish_checkpoint,
                ended=self._ended,
            ),
            snapshots=snapshots,
            stats=stats,
            recorder=self._make_recorder(settings, start),
        )
        self._next_stats = 0.0
        self._measured = (self._loop.time(), time.thread_time(), seconds_without_processor())
        """Up to when times are reported: on the clock, of this thread's processor time, and of its waits for one."""
        self._held_by: set[WaitReason] = set()
        """Reasons for which no agent is answered."""
        self.done: asyncio.Future[commands.CloseAll | None] = self._loop.create_future()
        """Set when the process should end; None = the learner is gone."""

    def _make_recorder(self, settings: CollectorSettings, start: commands.Settings) -> FlightRecorder:
        sink: Sink | None = None
        if settings.recordings:
            sink = folder_sink(Path(settings.recordings), f"{start.index}-")
        elif settings.recordings is not None:  # beside the games: the learner's host has the folder

            def sink(name: str, data: bytes, last: bool) -> None:
                if self.link.waiting > BACKLOG_BYTES:  # games would wait for recordings
                    raise OSError("the network is slower than the recording")
                payload = f"{'!' if last else '.'}{name}\n".encode() + data
                self._loop.call_soon_threadsafe(self.link.send, Kind.RECORDING, payload)

        return FlightRecorder(
            settings.record,
            run=(settings.run_id, settings.attempt, settings.seed),
            prefix=f"{start.index}-{start.generation}-",
            now=self._loop.time,
            wall_clock=time.time,
            sink=sink,
        )

    # Sessions ---------------------------------------------------------------------------------------------------

    def _welcomed(self, session: Session, behaviors: list[str], client: str) -> None:
        """Register a session that has said hello; an older one of the same session id ends."""
        older = self._by_session_id.get(session.session_id)
        self._by_session_id[session.session_id] = session
        if older is not None:
            older.end_by(ProtocolError(CloseCode.SUPERSEDED, "a newer stream of this session id took its place"))
        self.link.tell(
            messages.SimulatorConnected(
                session.session_id, session.number, self._index, session.peer, client, tuple(behaviors)
            )
        )

    def _finish_checkpoint(self) -> None:
        """Send the snapshot for a checkpoint if this was the last simulator that was waited for."""
        native = [session for session in self.sessions if isinstance(session, NativeSession) and session.started]
        resumable = [session.checkpoints for session in native if session.checkpoints is not None]
        if not self._barrier.is_complete(resumable, self.host.now()):
            return
        for runner in self._runners.values():
            self._ticks.deliver(runner)
        self._ticks.report_stats()
        self._ticks.reports = False
        self._barrier.send_snapshot(self._runners.values(), resumable)

    def _ended(self, session: Session) -> None:
        """Forget a session and tell the learner why it ended."""
        self.sessions.discard(session)
        if self._by_session_id.get(session.session_id) is session:
            del self._by_session_id[session.session_id]
        self._behaviors.ended(session)
        self.host.recorder.ended(session.tape)
        code, reason = session.closed or ("", "")
        self.link.tell(
            messages.SimulatorLeft(session.session_id, session.number, code, reason, session.steps, session.peer)
        )

    # The learner ------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Handle the messages of the learner from now on."""
        self.link.begin(self._take, self._orphaned)

    def _take(self, frames: Sequence[Frame]) -> None:
        try:
            for frame in frames:
                self._handle(frame)
        except Exception as error:  # the edge of the process, as in `BatchTicks`
            log.exception("message_of_learner_failed")
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the process because of a mistake of ours. The pool starts another one; partial segments are lost."""
        if not self.done.done():
            self.done.set_exception(error)

    def _orphaned(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _handle(self, frame: Frame) -> None:
        if frame.kind == Kind.BLOCKS:
            number, payload = unpack_numbered(frame.payload)
            runner = self._runners[number]
            runner.recorder.segments.blocks.extend(np.frombuffer(payload, np.int32).tolist())
            runner.wanted_blocks = False
            runner.schedule()
            return
        match message := read(frame):
            case commands.GrantSteps():
                runner = self._runners[message.runner]
                sizes = {"size": message.size, "report_every": message.report_every}
                runner.quota.grant(message.round, message.steps, **sizes, ahead=message.ahead)
                runner.required_version = max(runner.required_version, message.version)
                runner.schedule()
            case commands.Weights():
                self._behaviors.load(message, frame)
            case commands.EndRound():
                self._runners[message.runner].quota.end(message.round)
                self._runners[message.runner].schedule()  # so that the steps which have returned are delivered
            case commands.Admit():
                self._behaviors.admit(message, frame)
            case commands.FrozenPolicy():
                self._behaviors.take_opponent(message, frame)
            case commands.BeginEvaluation():
                session = self._by_session_id.get(message.session_id)
                if session is not None:  # else it has left, and the learner gets a message about it
                    self._behaviors.sit(session, message)
            case commands.Opponents():
                self._behaviors.assign_opponents(message)
            case commands.Refuse():
                self._behaviors.refuse(message)
            case commands.Unrecorded():
                self._runners[message.runner].stop_recording()
            case commands.EndSession():
                session = self._by_session_id.get(message.session_id)
                if session is not None:
                    session.end(message.code, message.reason, rejoin=CloseCode(message.code).rejoin)
            case commands.Parameters():
                parameters, number = message.environment_parameters, message.parameter_set
                self.host.settings = replace(
                    self.host.settings, environment_parameters=parameters, parameter_set=number
                )
                if message.reset:  # else sessions look at them with every answer
                    for runner in self._runners.values():
                        self._ticks.deliver(runner)  # segments of one team's turn come before those of another one's
                    for session in [session for session in self.sessions if session.number >= 0]:
                        session.reset()
            case commands.Record():
                self.host.recorder.change(message.record)
            case commands.Hold():
                self._ticks.reports = True
                self._barrier.begin(self.host.now() + message.timeout)
                self._hold(CHECKPOINT, held=True)
                self._finish_checkpoint()
            case commands.Release():
                self._barrier.end()
                self._ticks.reports = True
                self._hold(CHECKPOINT, held=False)
            case commands.Forget():
                self.host.snapshots.pop(message.session_id, None)
            case commands.CloseAll():
                if not self.done.done():
                    self.done.set_result(message)
            case _:
                raise ValueError(f"the learner sent {type(message).__name__}")

    def hold_for_network(self, congested: bool) -> None:
        """Stop answering while too much waits for the network, or begin again."""
        self._hold(NETWORK, held=congested)

    def _hold(self, reason: WaitReason, *, held: bool) -> None:
        """Stop answering for a reason, or begin again when there is none left."""
        if held:
            self._held_by.add(reason)
        else:
            self._held_by.discard(reason)
        for runner in self._runners.values():
            runner.held_for = next(iter(self._held_by), None)
            runner.schedule()

    # The clock --------------------------------------------------------------------------------------------------

    async def tick_forever(self) -> None:
        """Do the periodic work, and tell the learner that this process is alive."""
        try:
            next_alive = 0.0
            while True:
                await asyncio.sleep(TICK_SECONDS)
                self.tick()
                if self.host.now() >= next_alive:
                    next_alive = self.host.now() + messages.ALIVE_SECONDS
                    self.link.tell(messages.Alive())
        except Exception as error:  # the edge of the process, as in `BatchTicks`
            log.exception("tick_failed")
            self.fail(error)

    def tick(self) -> None:
        """Do the periodic work."""
        now = self.host.now()
        self._finish_checkpoint()
        self.host.recorder.tick()
        for runner in self._runners.values():
            self._ticks.deliver(runner)
            self._release_late_agents(runner, now)
        for session in list(self.sessions):
            if session.is_gone():
                session.end(DISCONNECTED, CONNECTION_LOST, rejoin=True, tell=False)
            elif (error := session.overdue(now)) is not None:
                session.end_by(error)
        if now >= self._next_stats:
            self._next_stats = now + STATS_SECONDS
            self._ticks.report_stats()
            self._report_times(now)

    def _report_times(self, now: float) -> None:
        """Send the learner where the time went since the last report."""
        before, self._measured = self._measured, (now, time.thread_time(), seconds_without_processor())
        elapsed, computed, waited = (new - old for new, old in zip(self._measured, before, strict=True))
        # A collector that others keep from computing is no idle one: what it would have waited for does not count.
        busy = elapsed * computed / max(elapsed - waited, computed)
        waits: defaultdict[WaitReason, float] = defaultdict(float)
        delays: defaultdict[int, float] = defaultdict(float)
        learning = [one for one in self._runners.values() if one.recorded and one.quota.number is not None]
        for runner in learning:
            seconds, delayed = runner.waits.take(now)
            for reason, each in seconds.items():
                waits[reason] += each / len(learning)
            for simulator, each in delayed.items():
                delays[simulator] += each
        simulators = [one.take_times(now, delays[one.number]) for one in self.sessions if one.started]
        times = (waits[LEARNER], waits[STRAGGLERS], waits[CHECKPOINT], waits[NETWORK], tuple(simulators))
        self.link.tell(messages.TimesMeasured(self._index, elapsed, busy, *times))

    def _release_late_agents(self, runner: LearningRunner, now: float) -> None:
        """Move steps that do not return to later rounds, so that other agents take their places in this one.

        Such steps belong to simulators that are silent while others are held, and to agents whose simulator goes on
        without them. The time-out doubles with each release of the same session in a round: simulators that all need
        longer than it would otherwise pass the quota around for ever. Where no step may become too old, silent
        simulators are waited for.
        """
        quota = runner.quota
        number = quota.number
        if number is None or quota.is_cut or quota.left > 0 or not quota.outstanding[number]:
            return
        owing = runner.recorder.agents.owing(number)
        late, left_behind = [], list[bool]()
        for session in self.sessions:
            for other, agent_index in session.agent_indexes.values():
                if other is not runner or agent_index.number not in owing:
                    continue
                agent_index.enter(number)
                if agent_index.borrows and agent_index.borrows_since is None:
                    agent_index.borrows_since = now
                timeout = self.host.settings.late_agents_grace * 2**agent_index.releases
                silent = now - session.last_activity > timeout and runner.waiting
                goes_on = agent_index.borrows_since is not None and now - agent_index.borrows_since > timeout
                if silent or goes_on:
                    late.append(agent_index)
                    left_behind.append(goes_on)
        if late:
            runner.waits.delayed_by(late[0].simulator, now)
            runner.release_late_agents(late, left_behind)

    def close_sessions(self, message: commands.CloseAll) -> None:
        """End every session, and send the learner the rest."""
        for runner in self._runners.values():
            self._ticks.deliver(runner)
        self._ticks.report_stats()
        for session in list(self.sessions):
            session.end(message.code, message.reason, rejoin=message.rejoin)

    def abandon_sessions(self) -> None:
        """End every session after an error of the collector."""
        for session in list(self.sessions):
            session.abandon(FAILED)
