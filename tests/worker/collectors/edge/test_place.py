"""Edge collectors run on machines of strangers: what they send is checked, and damage ends at their own place."""

import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import grpc
import numpy as np
import pytest

from ludus.collector import commands, messages
from ludus.collector.arena import Arena
from ludus.collector.carriers.columns import gather
from ludus.collector.carriers.frames import FrameAssembler, pack
from ludus.collector.channel import Frame
from ludus.collector.commands import OpponentAssignment
from ludus.collector.messages import Kind, Message, pack_numbered
from ludus.collector.segments import Segments
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import Outcome
from ludus.protocol.options import REASON_METADATA, TICKET_METADATA
from ludus.protocol.tickets import TicketClaims, sign
from tests.ludus.collector.snapshots.test_sessions import resuming
from tests.ludus.collector.stack import (
    PATIENCE,
    SPEC,
    Edge,
    Learner,
    Places,
    edge_collectors,
    learner,
    player,
    reader_of,
)
from tests.ludus.collector.test_behaviors import BLUE, POLICIES, RED, Duel
from tests.ludus.collector.world import NETWORK
from tests.worker.collectors.edge.segments import NUMBER, good
from worker.collectors.edge.reader import METHOD
from worker.collectors.events import EdgeCollectorJoined, EdgeCollectorLeft, HandedOver, SegmentsDelivered
from worker.collectors.processes import NUMBERS

OWN_NUMBER = NUMBERS
"""The first number of the first place, where local collectors have the range before."""


class Stranger:
    """Speaks the protocol of edge collectors, right or wrong."""

    def __init__(self, address: str, ticket: str = "") -> None:
        self._channel = grpc.insecure_channel(address)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(METHOD)(
            iter(self._outgoing.get, None), timeout=6 * PATIENCE, metadata=((TICKET_METADATA, ticket),)
        )
        self._frames = FrameAssembler()
        self.kinds = set[int]()
        """Of the frames that it was sent."""

    def send(self, kind: int, payload: bytes, contents: Sequence[bytes] = ()) -> None:
        for part in pack(kind, payload, contents):
            self._outgoing.put(part)

    def tell(self, *told: Message) -> None:
        for message in told:
            self.send(Kind.MESSAGE, message.pack())

    def receive(self, kind: type[Message]) -> Frame:
        """Return the next frame with a message of a kind."""
        while True:
            frame = self._frames.take(next(self._call))
            self.kinds |= set() if frame is None else {frame.kind}
            if frame is not None and frame.kind == Kind.MESSAGE and isinstance(messages.read(frame), kind):
                return frame

    def refusal(self) -> str:
        """Return the name of the error that ends the stream."""
        with pytest.raises(grpc.RpcError):
            for _ in self._call:
                pass
        return str(dict(self._call.trailing_metadata())[REASON_METADATA])

    def join(self) -> int:
        """Take a place; return the first number for simulators there."""
        self.tell(messages.Introduction(messages.EDGE_VERSION, "stranger", "elsewhere"))
        settings = messages.read(self.receive(commands.Settings))
        assert isinstance(settings, commands.Settings)
        self.tell(messages.Listening(0))
        return settings.first_number

    def admitted(self) -> Arena:
        """Bring a simulator with a behavior; return an arena once the learner has granted steps."""
        self.join()
        connected = messages.SimulatorConnected("sim-1", NUMBER, 0, "here", "tests/1", (SPEC.name,))
        self.tell(connected, messages.BehaviorAnnounced(SPEC))
        message = messages.read(self.receive(commands.Admit))
        assert isinstance(message, commands.Admit)
        self.receive(commands.GrantSteps)
        return Arena(-1, replace(message.arena, blocks=100))

    def deliver(self, arena: Arena, segments: Segments, runner: int = 0) -> None:
        self.send(Kind.SEGMENTS, pack_numbered(runner, segments.records.tobytes()), gather(arena, segments))

    def close(self) -> None:
        self._outgoing.put(None)
        self._channel.close()


@pytest.fixture
def run() -> Iterator[Learner]:
    with learner(count=2, edge_places=2) as it:
        yield it


@pytest.fixture
def stranger(run: Learner) -> Iterator[Stranger]:
    (address,) = [each.address for each in run.endpoints if each.edge]
    one = Stranger(address)
    yield one
    one.close()


def test_a_ticket_opens_one_stream_of_the_collector_that_it_names_and_a_copy_of_it_none() -> None:
    key = b"k" * 32
    with learner(count=2, edge_places=2, ticket_key=key) as it:
        (endpoint,) = [each for each in it.endpoints if each.edge]

        def ticket(**changes: object) -> str:
            claims = TicketClaims("run-1", 1, "stranger", 0, time.time() + 60, endpoint.address, generation=0)
            return sign(key, replace(claims, **changes))  # type: ignore[arg-type]  # by name

        first = ticket()
        others: list[dict[str, object]] = [{"generation": 1}, {"session_id": "another"}, {"run_id": "run-2"}]
        others += [{"attempt": 0}, {"attempt": 2}]
        for shown, taken in ((first, True), (first, False), *((ticket(**each), False) for each in others)):
            stranger = Stranger(endpoint.address, shown)
            if taken:
                stranger.join()
            else:
                stranger.tell(messages.Introduction(messages.EDGE_VERSION, "stranger", "elsewhere"))
                assert stranger.refusal() in {"ticket_expired", "bad_ticket"}
            stranger.close()
        assert len(it.heard(EdgeCollectorJoined)) <= 1


def test_what_keeps_the_contract_is_delivered(run: Learner, stranger: Stranger) -> None:
    arena = stranger.admitted()
    arena.versions[:] = 1

    stranger.deliver(arena, good())

    assert run.wait_for(SegmentsDelivered).segments.steps == 3


@pytest.mark.parametrize(
    "said",
    [
        messages.SimulatorConnected("player-1", OWN_NUMBER, 0, "there", "tests/1", (SPEC.name,)),
        messages.SimulatorStarted("player-1", ("Other?team=3",), 7),
        messages.SimulatorLeft("player-1", 0, "left", "it is gone", 0, "here"),
        messages.SimulatorProblem("player-1", 0, "nonsense", "it cheats"),
    ],
    ids=["connected", "started", "left", "problem"],
)
def test_a_stranger_that_names_the_session_of_another_collectors_simulator_changes_nothing(said: Message) -> None:
    with learner(count=2, edge_places=1) as run:
        simulator = player(run.endpoints[0].address, session_id="player-1")
        simulator.play([1, 2], 3)
        stranger = Stranger(reader_of(run))
        stranger.tell(messages.Introduction(messages.EDGE_VERSION, "stranger", "elsewhere"))
        stranger.receive(commands.Settings)
        connected = messages.SimulatorConnected("sim-1", OWN_NUMBER, 0, "there", "tests/1", (SPEC.name,))

        stranger.tell(messages.Listening(0), said, connected)

        run.wait_for(messages.SimulatorConnected, lambda event: event.session_id == "sim-1")  # what came before is done
        if isinstance(said, messages.SimulatorConnected):
            told = messages.read(stranger.receive(commands.EndSession))
            assert isinstance(told, commands.EndSession)
            assert (told.session_id, told.code) == ("player-1", "session_taken")
        assert said not in run.heard(type(said))
        simulator.play([1, 2], 3)
        simulator.vanish()
        stranger.close()


def test_a_stranger_that_ends_the_session_of_another_edge_collectors_simulator_changes_nothing(
    run: Learner, stranger: Stranger
) -> None:
    stranger.admitted()
    with edge_collectors(run) as (edge,):
        run.until(lambda: len(run.heard(EdgeCollectorJoined)) == 2)
        simulator = player(edge.address, session_id="player-1")
        run.wait_for(messages.SimulatorConnected)  # its place tells so on a channel of its own
        simulator.play([1, 2], 3)

        stranger.tell(messages.SimulatorLeft("player-1", NUMBER, "left", "it is gone", 0, "there"))
        stranger.tell(messages.CollectorLags(0, 5 << 20))

        run.wait_for(messages.CollectorLags)  # what came before is done
        assert not run.heard(messages.SimulatorLeft)
        simulator.play([1, 2], 3)
        simulator.vanish()


def test_a_simulator_of_an_edge_collector_stays_there_until_it_leaves_and_moves_then(
    run: Learner, stranger: Stranger
) -> None:
    number = stranger.join()
    theirs = messages.SimulatorConnected("player-1", number, 0, "there", "tests/1", (SPEC.name,))
    with edge_collectors(run) as (edge,):
        run.wait_for(EdgeCollectorJoined, lambda event: event.host != "elsewhere")
        simulator = player(edge.address, session_id="player-1")
        simulator.play([1, 2], 3)

        stranger.tell(theirs)
        told = messages.read(stranger.receive(commands.EndSession))

        assert isinstance(told, commands.EndSession)
        assert (told.session_id, told.code) == ("player-1", "session_taken")
        simulator.play([1, 2], 3)
        assert theirs.peer not in {each.peer for each in run.heard(messages.SimulatorConnected)}

        simulator.leave()
        run.wait_for(messages.SimulatorLeft)
        stranger.tell(theirs)
        run.wait_for(messages.SimulatorConnected, lambda event: event.peer == theirs.peer)


def test_an_edge_collector_that_was_cut_off_takes_its_simulators_back_from_a_stranger(
    run: Learner, stranger: Stranger
) -> None:
    places = Places()
    places.address = reader_of(run)
    edge = Edge(places, shares_memory=False)
    try:
        run.wait_for(EdgeCollectorJoined)
        simulator = player(edge.address, session_id="player-1")
        simulator.play([1, 2], 3)
        places.address = ""
        (child,) = [place for place in run.pool.children.places if place.taken is not None]
        with run.pool.lock:
            run.pool.children.reap(child)  # its stream breaks
        assert simulator.closed().rejoin
        number = stranger.join()
        stranger.tell(messages.SimulatorConnected("player-1", number, 0, "there", "tests/1", (SPEC.name,)))
        run.wait_for(messages.SimulatorConnected, lambda event: event.peer == "there")

        places.address = reader_of(run)
        run.until(lambda: len(run.heard(EdgeCollectorJoined)) == 3)
        back = player(edge.address, session_id="player-1")

        told = messages.read(stranger.receive(commands.EndSession))
        assert isinstance(told, commands.EndSession)
        assert (told.session_id, told.code) == ("player-1", "superseded")
        back.play([1, 2], 3)
        back.leave()
    finally:
        edge.close()


def test_no_stranger_sees_or_ends_the_snapshot_of_a_simulator_that_has_not_come_back() -> None:
    places = Places()
    with learner(count=2, edge_places=2) as before:
        places.address = reader_of(before)
        edge = Edge(places, shares_memory=False)
        before.wait_for(EdgeCollectorJoined)
        simulator, _ = resuming(edge.address, "player-1")
        simulator.play([1, 2], 3)
        before.pool.hold(PATIENCE)
        simulator.step([1, 2])
        while not (message := simulator.receive()).HasField("save"):
            simulator.step([1, 2])
        saved = pb.Saved(save_id=message.save.save_id, position=b"here")
        simulator.send_bytes(pb.ConnectRequest(saved=saved).SerializeToString())
        kept = [before.wait_for(HandedOver).state]
        places.address = ""
        before.pool.close("run_moved", "another worker goes on", rejoin=True)
    try:
        with learner(count=2, edge_places=2, kept=kept) as after:
            stranger = Stranger(reader_of(after))
            number = stranger.join()
            theirs = messages.SimulatorConnected("player-1", number, 0, "there", "tests/1", (SPEC.name,))
            stranger.tell(theirs, messages.SimulatorStarted("player-1", (SPEC.name,), 2))
            after.wait_for(messages.SimulatorStarted)

            places.address = reader_of(after)
            after.wait_for(EdgeCollectorJoined, lambda event: event.host != "elsewhere")
            simulator, welcome = resuming(edge.address, "player-1")

            assert welcome.position == b"here"
            told = messages.read(stranger.receive(commands.EndSession))
            assert isinstance(told, commands.EndSession)
            assert told.code == "superseded"
            assert Kind.RESTORED not in stranger.kinds
            simulator.leave()
            stranger.close()
    finally:
        edge.close()


def test_a_number_that_is_not_of_its_place_ends_a_stranger(run: Learner, stranger: Stranger) -> None:
    number = stranger.join()

    stranger.tell(messages.SimulatorConnected("sim-1", number + NUMBERS, 0, "here", "tests/1", (SPEC.name,)))

    assert stranger.refusal() == "malformed_message"


def speed(count: int = 1) -> messages.Stats:
    return messages.Stats((messages.StatsReported("speed", messages.Aggregation.AVERAGE, count, 1.5, 1.5, ()),))


def match(*opponents: tuple[str, int, int], simulator: int = NUMBER) -> messages.MatchesEnded:
    ended = messages.EndedMatch(simulator, 0, Outcome.WIN, truncated=False, settled=True, opponents=opponents)
    return messages.MatchesEnded(SPEC.behavior, (ended,))


@pytest.mark.parametrize(
    "forged",
    [
        messages.EvaluationEnded(SPEC.behavior, "sim-1", 0, ()),
        messages.EvaluationEnded("Unknown", "sim-1", 0, ()),
        messages.StepsPlayed(SPEC.behavior, 1),
        messages.StepsPlayed("Unknown", 1),
        match(),
        speed(count=0),
        messages.SimulatorStarted("sim-1", (SPEC.name,), 1 << 40),
        messages.SimulatorLeft("sim-1", 1 << 40, "left", "it is gone", 0, "here"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_that_the_run_does_not_wait_for_ends_the_place_and_not_the_learner(
    run: Learner, stranger: Stranger, forged: Message
) -> None:
    stranger.admitted()

    stranger.tell(forged)

    assert stranger.refusal() in {"unexpected_message", "malformed_message", "bad_experience"}
    run.wait_for(EdgeCollectorLeft)
    assert forged not in run.events


@pytest.mark.parametrize(
    "forged",
    [
        match((SPEC.behavior, 1, 4)),
        match(("Unknown", 1, 3)),
        match((SPEC.behavior, 1 << 31, 3)),
        match((SPEC.behavior, 1, 3), simulator=NUMBER + 1),
    ],
    ids=["another attempt's opponent", "another behavior", "a team beyond all", "another's simulator"],
)
def test_a_match_against_a_policy_that_was_not_sent_ends_the_place(forged: messages.MatchesEnded) -> None:
    with learner(count=1, edge_places=1, assignment=OpponentAssignment(0, {1: [3]}, [3])) as run:
        stranger = Stranger(run.endpoints[0].address)
        stranger.admitted()
        honest = match((SPEC.behavior, 1, 3))
        stranger.tell(honest)
        run.wait_for(messages.MatchesEnded)

        stranger.tell(forged)

        assert stranger.refusal() in {"unexpected_message", "bad_experience"}
        run.wait_for(EdgeCollectorLeft)
        assert run.heard(messages.MatchesEnded) == [honest]
        stranger.close()


def test_matches_in_self_play_come_over_the_stream_with_their_opponents() -> None:
    assignment = OpponentAssignment(0, {1: [1]}, [0])
    with (
        learner(network=NETWORK, assignment=assignment, policies=POLICIES, size=20, edge_places=1) as run,
        edge_collectors(run) as (edge,),
    ):
        run.wait_for(EdgeCollectorJoined)
        duel = Duel(edge.address, RED, BLUE)
        for _ in range(3):
            duel.step()
        duel.step(ended=(RED, BLUE))

        (match,) = run.wait_for(messages.MatchesEnded).matches
        run.wait_for(messages.StepsPlayed)
        assert match.opponents == (("Duel", 1, 1),)
        run.pool.assign_opponents("Duel", OpponentAssignment(0, {1: [2]}, [0]), POLICIES)
        for _ in range(3):
            duel.step()
        duel.step(ended=(RED, BLUE))
        run.until(lambda: len(run.heard(messages.MatchesEnded)) == 2)
        assert not run.heard(EdgeCollectorLeft)
        duel.simulator.vanish()


def test_the_games_of_another_collectors_simulator_are_not_a_strangers_to_report() -> None:
    with learner(count=2, edge_places=1, evaluated=True) as run:
        simulator = player(run.endpoints[0].address, session_id="player-1")
        stranger = Stranger(reader_of(run))
        number = stranger.join()
        theirs = messages.SimulatorConnected("sim-1", number, 0, "there", "tests/1", (SPEC.name,))
        stranger.tell(theirs, messages.BehaviorAnnounced(SPEC))
        stranger.receive(commands.Admit)
        forged = [messages.EvaluationEnded(SPEC.behavior, each, 0, ()) for each in ("player-1", "nobody")]

        own = messages.EvaluationEnded(SPEC.behavior, "sim-1", 0, ())
        stranger.tell(*forged, own)

        assert run.wait_for(messages.EvaluationEnded) == own
        stranger.close()
        simulator.vanish()


def test_a_collector_that_lags_is_reported_once_with_its_place(run: Learner, stranger: Stranger) -> None:
    stranger.admitted()

    stranger.tell(*[messages.CollectorLags(4711, waiting << 20) for waiting in (5, 6, 7)])
    stranger.tell(speed())

    assert run.wait_for(messages.CollectorLags) == messages.CollectorLags(0, 5 << 20)
    run.wait_for(messages.StatsReported)
    assert len(run.heard(messages.CollectorLags)) == 1, "nobody fills the events of a run with it"


def times(number: int = NUMBER) -> messages.TimesMeasured:
    simulator = messages.SimulatorTimes(number, 1, 0.5, 0.1, 0.01, 0.0)
    return messages.TimesMeasured(4711, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, (simulator,))


def test_measured_times_arrive_with_their_place_and_no_more_often_than_an_honest_collector_sends_them(
    run: Learner, stranger: Stranger
) -> None:
    stranger.admitted()

    stranger.tell(*[times() for _ in range(100)])
    stranger.tell(speed())

    assert run.wait_for(messages.TimesMeasured).collector == 0
    run.wait_for(messages.StatsReported)
    assert len(run.heard(messages.TimesMeasured)) == 1


def test_times_of_a_simulator_that_is_not_its_own_end_the_place(run: Learner, stranger: Stranger) -> None:
    stranger.admitted()

    stranger.tell(times(NUMBER + 1))

    assert stranger.refusal() == "malformed_message"
    assert not run.heard(messages.TimesMeasured)


def test_what_breaks_the_contract_ends_the_place_and_is_not_delivered(run: Learner, stranger: Stranger) -> None:
    arena = stranger.admitted()
    arena.versions[:] = 1
    arena.rewards[:] = np.nan

    stranger.deliver(arena, good())

    assert stranger.refusal() == "bad_experience"
    left = run.wait_for(EdgeCollectorLeft)
    assert (left.index, left.reason) == (0, "bad_experience: rewards has a value that is no finite number")
    assert not run.heard(SegmentsDelivered)


def test_steps_that_nobody_granted_end_the_place() -> None:
    with learner(count=1, edge_places=1, lockstep=False) as run:  # nobody grants a second round
        stranger = Stranger(run.endpoints[0].address)
        arena = stranger.admitted()
        arena.versions[:] = 1

        for _ in range(1_000):
            stranger.deliver(arena, good(length=16))

        assert stranger.refusal() == "too_many_steps"
        stranger.close()


def test_another_version_of_the_protocol_is_refused_with_the_remedy(run: Learner, stranger: Stranger) -> None:
    stranger.tell(messages.Introduction(messages.EDGE_VERSION + 1, "stranger", "elsewhere"))

    assert stranger.refusal() == "protocol_version"
    assert not run.heard(EdgeCollectorJoined)


def test_the_damage_of_a_stranger_ends_at_its_own_place(run: Learner, stranger: Stranger) -> None:
    stranger.admitted()
    with edge_collectors(run) as (edge,):
        run.until(lambda: len(run.heard(EdgeCollectorJoined)) == 2)
        simulator = player(edge.address)
        simulator.play([1, 2], 3)

        stranger.send(Kind.MESSAGE, b"no message")

        assert stranger.refusal() == "malformed_message"
        simulator.play([1, 2], 3)
        run.until(lambda: [each.index for each in run.heard(EdgeCollectorLeft)] == [0])
        simulator.vanish()
