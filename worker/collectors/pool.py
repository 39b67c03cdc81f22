"""CollectorPool: the learner's side of the collectors.

It starts the processes, gives them behaviors, weights, quotas and blocks, reports their deliveries, and starts them
again when they die. A dead collector costs its simulators' partial segments: its blocks are reclaimed and its quota
given out again.

Threads: one thread of the pool serves the control channels, so that collectors get quotas, blocks and weights while
the learner computes; it holds the lock for moments only. The public methods may be called from any one thread; none but
`start`, `poll` and `close` ever waits.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import structlog

from ludus.collector import commands, messages
from ludus.collector.arena import Arena
from ludus.collector.channel import Frame
from ludus.collector.commands import OpponentAssignment, PolicySpec
from ludus.collector.segments import Segments
from ludus.collector.settings import CollectorSettings
from ludus.collector.snapshots.state import State, pack, unpack
from ludus.config.recording import RecordConfig
from ludus.protocol.environment_parameters import ParameterValue
from ludus.protocol.spec import BehaviorSpec
from worker.collectors import events
from worker.collectors.behaviors import RegisteredBehavior, rank_of
from worker.collectors.processes import (
    START_SECONDS,
    Child,
    ChildListener,
    Collector,
    CollectorProcesses,
    EdgePlace,
    EdgeReader,
    HostProcess,
    WarmCollector,
)
from worker.collectors.recordings import ReceivedRecordings
from worker.collectors.sessions import OWNER, KeptSnapshots, SimulatorSessions

log = structlog.get_logger()


class CollectorStartError(RuntimeError):
    """The collectors can't serve; the message says why."""


class CollectorPool:
    """Starts, feeds, watches and ends the collectors of one attempt."""

    def __init__(self, settings: CollectorSettings, warm: Sequence[WarmCollector] = (), *, ranks: int = 1) -> None:
        """`ranks`: how many ranks of the trainer share the collectors (`worker.collectors.behaviors.rank_of`)."""
        self._settings, self._ranks = settings, ranks
        self.lock = threading.Condition()
        """Notified when an event has come, and when a collector listens or has failed."""
        listener = ChildListener(self._launched, self._received, self._died)
        self.children = CollectorProcesses(settings.count, settings.edge_places, warm, listener, self.lock)
        self._sessions = SimulatorSessions(self.children, self._report)
        self._events: deque[events.CollectorEvent] = deque()
        self._behaviors: dict[str, RegisteredBehavior] = {}
        self._runners: list[RegisteredBehavior] = []
        self._announced: set[str] = set()
        self._teams: set[tuple[str, int]] = set()
        self._refusals: dict[str, commands.Refuse] = {}
        self._kept = KeptSnapshots()
        self._recordings = ReceivedRecordings(settings.recordings)

    def start(self, timeout: float = START_SECONDS) -> list[events.Endpoint]:
        """Start the processes; return where local ones, else the edge reader, listen. Raises CollectorStartError."""
        with self.lock:
            self.children.start()
            self._kept.forget_local_sessions()
            deadline = time.monotonic() + timeout
            processes = self.children.of_host
            while any(child.endpoint is None and child.failure is None for child in processes):
                if not self.lock.wait(deadline - time.monotonic()):
                    break
            failed = [child for child in processes if child.endpoint is None]
            endpoints = [child.endpoint for child in processes if child.endpoint is not None]
        if failed:
            self.close("collector_closing", "the collectors could not be started", rejoin=True)
            raise CollectorStartError(f"{failed[0].name} did not start: {failed[0].failure or 'it took too long'}")
        return endpoints

    def open_places(self) -> None:
        """Open the places for edge collectors: start the edge reader, unless it was started. Never waits.

        An `Endpoint` is reported when it listens, `EdgeReaderFailed` when it can't serve here.
        """
        with self.lock:
            self.children.start_reader()

    def restore(self, collectors: Sequence[State]) -> None:
        """Restore simulators that come back: states of `HandedOver` of an earlier attempt. Before `start`."""
        self._kept = KeptSnapshots(collectors)
        sessions = list(self._kept.sessions())
        self._sessions.restore({session["session_id"]: owner for session, owner in sessions})
        self.children.number_from([session["number"] for session, _ in sessions])
        for place in self.children.places:
            place.former = self._kept.owner(place.index)

    def hold(self, timeout: float) -> set[int]:
        """Stop all answers; return which collectors will send `HandedOver`, once simulators went back, or `timeout`."""
        with self.lock:
            self.children.broadcast(commands.Hold(timeout))
            return {child.index for child in self.children.listening}

    def release(self) -> None:
        """Resume answering after `hold`."""
        with self.lock:
            self.children.broadcast(commands.Release())

    def delivered_before(self, behavior: str, round_number: int, delivered: Sequence[tuple[int, int]]) -> None:
        """Count steps of a round, and later ones, that the only rank has already: (round, steps). Before `grant`."""
        with self.lock:
            advance = self._kept.advance(behavior, self._settings.count)
            self._behaviors[behavior].quotas[0].restore(round_number, delivered, advance)

    def poll(self, timeout: float) -> list[events.CollectorEvent]:
        """Return the events since the last call, waiting at most `timeout` seconds for the first one."""
        with self.lock:
            self.children.flush()
            if not self._events and timeout > 0:
                self.lock.wait_for(lambda: bool(self._events), timeout)
            events = list(self._events)
            self._events.clear()
            return events

    def admit(
        self, spec: BehaviorSpec, policy: PolicySpec, arena: Arena, evaluated: Sequence[npt.NDArray[np.float32]] = ()
    ) -> None:
        """Accept an announced behavior. Its agents are answered once weights are published and steps are granted."""
        with self.lock:
            behavior = RegisteredBehavior(
                len(self._runners), spec, policy, arena, self.children, evaluated, self._ranks
            )
            self._runners.append(behavior)
            self._behaviors[spec.behavior] = behavior
            for child in self.children.listening:
                behavior.introduce(child)

    def refuse(self, behavior: str, code: str, reason: str) -> None:
        """End the sessions that announced the behavior, now and later."""
        with self.lock:
            self._refusals[behavior] = commands.Refuse(behavior, code, reason)
            self.children.broadcast(self._refusals[behavior])

    def publish(self, behavior: str, version: int, weights: npt.NDArray[np.float32]) -> None:
        """Make newer weights act, from the next `grant` or `poll` on. A later grant is only used with them or newer."""
        with self.lock:
            self._behaviors[behavior].publish(version, weights)

    def grant(self, behavior: str, round_number: int, steps: int, ahead: int | None = None) -> None:
        """Permit `steps` more answers, all counted into the round. Rounds count up by one from any number.

        With `ahead` no answer counts more than so many rounds later, and all that were given are waited for: rounds
        have more than `steps` steps where messages exceed them.
        """
        with self.lock:
            entry = self._behaviors[behavior]
            entry.grant(round_number, steps, ahead)
            self._report_collected(entry)

    def grant_unrecorded(self, behavior: str) -> None:
        """Answer this behavior from now on without a limit and without recording its steps (its training is over)."""
        with self.lock:
            self._behaviors[behavior].stop_recording()

    def assign_opponents(
        self, behavior: str, assignment: OpponentAssignment, weights: Mapping[int, npt.NDArray[np.float32]]
    ) -> None:
        """Set the learning team, and the policies of the others from their agents' next episodes on.

        `weights` has every policy that is named, at least those that were not named the last time. Call `reset` after a
        change of the team that learns: simulators' agents are forgotten by it. Never blocks.
        """
        with self.lock:
            self._behaviors[behavior].assign_opponents(assignment, weights)

    def begin_evaluation(
        self,
        behavior: str,
        session_id: str,
        episode_batch: int,
        team: int | None,
        parameters: Mapping[str, ParameterValue],
    ) -> None:
        """Begin an evaluation batch on a simulator; `EvaluationEnded` reports its games.

        The candidate plays `team`, the champion the others; None: the candidate plays alone, -1: the champion does.
        Only this simulator gets `parameters`. If the simulator leaves, the batch is dropped. Never blocks.
        """
        with self.lock:
            self._behaviors[behavior].begin_evaluation(session_id, episode_batch, team, parameters)

    def reclaim(self, behavior: str, segments: Segments) -> None:
        """Free the blocks of delivered segments, after `Arena.gather`."""
        with self.lock:
            self._behaviors[behavior].reclaim(segments)

    def reset(self) -> None:
        """Make every simulator begin new episodes, with the present parameters; all partial segments are dropped."""
        self.send_parameters(self._settings.environment_parameters, self._settings.parameter_set, reset=True)

    def send_parameters(self, values: Mapping[str, ParameterValue], parameter_set: int, *, reset: bool = False) -> None:
        """Send every simulator other parameters with its next answer, and later ones at once; see `reset`.

        `parameter_set` is the number that episodes with them carry (`EpisodesEnded.records`).
        """
        with self.lock:
            self._settings = replace(self._settings, environment_parameters=dict(values), parameter_set=parameter_set)
            self.children.broadcast(commands.Parameters(dict(values), parameter_set, reset))

    def record(self, record: RecordConfig) -> None:
        """Record other sessions from now on, or within other limits."""
        with self.lock:
            self._settings = replace(self._settings, record=record)
            self.children.broadcast(commands.Record(record))

    def idle_ranks(self) -> list[int]:
        """Return the ranks whose collectors serve no simulator: a round waits for their parts."""
        with self.lock:
            busy = {rank_of(child.index, self._ranks) for child in self.children if child.simulators}
        return [rank for rank in range(self._ranks) if rank not in busy]

    def close(self, code: str, reason: str, *, rejoin: bool) -> None:
        """Send Close to every simulator, and end the processes for certain. Safe to call twice."""
        if self.children.closing:
            return
        self.children.close(commands.CloseAll(code, reason, rejoin))
        for behavior in self._runners:
            behavior.close()

    def _launched(self, child: Child) -> None:
        """Send a new process its settings, or the edge collector that has taken a place."""
        restored, numbers = None, (0, 1)
        if isinstance(child, Collector):
            child.parameter_set, numbers = self._settings.parameter_set, (child.first_number, child.number_step)
            # A collector that is started again has lost its simulators' episodes: they begin again.
            restored = self._kept.take(child) if child.generation == 0 else None
        settings = self._settings.to_json()
        message = commands.Settings(child.index, child.generation, *numbers, settings, restored is not None)
        self.children.send_message(child, message)
        if restored is not None:
            self.children.send(child, messages.Kind.RESTORED, pack(restored))

    def _died(self, child: Child, exit_code: int) -> None:
        """Take back the blocks and quotas of a collector, and report its end."""
        assert child.failure is not None, "the dead have a reason"
        lost = 0
        if isinstance(child, Collector):
            self._recordings.complete(child.index)
            lost = sum(behavior.forget(child) for behavior in self._runners)
            for behavior in self._runners:
                self._report_collected(behavior)  # it may have been the last one that owed steps
            self._sessions.lose(child)
        if isinstance(child, EdgePlace):
            if child.joined and not self.children.closing:
                self._report(events.EdgeCollectorLeft(child.index, child.failure, lost))
            child.take(None)
        if self.children.closing or not isinstance(child, HostProcess):
            return
        if isinstance(child, EdgeReader) and child is not self.children.reader:
            log.warning("edge_reader_failed", reason=child.failure)
            self._report(events.EdgeReaderFailed(child.failure))
            return
        log.warning("collector_died", index=child.index, reason=child.failure, lost_steps=lost)
        if child.failure != child.reported:
            self._report(events.CollectorDied(child.index, exit_code, child.failure, lost, child.killed_after))
            child.reported = child.failure
        self.lock.notify_all()

    def _received(self, child: Child, frame: Frame) -> None:
        """Handle a frame of a child."""
        if not isinstance(child, Collector):
            self._handle_life(child, messages.read(frame))
            return
        match messages.Kind(frame.kind):
            case messages.Kind.SEGMENTS:
                number, payload = messages.unpack_numbered(frame.payload)
                behavior = self._runners[number]
                segments = behavior.delivered(child, Segments.unpack(payload))
                self._report(events.SegmentsDelivered(behavior.name, child.index, segments))
                self._report_collected(behavior)
            case messages.Kind.EPISODES:
                number, payload = messages.unpack_numbered(frame.payload)
                records = np.frombuffer(payload, messages.EPISODE_DTYPE)
                self._report(events.EpisodesEnded(self._runners[number].name, child.index, records))
            case messages.Kind.SNAPSHOTS:
                state = unpack(frame.payload)
                if isinstance(child, EdgePlace):
                    sessions = [
                        session for session in state["sessions"] if self._sessions.belongs(child, session["session_id"])
                    ]
                    state |= {"sessions": sessions, OWNER: child.identity}
                self._report(events.HandedOver(child.index, state))
            case messages.Kind.RECORDING if isinstance(child, EdgePlace):
                self._recordings.take(child.index, frame.payload, self._settings.record)
            case _:
                self._handle(child, messages.read(frame))

    def _handle(self, child: Collector, message: messages.Message) -> None:
        """Handle a control message of a collector; most are passed on to the learner as they are."""
        match message:
            case messages.EvaluationEnded() if message.session_id not in child.simulators:
                log.warning("session_of_another_named", index=child.index, session_id=message.session_id)
            case (
                messages.StepsPlayed() | messages.MatchesEnded() | messages.EvaluationEnded() | messages.CollectorLags()
            ):
                self._report(message)
            case messages.TimesMeasured():
                self._report(replace(message, collector=child.index))
            case messages.Stats():
                for stat in message.stats:
                    self._report(stat)
            case messages.QuotaProgress():
                self._runners[message.runner].quota_progress(child, message)
                self._report_collected(self._runners[message.runner])
            case messages.WeightsRead():
                self._runners[message.runner].weights_read(child)
            case messages.WantBlocks():
                self._runners[message.runner].lend_blocks(child)
            case messages.BehaviorAnnounced():
                spec = message.spec
                if spec.behavior in self._refusals:
                    self.children.send_message(child, self._refusals[spec.behavior])
                    return
                if spec.behavior not in self._behaviors and spec.behavior not in self._announced:
                    self._announced.add(spec.behavior)
                    self._report(message)
                if (spec.behavior, spec.team) not in self._teams:
                    self._teams.add((spec.behavior, spec.team))
                    self._report(events.TeamAnnounced(spec.behavior, spec.team))
            case (
                messages.SimulatorConnected()
                | messages.SimulatorStarted()
                | messages.SimulatorLeft()
                | messages.SimulatorProblem()
            ):
                self._sessions.take(child, message)
            case messages.PlaceTaken() if isinstance(child, EdgePlace):
                child.take(message)
                self._launched(child)
            case _:
                self._handle_life(child, message)

    def _handle_life(self, child: Child, message: messages.Message) -> None:
        match message:
            case messages.Alive():
                pass
            case messages.Listening():
                self._listens(child, message)
            case messages.Failed():
                child.failure = message.reason
                log.error("collector_failed", index=child.index, reason=child.failure)
                self.lock.notify_all()
            case _:
                raise ValueError(f"a collector sent {type(message).__name__}")

    def _report(self, event: events.CollectorEvent) -> None:
        self._events.append(event)
        self.lock.notify_all()

    def _listens(self, child: Child, message: messages.Listening) -> None:
        host = f"[{name}]" if ":" in (name := self._settings.advertise_host) else name
        is_reader = isinstance(child, EdgeReader)
        edge = is_reader or isinstance(child, EdgePlace)
        websocket = f"{host}:{message.websocket_port}" if message.websocket_port else None
        child.endpoint = events.Endpoint(child.index, f"{host}:{message.port}", edge, child.generation, websocket)
        had_served, child.has_served = child.has_served, True
        if isinstance(child, HostProcess):
            child.reported = None
        if isinstance(child, Collector):
            if child.parameter_set != self._settings.parameter_set:  # they changed while it started
                parameters, number = self._settings.environment_parameters, self._settings.parameter_set
                self.children.send_message(child, commands.Parameters(parameters, number, reset=False))
            self.children.send_message(child, commands.Record(self._settings.record))
            for behavior in self._runners:
                behavior.introduce(child)
            for refusal in self._refusals.values():
                self.children.send_message(child, refusal)
        else:
            self.children.open_places()
        if isinstance(child, EdgePlace) and child.taken is not None:
            child.joined = True
            self._report(events.EdgeCollectorJoined(child.index, child.taken.host, child.taken.peer))
        elif had_served or (
            is_reader and self._settings.count > self._settings.edge_places
        ):  # `start` returns the others
            self._report(child.endpoint)
        self.lock.notify_all()

    def _report_collected(self, behavior: RegisteredBehavior) -> None:
        collected = behavior.collected()
        if collected is not None:
            self._report(events.RoundCollected(behavior.name, *collected))
