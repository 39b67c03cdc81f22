"""Plays a recording against a collector without a learner, and compares what it answers with what was answered then.

The collector is the real one, with its sessions, its checks and its recorder of experience; only the learner and the
network are missing. Every behavior is admitted at once, and a player answers for it (`ludus.play.players`).

What the server did by itself then (a reset with another lesson, the end of the run, a time-out) is no difference: a
reset is repeated where it was, the rest is told. What a recording lacks (`Direction.BEFORE`) the game had sent all the
same: resets between are made up for.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from ludus.collector import commands, messages
from ludus.collector.acted import Acted
from ludus.collector.activations import FloatArray
from ludus.collector.arena import Arena, ArenaLayout, default_rows
from ludus.collector.carriers.connection import AdmittedMemory, LearnerConnection
from ludus.collector.channel import Frame as LearnerFrame
from ludus.collector.messages import Kind
from ludus.collector.policy import Masks, Observations, PolicyFactory
from ludus.collector.segments import Segments
from ludus.collector.server import CollectorServer
from ludus.collector.service import METHOD, SimulationHandler
from ludus.collector.session import DISCONNECTED, LEFT
from ludus.collector.settings import CollectorSettings
from ludus.collector.unity.service import LocalCall, UnityHandler
from ludus.config.network import NetworkSettings
from ludus.http2.calls import EOF
from ludus.http2.frames import Metadata
from ludus.play.players import Player, RandomPlayer
from ludus.play.recordings.file import Direction, Frame, Recording
from ludus.play.recordings.reading import Interpreter, Message
from ludus.play.recordings.result import Finding, Replayed
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, DecisionBatch
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import SESSION_ID_METADATA
from ludus.protocol.spec import BehaviorSpec

MakePlayer = Callable[[BehaviorSpec], Player]
Take = Callable[[Arena, Segments], None]
"""Takes closed segments of experience."""
HORIZON: Final = 64
BLOCKS: Final = 20_000
PREAMBLE: Final = 2
"""Calls of a Unity player before its agents."""
TURNS: Final = 20
"""Turns of the event loop without news, after which a collector has said all that it has to say."""
OF_THE_SERVER: Final = frozenset(
    {
        LEFT,
        DISCONNECTED,
        CloseCode.SUPERSEDED,
        CloseCode.SESSION_TAKEN,
        CloseCode.STEP_TIMEOUT,
        CloseCode.SECOND_CALL_MISSING,
        CloseCode.NO_AGENTS,
        CloseCode.HELLO_TIMEOUT,
        CloseCode.BEHAVIOR_NOT_CONFIGURED,
        CloseCode.RUN_FINISHED,
        CloseCode.RUN_CANCELLED,
        CloseCode.RUN_FAILED,
        CloseCode.RUN_PAUSED,
        CloseCode.RUN_MOVED,
        CloseCode.COLLECTOR_CLOSING,
    }
)
"""Ends of sessions that no message of the game has caused."""


class _PlayerPolicy:
    """A player in place of a network."""

    memory_size = 1
    """The number by which the player remembers an agent's episode; 0 where one begins."""

    def __init__(self, spec: BehaviorSpec, player: Player) -> None:
        self._spec = spec
        self._player = player
        self._episodes = 0

    def load(self, flat: FloatArray) -> None:
        """Have no weights."""

    def act(
        self,
        observations: Observations,
        masks: Masks,
        memory: FloatArray | None,
        rng: np.random.Generator,
        noise: FloatArray | None = None,
    ) -> Acted:
        """Let the player act. The memory of an agent is the number by which the player knows it."""
        del rng, noise
        rows = len(observations[0]) if observations else 0
        episodes = np.zeros((rows, 1), np.float32) if memory is None else memory.copy()
        (begins,) = np.nonzero(episodes[:, 0] == 0)
        episodes[begins, 0] = np.arange(len(begins)) + self._episodes + 1
        self._episodes += len(begins)
        allowed = None if masks is None else np.asarray(masks, np.uint8)
        batch = DecisionBatch(
            episodes[:, 0].astype(np.int32),
            np.zeros(rows, np.float32),
            tuple(np.asarray(column) for column in observations),
            allowed,
        )
        continuous, discrete = self._player.act(batch)
        log_probs = np.zeros((rows, continuous.shape[1] + discrete.shape[1]), np.float32)
        return Acted(continuous, np.clip(continuous, -1, 1), discrete, log_probs, episodes)


class _Players(PolicyFactory):
    """Makes players in place of networks."""

    def __init__(self, make: MakePlayer) -> None:
        self.error: ValueError | None = None
        """Why a player cannot be made: no fault of the collector, which asks for it."""
        self._make = make

    def policy(self, spec: BehaviorSpec, *_: Any, **__: Any) -> Any:
        """Make the player of a behavior."""
        try:
            player = self._make(spec)
        except ValueError as error:
            self.error, player = error, RandomPlayer(spec.actions)
        return _PlayerPolicy(spec, player)


class _NoLearner(LearnerConnection):
    """Admits every behavior, grants all steps, and keeps nothing."""

    def __init__(self, taken: Take, horizon: int) -> None:
        self.problems: list[messages.SimulatorProblem] = []
        self.left = ""
        """Code of the session's end, once it has ended."""
        self.steps = 0
        self._taken = taken
        self._horizon = horizon
        self._take: Callable[[Sequence[LearnerFrame]], None] = lambda _: None
        self._runners = 0

    def begin(self, take: Callable[[Sequence[LearnerFrame]], None], lost: Callable[[], None]) -> None:
        """Remember who takes messages."""
        del lost
        self._take = take

    def send(self, kind: Kind, payload: bytes, *, later: bool = False) -> None:
        """Answer what a learner would answer."""
        del later
        if kind != Kind.MESSAGE:
            return
        match message := messages.read(LearnerFrame(kind, payload)):
            case messages.BehaviorAnnounced():
                asyncio.get_running_loop().call_soon(self._admit, message.spec)
            case messages.SimulatorProblem():
                self.problems.append(message)
            case messages.SimulatorLeft():
                self.left = message.code
            case _:
                pass

    def _admit(self, spec: BehaviorSpec) -> None:
        number, self._runners = self._runners, self._runners + 1
        layout = ArenaLayout(spec, default_rows(spec), BLOCKS, _PlayerPolicy.memory_size)
        policy = commands.PolicySpec(NetworkSettings(), 0, self._horizon)
        for message in (
            commands.Admit(number, layout, policy, weight_buffers=0, low_blocks=0),
            commands.Weights(number, 0, 0),
            commands.GrantSteps(number, 1, 2**30, size=2**30, report_every=2**30, version=0),
        ):
            self._take([LearnerFrame(Kind.MESSAGE, message.pack())])

    def admitted(self, message: commands.Admit, frame: LearnerFrame) -> AdmittedMemory:
        """Return memory of this process."""
        del frame
        arena = Arena(-1, message.arena)
        return AdmittedMemory(arena, range(arena.layout.blocks), ())

    def weights(self, message: commands.Weights, frame: LearnerFrame) -> FloatArray:
        """Return none."""
        del message, frame
        return np.zeros(0, np.float32)

    def frozen_policy(self, frame: LearnerFrame) -> FloatArray:
        """Refuse: there is no self-play."""
        del frame
        raise AssertionError("no policy is named")

    def deliver(self, runner: int, arena: Arena, segments: Segments) -> Sequence[int]:
        """Hand the segments on; their blocks are free."""
        del runner
        self.steps += segments.steps
        self._taken(arena, segments)
        blocks: list[int] = segments.blocks.tolist()
        return blocks

    async def finish(self, seconds: float) -> None:
        """Do nothing."""


class _Connect(grpc.HandlerCallDetails):
    """The call that opens a stream."""

    method = METHOD
    invocation_metadata = ()


class _NativeGame:
    """The game's end of a stream, and its session."""

    def __init__(self, collector: CollectorServer, session_id: str) -> None:
        del session_id  # Hello says it
        self._collector = collector
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._sent: list[bytes] = []
        self._resets = 0
        self.lacks_resets = False
        """Whether resets went out that the recording lacks, until the first step says how many."""
        handler: Any = SimulationHandler(collector.host).service(_Connect())
        self._serving = asyncio.ensure_future(handler.stream_stream(None, self))

    # The call, as the collector sees it

    def peer(self) -> str:
        """Return a name for the log."""
        return "a recording"

    def invocation_metadata(self) -> Metadata:
        """Return none."""
        return ()

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Ignore it."""

    async def abort(self, code: Any, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """Never called."""
        del code, details, trailing_metadata
        raise AssertionError("a stream with a session is not aborted")

    async def read(self) -> bytes:
        """Return the next message of the game."""
        return await self._inbox.get()

    async def write(self, message: bytes) -> None:
        """Take a message of the server."""
        self._sent.append(message)

    # The game

    async def play(self, data: bytes) -> list[bytes]:
        """Send a message; return the answers."""
        request = _request(data)
        kind = None if request is None else request.WhichOneof("message")
        if request is not None and kind == "saved":
            return []  # to a Save that no learner asks for now
        if request is not None and kind == "hello":
            request.hello.resumes = False
            data = request.SerializeToString()
        if request is not None and kind == "step":
            while self.lacks_resets and request.step.reset_id > self._resets and self.reset():
                pass
            self.lacks_resets = False
        await settled(self._sent)
        self._sent.clear()
        self._inbox.put_nowait(data)
        await settled(self._sent)
        answers, self._sent = self._sent, []
        return answers

    def reset(self) -> bool:
        """Reset the session, as the learner would; return False if there is none."""
        session = next(iter(self._collector.sessions), None)
        if session is None or session.closed is not None:
            return False
        self._resets += 1
        session.reset()
        return True

    async def close(self) -> None:
        """End the stream."""
        self._inbox.put_nowait(EOF)
        await self._serving


class _UnityGame:
    """A Unity player, and its session."""

    def __init__(self, collector: CollectorServer, session_id: str) -> None:
        self._collector = collector
        self._handler = UnityHandler(collector.host, tickets=False)
        self._metadata = ((SESSION_ID_METADATA, session_id or "replay"),)
        self._calls: list[asyncio.Task[bytes]] = []
        self.lacks_resets = False
        """Without effect: players do not count resets."""

    async def play(self, data: bytes) -> list[bytes]:
        """Make a call; return its reply, or nothing where none comes."""
        self._calls.append(asyncio.ensure_future(self._handler.exchange(data, LocalCall(self._metadata))))
        await settled([], self._calls[-1])
        return [self._calls[-1].result()] if self._calls[-1].done() else []

    def reset(self) -> bool:
        """Reset the session: it goes out with the next reply."""
        for session in self._collector.sessions:
            session.reset()
        return bool(self._collector.sessions)

    async def close(self) -> None:
        """Break off what waits."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


async def settled(news: Sequence[object], call: "asyncio.Task[bytes] | None" = None) -> None:
    """Wait until a collector has said all that it has to say: nothing in it waits for time."""
    calm, known = 0, len(news)
    while calm < TURNS and not (call is not None and call.done()):
        await asyncio.sleep(0)
        calm, known = (calm + 1, known) if len(news) == known else (0, len(news))


def _request(data: bytes) -> pb.ConnectRequest | None:
    with suppress(DecodeError):
        return pb.ConnectRequest.FromString(data)
    return None


Numbered = tuple[int, Frame, Message]
"""A frame with its number, and what it says."""


class Replay:
    """Plays one recording. `run` it once."""

    def __init__(
        self,
        file: BinaryIO,
        make_player: MakePlayer | None = None,
        *,
        taken: Take = lambda *_: None,
        answered: Callable[[Message, Sequence[ActionBatch]], None] = lambda *_: None,
        horizon: int = HORIZON,
    ) -> None:
        """`taken` gets closed segments. `answered` is called with a message of the game and the actions that it was
        answered with then, before it is played. Raises BadRecording.
        """
        self._recording = Recording(file)
        self._make = make_player or (lambda spec: RandomPlayer(spec.actions))
        self._link = _NoLearner(taken, horizon)
        self._answered = answered
        carrier = self._recording.header.carrier
        self._then, self._now = Interpreter(carrier), Interpreter(carrier)
        self._answers: dict[int, list[ActionBatch]] = {}
        """What was answered then to each step of a native session, which may have several under way."""
        self.result = Replayed()

    async def run(self, report: Callable[[Finding], None] = lambda _: None, *, everything: bool = False) -> Replayed:
        """Play the recording, and report what happens, as it happens. `everything`: every message, too.

        Raises BadRecording, and ValueError of `make_player`.
        """
        header, result = self._recording.header, self.result
        settings = CollectorSettings(header.run_id or "replay", max(header.attempt, 1), header.seed)
        start = commands.Settings(0, 0, max(header.number, 0), 1, settings.to_json())
        players = _Players(self._make)
        collector = CollectorServer(self._link, players, start)
        collector.listen()
        make = _UnityGame if header.carrier == "unity" else _NativeGame
        game = make(collector, header.session_id)
        try:
            self._answers = dict(self._read_answers())
            for heard, said in self._exchanges():
                for finding in await self._play(game, heard, said):
                    result.findings += [finding] if finding.matters else []
                    if finding.matters or everything:
                        report(finding)
                if players.error is not None:
                    raise players.error
                if collector.done.done():
                    failed = f"the collector fails: {collector.done.exception()!r}"
                    finding = Finding(heard[0], heard[1].seconds, heard[2].sentence, "", failed, differs=True)
                    result.findings.append(finding)
                    report(finding)
                    return result
                collector.tick()  # which delivers closed segments
                if result.ended:
                    break
            result.steps = self._link.steps
        finally:
            await game.close()
        return result

    def _read_answers(self) -> Iterator[tuple[int, list[ActionBatch]]]:
        interpreter = Interpreter(self._recording.header.carrier)
        answers: dict[int, list[ActionBatch]] = {}
        for frame in self._recording.frames():
            message = interpreter.read(frame)
            if message.actions and message.step is not None:
                answers.setdefault(message.step, []).extend(message.actions)
        yield from answers.items()

    def _exchanges(self) -> Iterator[tuple[Numbered, list[Numbered]]]:
        """Yield each message of the game, and what the server said until the next one."""
        heard: Numbered | None = None
        said: list[Numbered] = []
        for number, frame in enumerate(self._recording.frames(), 1):
            self.result.frames = number
            numbered = number, frame, self._then.read(frame)
            if not frame.direction & Direction.RECEIVED:
                said.append(numbered)
                continue
            if heard is not None:
                yield heard, said
            heard, said = numbered, []
        if heard is not None:
            yield heard, said

    async def _play(
        self, game: _NativeGame | _UnityGame, heard: Numbered, said: Sequence[Numbered]
    ) -> Iterator[Finding]:
        """Play a message of the game; return what is to be said about it."""
        number, frame, message = heard
        game.lacks_resets |= bool(frame.direction & Direction.BEFORE)
        then_answers = [answer for _, _, answer in said]
        was_reset = any(answer.kind == "reset" for answer in then_answers)
        if isinstance(game, _UnityGame) and was_reset and self.result.received >= PREAMBLE:
            game.reset()  # it goes out with the reply
        actions = [batch for answer in then_answers for batch in answer.actions]
        if isinstance(game, _NativeGame):
            actions = self._answers.get(message.step or 0, [])
        self._answered(message, actions)
        self._now.read(frame)  # the behaviors that it announces
        known = len(self._link.problems)
        answers = [self._now.read(Frame(frame.seconds, Direction.SENT, data)) for data in await game.play(frame.data)]
        if isinstance(game, _NativeGame) and was_reset:
            game.reset()
        self.result.received += 1
        self.result.answers += len(answers)
        # Unity players do not get the code of a session's end: it is the recording's, and that of the collector of now.
        for server_answers, end_code in ((then_answers, self._recording.summary.end.code), (answers, self._link.left)):
            for answer in server_answers:
                answer.code = end_code if answer.kind == "closing" else answer.code
        self.result.ended = _end(answers) is not None
        problems = [f"{problem.code}: {problem.sentence}" for problem in self._link.problems[known:]]
        findings = [
            Finding(number, frame.seconds, message.sentence, "", f"a problem was reported, {problem}", differs=False)
            for problem in problems
        ]
        differs, then, now = compared(then_answers, actions, answers)
        if isinstance(game, _UnityGame) and was_reset and self.result.received <= PREAMBLE and not differs:
            then = ""  # every player's second call is answered so
        return iter([*findings, Finding(number, frame.seconds, message.sentence, then, now, differs)])


def compared(then: Sequence[Message], actions: Sequence[ActionBatch], now: Sequence[Message]) -> tuple[bool, str, str]:
    """Return whether answers differ in kind, and both in words; no words of then where there is nothing to tell.

    `actions` are those of then. Their values do not count, and neither does what a server says by itself: Wait, Save
    and Reset. Nothing then and an answer now is no difference: the recording may have ended before the answer.
    """
    end_then, end_now = _end(then), _end(now)
    shapes_then, shapes_now = _shapes(actions), _shapes([batch for answer in now for batch in answer.actions])
    words_then, words_now = (
        "; ".join(answer.sentence for answer in answers if answer.kind not in {"wait", "save"}) or "nothing"
        for answers in (then, now)
    )
    if end_then in OF_THE_SERVER:
        return False, f"{words_then} (no message of the game has caused it)", words_now
    if end_then != end_now:
        return True, words_then, words_now
    if end_then is not None:
        return False, words_then, words_now
    resets = any(answer.kind == "reset" for answer in then)
    differs = bool(shapes_then) and not resets and shapes_then != shapes_now
    return differs, words_then if differs or resets else "", words_now


def _end(answers: Sequence[Message]) -> str | None:
    """Return the code of the session's end among the answers; None where it goes on."""
    return next((answer.code or answer.kind for answer in answers if answer.kind in {"close", "closing"}), None)


def _shapes(actions: Sequence[ActionBatch]) -> dict[str, tuple[int, int, int]]:
    """Return numbers of agents, of continuous actions and of branches that were answered for each behavior."""
    shapes: dict[str, tuple[int, int, int]] = {}
    for batch in actions:
        rows = max(len(batch.continuous), len(batch.discrete)) + shapes.get(batch.behavior, (0, 0, 0))[0]
        shapes[batch.behavior] = rows, batch.continuous.shape[1], batch.discrete.shape[1]
    return shapes
