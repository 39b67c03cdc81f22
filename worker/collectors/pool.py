"""CollectorPool: the learner's side of the collectors.

It starts the processes, gives them behaviors, weights, permits and blocks, reports what they deliver, and starts them
again when they die. A dead collector costs its simulators' partial segments: its blocks are reclaimed and its permits
given out again.

Threads: one thread of the pool serves the control channels, so that collectors get permits, blocks and weights while
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

from ludus.collector import handover, messages
from ludus.collector.arena import Arena
from ludus.collector.assessment import EndedGame
from ludus.collector.channel import Frame
from ludus.collector.handover import State
from ludus.collector.matches import EndedMatch
from ludus.collector.messages import Kind, unpack_lane
from ludus.collector.segments import Segment, unpack_segments
from ludus.collector.settings import CollectorSettings
from ludus.protocol.batches import Aggregation
from ludus.protocol.environment_parameters import ParameterValue, to_plain
from ludus.protocol.spec import BehaviorSpec
from worker.collectors.admitted import AdmittedBehavior
from worker.collectors.children import START_SECONDS, Child, Children, WarmCollector
from worker.collectors.notices import (
    BehaviorAnnounced,
    CollectorDied,
    CollectorListening,
    Endpoint,
    EpisodesEnded,
    GhostStepsPlayed,
    HandedOver,
    MatchesEnded,
    Notice,
    RoundCollected,
    SegmentsDelivered,
    SimulatorConnected,
    SimulatorLeft,
    SimulatorStarted,
    SimulatorTrouble,
    SittingEnded,
    StatsReported,
    TeamAnnounced,
)
from worker.collectors.programs import Opposition, PolicyProgram

log = structlog.get_logger()

COLLECTOR_DIED = "collector_died"
"""Code of simulators that were connected to a collector when it died."""


class CollectorStartError(RuntimeError):
    """The collectors can't serve; the message says why."""


class CollectorPool:
    """Starts, feeds, watches and ends the collectors of one attempt."""

    def __init__(self, settings: CollectorSettings, warm: Sequence[WarmCollector] = ()) -> None:
        self._settings = settings
        self._lock = threading.Condition()
        """Notified when a notice has come, and when a collector listens or has failed."""
        self._children = Children(settings.count, warm, self, self._lock)
        self._notices: deque[Notice] = deque()
        self._behaviors: dict[str, AdmittedBehavior] = {}
        self._lanes: list[AdmittedBehavior] = []
        self._announced: set[str] = set()
        self._teams: set[tuple[str, int]] = set()
        self._refusals: dict[str, messages.Refuse] = {}
        self._kept: list[State] = []
        """What was handed over in a former attempt, by collector."""
        self._away: set[str] = set()
        """Incarnations of simulators in it that have not come back."""

    # The learner's methods --------------------------------------------------------------------------------------

    def start(self, timeout: float = START_SECONDS) -> list[Endpoint]:
        """Start the processes and return where they listen. Raises CollectorStartError (no free port, ...)."""
        with self._lock:
            self._children.start()
            self._kept = [{**each, "sessions": []} for each in self._kept]  # they are large, and told
            deadline = time.monotonic() + timeout
            while any(child.endpoint is None and child.failure is None for child in self._children):
                if not self._lock.wait(deadline - time.monotonic()):
                    break
            failures = [
                f"collector {child.index} did not start: {child.failure or 'it took too long'}"
                for child in self._children
                if child.endpoint is None
            ]
            endpoints = [child.endpoint for child in self._children if child.endpoint is not None]
        if failures:
            self.close("collector_closing", "the collectors could not be started", rejoin=True)
            raise CollectorStartError(failures[0])
        return endpoints

    def restore(self, collectors: Sequence[State]) -> None:
        """Let simulators that come back go on where they were: what `HandedOver` said in a former attempt, in the order
        of the collectors. Before `start`."""
        self._kept = list(collectors)
        self._away = {session["incarnation"] for each in collectors for session in each["sessions"]}
        first = handover.first_free_number(collectors)
        for child in self._children:
            child.first_number = first + (child.index - first) % self._settings.count

    def hold(self, patience: float) -> set[int]:
        """Let nobody be answered, and every collector hand over (`HandedOver`); return which will. Then `release`.

        Simulators that can go back are waited for as long as `patience`, in seconds.
        """
        with self._lock:
            self._children.tell_all(messages.Hold(patience))
            return {child.index for child in self._children.listening}

    def release(self) -> None:
        """Let everybody go on."""
        with self._lock:
            self._children.tell_all(messages.Release())

    def delivered_before(self, behavior: str, round_number: int, delivered: Sequence[tuple[int, int]]) -> None:
        """Count steps of a round, and later ones, that the learner has already: (round, steps). Before `grant`."""
        with self._lock:
            advance = [
                (collector, number, steps)
                for collector, each in enumerate(self._kept[: self._settings.count])
                for number, steps in each["lanes"].get(behavior, {}).get("advance", [])
            ]
            self._behaviors[behavior].restore_rounds(round_number, delivered, advance)

    def poll(self, timeout: float) -> list[Notice]:
        """Return what happened, waiting at most `timeout` seconds for the first notice."""
        with self._lock:
            if not self._notices and timeout > 0:
                self._lock.wait_for(lambda: bool(self._notices), timeout)
            notices = list(self._notices)
            self._notices.clear()
            return notices

    def admit(self, spec: BehaviorSpec, policy: PolicyProgram, arena: Arena) -> None:
        """Accept an announced behavior. Its agents are answered once weights are published and steps are granted."""
        with self._lock:
            behavior = AdmittedBehavior(len(self._lanes), spec, policy, arena, self._children)
            self._lanes.append(behavior)
            self._behaviors[spec.behavior] = behavior
            for child in self._children.listening:
                behavior.introduce(child)

    def refuse(self, behavior: str, code: str, reason: str) -> None:
        """End the sessions that announced the behavior, now and later."""
        with self._lock:
            self._refusals[behavior] = messages.Refuse(behavior, code, reason)
            self._children.tell_all(self._refusals[behavior])

    def publish(self, behavior: str, version: int, weights: npt.NDArray[np.float32]) -> None:
        """Make newer weights act. Never blocks. A later `grant` is only used with these weights or newer ones."""
        with self._lock:
            self._behaviors[behavior].publish(version, weights)

    def grant(self, behavior: str, round_number: int, steps: int) -> None:
        """Permit `steps` more answers, all counted into the round. Rounds count up by one from any number."""
        with self._lock:
            entry = self._behaviors[behavior]
            entry.grant(round_number, steps)
            self._note_collected(entry)

    def grant_unrecorded(self, behavior: str) -> None:
        """Answer this behavior from now on without a limit and without recording its steps (its training is over)."""
        with self._lock:
            self._behaviors[behavior].stop_recording()

    def oppose(self, behavior: str, opposition: Opposition, weights: Mapping[int, npt.NDArray[np.float32]]) -> None:
        """Say which team learns, and what the others play from their agents' next episodes on.

        `weights` has every policy that is named, at least those that were not named the last time. Call `reset` after a
        change of the team that learns: simulators' agents are forgotten by it. Never blocks.
        """
        with self._lock:
            self._behaviors[behavior].oppose(opposition, weights)

    def sit(
        self,
        behavior: str,
        incarnation: str,
        sitting: int,
        team: int | None,
        parameters: Mapping[str, ParameterValue],
    ) -> None:
        """Let a simulator begin anew with a sitting of an assessment; `SittingEnded` reports its games.

        The candidate plays `team`, the champion the others; None: the candidate plays alone. `parameters` are told to
        this simulator only. Nothing comes of it if the simulator leaves. Never blocks.
        """
        with self._lock:
            self._behaviors[behavior].sit(incarnation, sitting, team, parameters)

    def reclaim(self, behavior: str, segments: Sequence[Segment]) -> None:
        """Free the blocks of delivered segments, after `Arena.gather`."""
        with self._lock:
            self._behaviors[behavior].reclaim(segments)

    def reset(self, environment_parameters: Mapping[str, ParameterValue], parameter_set: int | None = None) -> None:
        """Make every simulator begin new episodes with these parameters; all partial segments are dropped.

        `parameter_set` is the number that these episodes carry (`EpisodesEnded.parameter_sets`), by default that of the
        ones before; simulators that come later are told these parameters, too.
        """
        number = self._settings.parameter_set if parameter_set is None else parameter_set
        self._change_parameters(environment_parameters, number, reset=True)

    def tell_parameters(self, environment_parameters: Mapping[str, ParameterValue], parameter_set: int) -> None:
        """Tell every simulator other parameters with its next answer, and those that come later; nothing is reset."""
        self._change_parameters(environment_parameters, parameter_set, reset=False)

    def _change_parameters(self, values: Mapping[str, ParameterValue], parameter_set: int, *, reset: bool) -> None:
        with self._lock:
            self._settings = replace(self._settings, environment_parameters=dict(values), parameter_set=parameter_set)
            self._children.tell_all(messages.Parameters(to_plain(values), parameter_set, reset))

    def close(self, code: str, reason: str, *, rejoin: bool) -> None:
        """Send Close to every simulator, and end the processes for certain. Safe to call twice."""
        if self._children.closing:
            return
        self._children.close(messages.CloseAll(code, reason, rejoin))
        for behavior in self._lanes:
            behavior.close()

    # What becomes of collectors (`children.Keeper`) -------------------------------------------------------------

    def launched(self, child: Child) -> None:
        """Tell a new process its settings."""
        child.parameter_set = self._settings.parameter_set
        # A collector that is started again has lost its simulators' episodes: they begin anew.
        kept = bool(self._kept) and child.generation == 0
        settings = self._settings.to_json()
        message = messages.Settings(child.index, child.generation, child.first_number, settings, kept)
        self._children.tell(child, message)
        if kept:
            self._children.send(child, Kind.KEPT, handover.pack(handover.merged(self._kept, child.index)))

    def died(self, child: Child, exit_code: int) -> None:
        """Take back what a collector had, and report it."""
        assert child.failure is not None, "the dead have a reason"
        lost = sum(behavior.forget(child) for behavior in self._lanes)
        for simulator in child.simulators.values():
            self._report(
                SimulatorLeft(
                    simulator.incarnation,
                    simulator.number,
                    COLLECTOR_DIED,
                    f"its collector ended ({child.failure})",
                    0,
                    simulator.peer,
                )
            )
        child.simulators.clear()
        if self._children.closing:
            return
        log.warning("collector_died", index=child.index, reason=child.failure, lost_steps=lost)
        if child.failure != child.reported:
            self._report(CollectorDied(child.index, exit_code, child.failure, lost, child.killed_after))
            child.reported = child.failure
        self._lock.notify_all()

    def heard(self, child: Child, frame: Frame) -> None:
        """Take what a collector says."""
        match Kind(frame.kind):
            case Kind.SEGMENTS:
                number, payload = unpack_lane(frame.payload)
                self._delivered(child, self._lanes[number], unpack_segments(payload))
            case Kind.EPISODES:
                number, payload = unpack_lane(frame.payload)
                self._report(EpisodesEnded.unpack(self._lanes[number].name, child.index, payload))
            case Kind.OPPOSED:
                self._opposed(messages.Opposed.unpack(frame.payload))
            case Kind.SAT:
                sat = messages.Sat.unpack(frame.payload)
                games = tuple(EndedGame(*row) for row in sat.games)
                self._report(SittingEnded(self._lanes[sat.lane].name, sat.incarnation, sat.sitting, games))
            case Kind.STATS:
                for number, key, kind, count, total, last, values in messages.Stats.unpack(frame.payload).rows:
                    self._report(StatsReported(key, Aggregation(kind), count, total, last, tuple(values), number))
            case Kind.WANT:
                want = messages.Want.unpack(frame.payload)
                self._lanes[want.lane].want(child, want)
            case Kind.RETURNED:
                back = messages.Returned.unpack(frame.payload)
                self._lanes[back.lane].returned(child, back)
            case Kind.BORROWED:
                borrowed = messages.Borrowed.unpack(frame.payload)
                self._lanes[borrowed.lane].borrowed(child, borrowed)
            case Kind.WEIGHTS_READ:
                self._lanes[messages.WeightsRead.unpack(frame.payload).lane].weights_read(child)
            case Kind.WANT_BLOCKS:
                self._lanes[messages.WantBlocks.unpack(frame.payload).lane].lend_blocks(child)
            case Kind.ANNOUNCED:
                self._behavior_announced(child, messages.spec_from_text(messages.Announced.unpack(frame.payload).spec))
            case Kind.CONNECTED:
                self._connected(child, messages.Connected.unpack(frame.payload))
            case Kind.HANDED_OVER:
                self._report(HandedOver(child.index, handover.unpack(frame.payload)))
            case Kind.STARTED:
                started = messages.Started.unpack(frame.payload)
                self._came_back(child, started.incarnation)
                self._report(SimulatorStarted(started.incarnation, tuple(started.behaviors), started.agents))
            case Kind.LEFT:
                self._left(child, messages.Left.unpack(frame.payload))
            case Kind.TROUBLE:
                trouble = messages.Trouble.unpack(frame.payload)
                self._report(SimulatorTrouble(trouble.incarnation, trouble.number, trouble.code, trouble.sentence))
            case Kind.ALIVE:
                pass
            case Kind.LISTENING:
                self._listens(child, messages.Listening.unpack(frame.payload).port)
            case Kind.FAILED:
                child.failure = messages.Failed.unpack(frame.payload).reason
                log.error("collector_failed", index=child.index, reason=child.failure)
                self._lock.notify_all()
            case other:
                raise ValueError(f"a collector sent a frame of kind {other.name}")

    def _report(self, notice: Notice) -> None:
        self._notices.append(notice)
        self._lock.notify_all()

    def _listens(self, child: Child, port: int) -> None:
        child.endpoint = Endpoint(child.index, self._settings.advertise_host, port)
        child.reported = None
        if child.parameter_set != self._settings.parameter_set:  # they changed while it started
            parameters = to_plain(self._settings.environment_parameters)
            self._children.tell(child, messages.Parameters(parameters, self._settings.parameter_set, reset=False))
        for behavior in self._lanes:
            behavior.introduce(child)
        for refusal in self._refusals.values():
            self._children.tell(child, refusal)
        if child.generation:
            self._report(CollectorListening(child.endpoint))
        self._lock.notify_all()

    def _delivered(self, child: Child, behavior: AdmittedBehavior, segments: tuple[Segment, ...]) -> None:
        steps = behavior.delivered(child, segments)
        self._report(SegmentsDelivered(behavior.name, child.index, segments, steps))
        self._note_collected(behavior)

    def _opposed(self, message: messages.Opposed) -> None:
        behavior = self._lanes[message.lane].name
        if message.steps:
            self._report(GhostStepsPlayed(behavior, message.steps))
        if message.matches:
            self._report(MatchesEnded(behavior, tuple(EndedMatch.from_row(row) for row in message.matches)))

    def _note_collected(self, behavior: AdmittedBehavior) -> None:
        collected = behavior.collected()
        if collected is not None:
            self._report(RoundCollected(behavior.name, *collected))

    # Simulators -------------------------------------------------------------------------------------------------

    def _behavior_announced(self, child: Child, spec: BehaviorSpec) -> None:
        refusal = self._refusals.get(spec.behavior)
        if refusal is not None:
            self._children.tell(child, refusal)
            return
        if spec.behavior not in self._behaviors and spec.behavior not in self._announced:
            self._announced.add(spec.behavior)
            self._report(BehaviorAnnounced(spec))
        if (spec.behavior, spec.team) not in self._teams:
            self._teams.add((spec.behavior, spec.team))
            self._report(TeamAnnounced(spec.behavior, spec.team))

    def _came_back(self, child: Child, incarnation: str) -> None:
        """Let the other collectors forget where a simulator was in a former attempt: it plays here now."""
        if incarnation in self._away:
            self._away.discard(incarnation)
            for other in self._children.listening:
                if other is not child:
                    self._children.tell(other, messages.Forget(incarnation))

    def _connected(self, child: Child, message: messages.Connected) -> None:
        for other in self._children:
            if other is not child and message.incarnation in other.simulators:
                reason = "a newer stream of this incarnation took its place"
                self._children.tell(other, messages.EndSession(message.incarnation, "superseded", reason))
        child.simulators[message.incarnation] = message
        child.first_number = max(child.first_number, message.number + self._settings.count)
        self._report(
            SimulatorConnected(
                message.incarnation,
                message.number,
                child.index,
                message.peer,
                message.client,
                tuple(message.behaviors),
            )
        )

    def _left(self, child: Child, message: messages.Left) -> None:
        known = child.simulators.get(message.incarnation)
        if known is not None and known.peer == message.peer:
            del child.simulators[message.incarnation]
        self._report(
            SimulatorLeft(
                message.incarnation, message.number, message.code, message.reason, message.steps, message.peer
            )
        )
