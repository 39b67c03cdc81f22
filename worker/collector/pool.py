"""CollectorPool: the learner's side of the collectors.

It starts the processes, gives them behaviors, weights, permits and blocks, reports what they deliver, and starts them
again when they die. A dead collector costs its simulators' partial segments: its blocks are reclaimed and its permits
given out again.

Threads: one thread of the pool serves the control channels, so that collectors get permits, blocks and weights while
the learner computes; it holds the lock for moments only. The public methods may be called from any one thread; none but
`start`, `poll` and `close` ever waits.
"""

import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from ludus.environment_parameters import ParameterValue, from_plain, to_plain
from ludus.spec import BehaviorSpec
from ludus.wire.batches import Aggregation
from worker.collector import handover, messages
from worker.collector.assessment import EndedGame
from worker.collector.children import WarmCollector
from worker.collector.handover import State
from worker.collector.matches import EndedMatch
from worker.collector.messages import EPISODE_DTYPE, Kind, Message, pack_lane, unpack_lane
from worker.collector.notices import (
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
from worker.collector.settings import CollectorSettings
from worker.collector.sharing import Grant, Order, RoundSharing
from worker.experience.arena import Arena, ArenaLayout
from worker.experience.blocks import BlockLedger
from worker.experience.channel import ChannelClosedError, Frame
from worker.experience.segments import Segment, blocks_of, unpack_segments
from worker.experience.weights import WeightBuffers, freeze

__all__ = ["CollectorPool", "CollectorStartError", "PolicyProgram", "WarmCollector"]

log = structlog.get_logger()

BLOCK_CHUNK = 512
"""Blocks that are lent at a time, at most. Few, because those that were used last are lent first and are still in the
cache."""
FEWEST_BLOCKS = 64
CHUNK_BYTES = 32 << 20
"""Blocks of pictures are lent in smaller numbers: what a collector holds becomes memory as it writes all of it in turn.
One that needs more, because more agents than that act at once, asks again."""
CLOSE_SECONDS = 5.0
RESTART_DELAYS = (0.0, 0.5, 2.0, 5.0, 10.0)
"""Pauses before a collector is started again, by how often it has died within the last minute."""
START_SECONDS = 30.0
"""How long a collector may take until it listens."""
SILENCE_SECONDS = 15.0
"""A collector that has said nothing for so long has frozen; loading a policy onto a GPU takes seconds."""
COLLECTOR_DIED = "collector_died"
"""Code of simulators that were connected to a collector when it died."""


class CollectorStartError(RuntimeError):
    """The collectors can't serve; the message says why."""


@dataclass(frozen=True, slots=True)
class FrozenProgram:
    """One policy of an assessment: how a collector builds it, and what it does."""

    network_settings: Mapping[str, Any]
    """`NetworkSettings.model_dump(mode="json")`."""
    squashed: bool
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PolicyProgram:
    """How a collector builds the acting policy of a behavior."""

    network_settings: Mapping[str, Any]
    """`NetworkSettings.model_dump(mode="json")`."""
    weights_size: int
    """Length of the flat weight vector."""
    time_horizon: int
    """Longest segment."""
    squashed: bool = False
    """Whether continuous actions are squashed samples (SAC)."""
    pink_noise: bool = False
    """Whether the noise of continuous actions is pink (`worker.collector.exploration`)."""
    device: str = "cpu"
    """Where policies act that need torch: `cpu`, `cuda` or `cuda:N`."""
    self_play: bool = False
    """Whether one team learns and the others play frozen policies: nobody acts before `CollectorPool.oppose`."""
    assessment: Sequence[FrozenProgram] = ()
    """The policies of an assessment, which answer all agents: the candidate, then the champion. Weights are not
    published, steps are not granted; simulators play for nothing until `CollectorPool.sit`."""


@dataclass(frozen=True, slots=True)
class Opposition:
    """Which team of a behavior learns, and which policies the others play. Keys as in `worker.collector.opponents`."""

    learning: int | None
    """None: no team of this behavior."""
    teams: Mapping[int, Sequence[int]]
    """The draws of each team: simulator `n` plays draw `n mod k`."""
    others: Sequence[int]
    """Draws of teams that are not among them."""

    @property
    def keys(self) -> set[int]:
        """All policies that are named."""
        return {key for keys in (*self.teams.values(), self.others) for key in keys}


def block_chunk(layout: ArenaLayout) -> int:
    """Return how many blocks are lent at a time."""
    return max(FEWEST_BLOCKS, min(BLOCK_CHUNK, CHUNK_BYTES // layout.block_bytes))


@dataclass(slots=True)
class _Child:
    """One collector, over all of its processes."""

    index: int
    generation: int = 0
    """Counts its processes."""
    warm: WarmCollector | None = None
    endpoint: Endpoint | None = None
    """Where it listens; None while it starts."""
    failure: str | None = None
    simulators: dict[str, messages.Connected] = field(default_factory=dict)
    first_number: int = 0
    """Number of the next simulator that comes without a ticket."""
    deaths: deque[float] = field(default_factory=lambda: deque[float](maxlen=len(RESTART_DELAYS)))
    restart_at: float | None = None
    heard_at: float = 0.0
    """When its process last said anything."""
    parameter_set: int = 0
    """Number of the environment parameters that its process was started with."""


@dataclass(slots=True)
class _Behavior:
    """One admitted behavior."""

    lane: int
    spec: BehaviorSpec
    program: PolicyProgram
    arena: Arena
    weights: WeightBuffers
    ledger: BlockLedger
    chunk: int
    """Blocks that are lent at a time."""
    sharing: RoundSharing = field(default_factory=RoundSharing)
    version: int = -1
    """Newest published version; -1 = none."""
    index: int = -1
    """Buffer that holds it."""
    reading: dict[int, int] = field(default_factory=dict)
    """Collector -> buffer that it was told of and has not acknowledged."""
    told: dict[int, int] = field(default_factory=dict)
    """Collector -> newest version that it was told of."""
    starving: set[int] = field(default_factory=set)
    """Collectors that asked for blocks when none was free."""
    recorded: bool = True
    opposition: Opposition | None = None
    frozen: dict[int, int] = field(default_factory=dict)
    """Key -> descriptor of the weights, of all policies that `opposition` names, or that an assessment is about."""


class CollectorPool:
    """Starts, feeds, watches and ends the collectors of one attempt."""

    def __init__(self, settings: CollectorSettings, warm: Sequence[WarmCollector] = ()) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._notices: deque[Notice] = deque()
        self._behaviors: dict[str, _Behavior] = {}
        self._lanes: list[_Behavior] = []
        self._announced: set[str] = set()
        self._teams: set[tuple[str, int]] = set()
        self._retired: list[int] = []
        """Descriptors that may still wait to be sent."""
        self._refusals: dict[str, messages.Refuse] = {}
        self._children = [_Child(index, first_number=index) for index in range(settings.count)]
        for child, process in zip(self._children, warm, strict=False):
            child.warm = process
        self._spare = list(warm[settings.count :])
        self._kept: list[State] = []
        """What was handed over in a former attempt, by collector."""
        self._away: set[str] = set()
        """Incarnations of simulators in it that have not come back."""
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="collector-pool", daemon=True)

    # The learner's methods --------------------------------------------------------------------------------------

    def start(self, timeout: float = START_SECONDS) -> list[Endpoint]:
        """Start the processes and return where they listen. Raises CollectorStartError (no free port, ...)."""
        with self._lock:
            for child in self._children:
                self._launch(child)
            self._kept = [{**each, "sessions": []} for each in self._kept]  # they are large, and told
            self._thread.start()
            deadline = time.monotonic() + timeout
            while any(child.endpoint is None and child.failure is None for child in self._children):
                if not self._arrived.wait(deadline - time.monotonic()):
                    break
            failures = [child.failure or "it did not start in time" for child in self._children if not child.endpoint]
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
            asked = list(self._listening())
            for child in asked:
                self._tell(child, messages.Hold(patience))
            return {child.index for child in asked}

    def release(self) -> None:
        """Let everybody go on."""
        with self._lock:
            for child in self._listening():
                self._tell(child, messages.Release())

    def delivered_before(self, behavior: str, round_number: int, delivered: Sequence[tuple[int, int]]) -> None:
        """Count steps of a round, and later ones, that the learner has already: (round, steps). Before `grant`."""
        with self._lock:
            entry = self._behaviors[behavior]
            advance = [
                (collector, number, steps)
                for collector, each in enumerate(self._kept[: self._settings.count])
                for number, steps in each["lanes"].get(behavior, {}).get("advance", [])
            ]
            entry.sharing.restore(round_number, delivered, advance)

    def poll(self, timeout: float) -> list[Notice]:
        """Return what happened, waiting at most `timeout` seconds for the first notice."""
        with self._lock:
            if not self._notices and timeout > 0:
                self._arrived.wait_for(lambda: bool(self._notices), timeout)
            notices = list(self._notices)
            self._notices.clear()
            return notices

    def admit(self, spec: BehaviorSpec, policy: PolicyProgram, arena: Arena) -> None:
        """Accept an announced behavior. Its agents are answered once weights are published and steps are granted."""
        with self._lock:
            behavior = _Behavior(
                lane=len(self._lanes),
                spec=spec,
                program=policy,
                arena=arena,
                weights=WeightBuffers.create(policy.weights_size, self._settings.count),
                ledger=BlockLedger(arena.layout.blocks),
                chunk=block_chunk(arena.layout),
                recorded=not policy.assessment,
                frozen={key: freeze(each.weights) for key, each in enumerate(policy.assessment)},
            )
            self._lanes.append(behavior)
            self._behaviors[spec.behavior] = behavior
            for child in self._listening():
                self._introduce(child, behavior)

    def refuse(self, behavior: str, code: str, reason: str) -> None:
        """End the sessions that announced the behavior, now and later."""
        with self._lock:
            self._refusals[behavior] = messages.Refuse(behavior, code, reason)
            for child in self._listening():
                self._tell(child, self._refusals[behavior])

    def publish(self, behavior: str, version: int, weights: npt.NDArray[np.float32]) -> None:
        """Make newer weights act. Never blocks. A later `grant` is only used with these weights or newer ones."""
        with self._lock:
            entry = self._behaviors[behavior]
            entry.index = entry.weights.write(version, weights)
            entry.version = version
            for child in self._listening():
                self._offer_weights(child, entry)

    def grant(self, behavior: str, round_number: int, steps: int) -> None:
        """Permit `steps` more answers, all counted into the round. Rounds count up by one from any number."""
        with self._lock:
            entry = self._behaviors[behavior]
            self._send_orders(entry, entry.sharing.grant(round_number, steps))
            self._note_collected(entry)

    def grant_unrecorded(self, behavior: str) -> None:
        """Answer this behavior from now on without a limit and without recording its steps (its training is over)."""
        with self._lock:
            entry = self._behaviors[behavior]
            entry.recorded = False
            for child in self._listening():
                self._tell(child, messages.Unrecorded(entry.lane))

    def oppose(self, behavior: str, opposition: Opposition, weights: Mapping[int, npt.NDArray[np.float32]]) -> None:
        """Say which team learns, and what the others play from their agents' next episodes on.

        `weights` has every policy that is named, at least those that were not named the last time. Call `reset` after a
        change of the team that learns: simulators' agents are forgotten by it. Never blocks.
        """
        with self._lock:
            entry = self._behaviors[behavior]
            named, known = opposition.keys, entry.frozen
            for key in named - known.keys():
                if weights[key].shape != (entry.program.weights_size,):
                    expected = entry.program.weights_size
                    raise ValueError(f"policy {key} has {weights[key].size} weights, {behavior} takes {expected}")
            fresh = {key: freeze(weights[key]) for key in sorted(named - known.keys())}
            self._retire([known[key] for key in known if key not in named])
            entry.frozen = {key: fd for key, fd in (known | fresh).items() if key in named}
            entry.opposition = opposition
            for child in self._listening():
                self._tell_opposition(child, entry, fresh)

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
            entry = self._behaviors[behavior]
            message = messages.Sit(entry.lane, incarnation, sitting, team, to_plain(parameters))
            for child in self._listening():
                if incarnation in child.simulators:
                    self._tell(child, message)

    def _tell_opposition(self, child: _Child, entry: _Behavior, fresh: Mapping[int, int]) -> None:
        """Tell a collector of the opponents; `fresh` are those that it does not know."""
        assert entry.opposition is not None
        for key, fd in fresh.items():
            self._tell(child, messages.FrozenPolicy(entry.lane, key), (fd,))
        teams = [(team, list(keys)) for team, keys in entry.opposition.teams.items()]
        learning, others = entry.opposition.learning, list(entry.opposition.others)
        self._tell(child, messages.Opponents(entry.lane, learning, teams, others))

    def _retire(self, descriptors: Sequence[int]) -> None:
        """Close descriptors, once they cannot wait any more to be sent."""
        self._retired += descriptors
        if not any(child.warm is not None and child.warm.channel.pending for child in self._children):
            for fd in self._retired:
                os.close(fd)
            self._retired.clear()

    def reclaim(self, behavior: str, segments: Sequence[Segment]) -> None:
        """Free the blocks of delivered segments, after `Arena.gather`."""
        with self._lock:
            entry = self._behaviors[behavior]
            entry.ledger.reclaim(blocks_of(segments).tolist())
            for index in list(entry.starving):
                self._lend_blocks(self._children[index], entry)

    def reset(self, environment_parameters: Mapping[str, ParameterValue], parameter_set: int | None = None) -> None:
        """Make every simulator begin new episodes with these parameters; all partial segments are dropped.

        `parameter_set` is the number that these episodes carry (`EpisodesEnded.parameter_sets`), by default that of the
        ones before; simulators that come later are told these parameters, too.
        """
        number = self._settings.parameter_set if parameter_set is None else parameter_set
        self._change_parameters(messages.ResetAll(to_plain(environment_parameters), number))

    def tell_parameters(self, environment_parameters: Mapping[str, ParameterValue], parameter_set: int) -> None:
        """Tell every simulator other parameters with its next answer, and those that come later; nothing is reset."""
        self._change_parameters(messages.Parameters(to_plain(environment_parameters), parameter_set))

    def _change_parameters(self, message: messages.ResetAll | messages.Parameters) -> None:
        values = from_plain(message.environment_parameters)
        with self._lock:
            self._settings = replace(self._settings, environment_parameters=values, parameter_set=message.parameter_set)
            for child in self._listening():
                self._tell(child, message)

    def close(self, code: str, reason: str, *, rejoin: bool) -> None:
        """Send Close to every simulator, and end the processes for certain. Safe to call twice."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            for child in self._listening():
                self._tell(child, messages.CloseAll(code, reason, rejoin))
            for child in self._children:
                if child.endpoint is None:
                    self._end(child, 0.0)
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        with self._lock:
            for child in self._children:
                self._end(child, 0.0)
        if self._thread.ident is not None:
            self._wake()
            self._thread.join()
        self._release()

    def _release(self) -> None:
        for process in self._spare:
            process.close()
        for entry in self._lanes:
            entry.weights.close()
            self._retired += entry.frozen.values()
        for fd in self._retired:
            os.close(fd)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # Processes --------------------------------------------------------------------------------------------------

    def _listening(self) -> Iterable[_Child]:
        return [child for child in self._children if child.warm is not None and child.endpoint is not None]

    def _launch(self, child: _Child) -> None:
        """Start a collector's process, or adopt a warm one, and tell it its settings."""
        child.restart_at = None
        child.failure = None
        if child.warm is None:
            child.warm = self._spare.pop() if self._spare else WarmCollector.spawn()
        self._selector.register(child.warm.channel, selectors.EVENT_READ, child)
        child.heard_at = time.monotonic()
        child.parameter_set = self._settings.parameter_set
        # A collector that is started again has lost its simulators' episodes: they begin anew.
        kept = bool(self._kept) and child.generation == 0
        settings = self._settings.to_json()
        self._tell(child, messages.Settings(child.index, child.generation, child.first_number, settings, kept))
        if kept:
            self._send(child, Kind.KEPT, handover.pack(handover.merged(self._kept, child.index)))

    def _end(self, child: _Child, patience: float) -> int:
        if child.warm is None:
            return 0
        if child.warm.channel.fileno() in self._selector.get_map():
            self._selector.unregister(child.warm.channel)
        exit_code = child.warm.end(patience)
        child.warm.channel.close()
        child.warm = None
        child.endpoint = None
        return exit_code

    def _died(self, child: _Child) -> None:
        """Clean up after a collector whose channel has ended."""
        was_listening = child.endpoint is not None
        exit_code = self._end(child, 1.0)
        lost = sum(self._forget(child, entry) for entry in self._lanes)
        for simulator in child.simulators.values():
            self._report(
                SimulatorLeft(
                    simulator.incarnation,
                    simulator.number,
                    COLLECTOR_DIED,
                    f"its collector ended with exit code {exit_code}",
                    0,
                    simulator.peer,
                )
            )
        child.simulators.clear()
        if self._closing:
            return
        log.warning("collector_died", index=child.index, exit_code=exit_code, lost_steps=lost)
        if was_listening:
            self._report(CollectorDied(child.index, exit_code, lost))
        elif child.failure is None:
            child.failure = f"collector {child.index} ended with exit code {exit_code} while it started"
        now = time.monotonic()
        recent = sum(now - death < 60.0 for death in child.deaths)
        child.deaths.append(now)
        child.generation += 1
        child.restart_at = now + RESTART_DELAYS[min(recent, len(RESTART_DELAYS) - 1)]
        self._arrived.notify_all()

    def _forget(self, child: _Child, entry: _Behavior) -> int:
        entry.ledger.reclaim_from(child.index)
        entry.starving.discard(child.index)
        entry.told.pop(child.index, None)
        if child.index in entry.reading:
            entry.weights.release(entry.reading.pop(child.index))
        lost, orders = entry.sharing.remove(child.index)
        self._send_orders(entry, orders)
        return lost

    # The pool's thread ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            events = self._selector.select(self._patience())
            with self._lock:
                for key, mask in events:
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                    else:
                        self._attend(key.data, mask)
                now = time.monotonic()
                self._end_silent(now)
                for child in self._children:
                    if child.restart_at is not None and now >= child.restart_at and not self._closing:
                        self._launch(child)
                if self._closing and all(child.warm is None for child in self._children):
                    return

    def _patience(self) -> float:
        waiting = [child.restart_at - time.monotonic() for child in self._children if child.restart_at is not None]
        return max(min([*waiting, messages.ALIVE_SECONDS]), 0.0)

    def _end_silent(self, now: float) -> None:
        """Kill collectors that have frozen; their end is then noticed like any other."""
        for child in self._children:
            patience = START_SECONDS if child.endpoint is None else SILENCE_SECONDS
            if child.warm is not None and now - child.heard_at > patience:
                log.warning("collector_silent", index=child.index, seconds=patience)
                child.heard_at = now
                child.warm.process.kill()

    def _attend(self, child: _Child, mask: int) -> None:
        if child.warm is None:
            return  # ended while this event was on its way
        try:
            if mask & selectors.EVENT_WRITE:
                child.warm.channel.flush()
                if not child.warm.channel.pending:
                    self._selector.modify(child.warm.channel, selectors.EVENT_READ, child)
            if mask & selectors.EVENT_READ:
                frames = child.warm.channel.receive()
                child.heard_at = time.monotonic()
                for frame in frames:
                    self._handle(child, frame)
        except ChannelClosedError:
            self._died(child)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread is awake
            os.write(self._wake_write, b"\0")

    def _report(self, notice: Notice) -> None:
        self._notices.append(notice)
        self._arrived.notify_all()

    def _tell(self, child: _Child, message: Message, descriptors: Sequence[int] = ()) -> None:
        self._send(child, message.kind, message.pack(), descriptors)

    def _send(self, child: _Child, kind: Kind, payload: bytes, descriptors: Sequence[int] = ()) -> None:
        if child.warm is None:
            return
        channel = child.warm.channel
        try:
            channel.send(kind, payload, descriptors)
        except ChannelClosedError:
            return  # reading will find out
        if channel.pending:
            self._selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE, child)
            self._wake()

    def _handle(self, child: _Child, frame: Frame) -> None:
        match Kind(frame.kind):
            case Kind.SEGMENTS:
                number, payload = unpack_lane(frame.payload)
                self._delivered(child, self._lanes[number], unpack_segments(payload))
            case Kind.EPISODES:
                number, payload = unpack_lane(frame.payload)
                self._report(_episodes(self._lanes[number].spec.behavior, child.index, payload))
            case Kind.GHOST_STEPS:
                ghosts = messages.GhostSteps.unpack(frame.payload)
                self._report(GhostStepsPlayed(self._lanes[ghosts.lane].spec.behavior, ghosts.steps))
            case Kind.MATCHES:
                matches = messages.Matches.unpack(frame.payload)
                behavior = self._lanes[matches.lane].spec.behavior
                self._report(MatchesEnded(behavior, tuple(_match(*row) for row in matches.rows)))
            case Kind.SAT:
                sat = messages.Sat.unpack(frame.payload)
                games = tuple(EndedGame(*row) for row in sat.games)
                self._report(SittingEnded(self._lanes[sat.lane].spec.behavior, sat.incarnation, sat.sitting, games))
            case Kind.STATS:
                for number, key, kind, count, total, last, values in messages.Stats.unpack(frame.payload).rows:
                    self._report(StatsReported(key, Aggregation(kind), count, total, last, tuple(values), number))
            case Kind.WANT:
                want = messages.Want.unpack(frame.payload)
                entry = self._lanes[want.lane]
                self._send_orders(entry, entry.sharing.want(child.index, want.round))
            case Kind.RETURNED:
                back = messages.Returned.unpack(frame.payload)
                entry = self._lanes[back.lane]
                self._send_orders(entry, entry.sharing.returned(child.index, back.round, back.steps, idle=back.idle))
            case Kind.BORROWED:
                borrowed = messages.Borrowed.unpack(frame.payload)
                for number, steps in borrowed.steps:
                    self._lanes[borrowed.lane].sharing.borrowed(child.index, number, steps)
            case Kind.WEIGHTS_READ:
                self._weights_read(child, messages.WeightsRead.unpack(frame.payload))
            case Kind.WANT_BLOCKS:
                self._lend_blocks(child, self._lanes[messages.WantBlocks.unpack(frame.payload).lane])
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
                left = messages.Left.unpack(frame.payload)
                known = child.simulators.get(left.incarnation)
                if known is not None and known.peer == left.peer:
                    del child.simulators[left.incarnation]
                self._report(
                    SimulatorLeft(left.incarnation, left.number, left.code, left.reason, left.steps, left.peer)
                )
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
                self._arrived.notify_all()
            case other:
                raise ValueError(f"a collector sent a frame of kind {other.name}")

    def _listens(self, child: _Child, port: int) -> None:
        child.endpoint = Endpoint(child.index, self._settings.advertise_host, port)
        if child.parameter_set != self._settings.parameter_set:  # they changed while it started
            parameters = to_plain(self._settings.environment_parameters)
            self._tell(child, messages.Parameters(parameters, self._settings.parameter_set))
        for entry in self._lanes:
            self._introduce(child, entry)
        for refusal in self._refusals.values():
            self._tell(child, refusal)
        if child.generation:
            self._report(CollectorListening(child.endpoint))
        self._arrived.notify_all()

    def _introduce(self, child: _Child, entry: _Behavior) -> None:
        """Make a behavior known to a collector."""
        layout = entry.arena.layout
        message = messages.Admit(
            lane=entry.lane,
            spec=messages.spec_to_text(entry.spec),
            network_settings=dict(entry.program.network_settings),
            squashed=entry.program.squashed,
            pink_noise=entry.program.pink_noise,
            device=entry.program.device,
            time_horizon=entry.program.time_horizon,
            rows=layout.rows,
            blocks=layout.blocks,
            memory_size=layout.memory_size,
            weights_size=entry.weights.layout.size,
            weight_buffers=entry.weights.layout.buffers,
            low_blocks=entry.chunk // 2,
            self_play=entry.program.self_play,
            assessment=[
                {"network_settings": dict(each.network_settings), "squashed": each.squashed}
                for each in entry.program.assessment
            ],
        )
        self._tell(child, message, (entry.arena.fd, entry.weights.fd))
        if entry.program.assessment:
            for key, fd in entry.frozen.items():
                self._tell(child, messages.FrozenPolicy(entry.lane, key), (fd,))
            return
        self._lend_blocks(child, entry)
        if entry.version >= 0:
            self._offer_weights(child, entry)
        if not entry.recorded:
            self._tell(child, messages.Unrecorded(entry.lane))
        if entry.opposition is not None:
            self._tell_opposition(child, entry, entry.frozen)
        self._send_orders(entry, entry.sharing.add(child.index))

    def _lend_blocks(self, child: _Child, entry: _Behavior) -> None:
        blocks = entry.ledger.lend(child.index, entry.chunk)
        if len(blocks):
            entry.starving.discard(child.index)
            self._send(child, Kind.BLOCKS, pack_lane(entry.lane, blocks.tobytes()))
        else:
            entry.starving.add(child.index)

    def _offer_weights(self, child: _Child, entry: _Behavior) -> None:
        """Tell a collector of the newest weights, unless it is still reading others."""
        if child.index in entry.reading or entry.told.get(child.index) == entry.version:
            return
        entry.weights.hold(entry.index)
        entry.reading[child.index] = entry.index
        entry.told[child.index] = entry.version
        self._tell(child, messages.Weights(entry.lane, entry.index, entry.version))

    def _weights_read(self, child: _Child, message: messages.WeightsRead) -> None:
        entry = self._lanes[message.lane]
        entry.weights.release(entry.reading.pop(child.index))
        self._offer_weights(child, entry)

    def _send_orders(self, entry: _Behavior, orders: Sequence[Order]) -> None:
        for order in orders:
            child = self._children[order.collector]
            if isinstance(order, Grant):
                self._tell(
                    child,
                    messages.GrantSteps(entry.lane, order.round, order.steps, order.size, order.closed, entry.version),
                )
            else:
                self._tell(child, messages.RecallSteps(entry.lane, order.round))

    def _delivered(self, child: _Child, entry: _Behavior, segments: tuple[Segment, ...]) -> None:
        entry.ledger.deliver(child.index, blocks_of(segments).tolist())
        steps = 0
        for segment in segments:
            entry.sharing.delivered(child.index, segment.round, segment.length)
            steps += segment.length
        self._report(SegmentsDelivered(entry.spec.behavior, child.index, segments, steps))
        self._note_collected(entry)

    def _note_collected(self, entry: _Behavior) -> None:
        collected = entry.sharing.collected()
        if collected is not None:
            self._report(RoundCollected(entry.spec.behavior, *collected))

    def _behavior_announced(self, child: _Child, spec: BehaviorSpec) -> None:
        refusal = self._refusals.get(spec.behavior)
        if refusal is not None:
            self._tell(child, refusal)
            return
        if spec.behavior not in self._behaviors and spec.behavior not in self._announced:
            self._announced.add(spec.behavior)
            self._report(BehaviorAnnounced(spec))
        if (spec.behavior, spec.team) not in self._teams:
            self._teams.add((spec.behavior, spec.team))
            self._report(TeamAnnounced(spec.behavior, spec.team))

    def _came_back(self, child: _Child, incarnation: str) -> None:
        """Let the other collectors forget where a simulator was in a former attempt: it plays here now."""
        if incarnation in self._away:
            self._away.discard(incarnation)
            for other in self._listening():
                if other is not child:
                    self._tell(other, messages.Forget(incarnation))

    def _connected(self, child: _Child, message: messages.Connected) -> None:
        for other in self._children:
            if other is not child and message.incarnation in other.simulators:
                reason = "a newer stream of this incarnation took its place"
                self._tell(other, messages.EndSession(message.incarnation, "superseded", reason))
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


def _episodes(behavior: str, collector: int, payload: memoryview) -> EpisodesEnded:
    records = np.frombuffer(payload, EPISODE_DTYPE)
    return EpisodesEnded(
        behavior=behavior,
        returns=records["return"],
        group_returns=records["group_return"],
        lengths=records["length"].astype(np.int64),
        truncated=records["truncated"],
        outcomes=records["outcome"],
        simulators=records["simulator"].astype(np.int64),
        agents=records["agent"].astype(np.int64),
        versions=records["version"],
        parameter_sets=records["parameter_set"].astype(np.int64),
        closed=records["closed"].astype(np.int64),
        collector=collector,
    )


def _match(
    simulator: int, team: int, outcome: int, truncated: bool, settled: bool, opponents: Sequence[tuple[str, int, int]]
) -> EndedMatch:
    sides = [(behavior, other, key) for behavior, other, key in opponents]
    return EndedMatch(simulator, team, outcome, truncated, settled, sides)
