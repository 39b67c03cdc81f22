"""The native protocol, `ludus.v1`: the state machine of one simulator's stream, without the transport.

`receive` takes a message's bytes and raises `ProtocolError` when the simulator breaks the contract; the owner of the
stream then calls `end`.
"""

from collections.abc import Callable

from ludus.collector.agent_snapshots import keep
from ludus.collector.agents import AgentIndex
from ludus.collector.answers import encode_answer
from ludus.collector.session import Session, SessionHost
from ludus.collector.session_snapshots import SessionSnapshot
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import BehaviorBatch, Floats, Ints
from ludus.protocol.codec import BehaviorLayout, CloseCode, ProtocolError, decode_stats, decode_step, spec_from_message
from ludus.protocol.contract import (
    HELLO_SECONDS,
    check_first,
    check_hello,
    check_saved,
    check_step_order,
    hello_timeout,
    parse_request,
    step_timeout,
)
from ludus.protocol.parameters import samplers_to_messages
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.environment_parameters import ParameterDraws

BEFORE_RESET = -1
"""Stands for the environment parameters of episodes that a reset has ended."""


class NativeSession(Session):
    """One simulator on a stream of its own."""

    def __init__(self, collector: SessionHost, peer: str, send: Callable[[bytes], None]) -> None:
        super().__init__(collector, peer)
        self._send = send
        self._layouts: dict[str, BehaviorLayout] = {}
        self._step_id = 0
        self._reset_id = 0
        self._draws = ParameterDraws({}, 0)
        self._told: dict[str, float] = {}
        """The values of environment parameters that the simulator was last told."""
        self._asked = 0
        """The newest number of Save; counts up from 1."""
        self._position: bytes | None = None
        """The answer to it, as long as the simulator stays there."""
        self._hold = 0
        """The newest checkpoint for which it was asked."""

    def receive(self, data: bytes) -> None:
        """Handle one message. Raises ProtocolError."""
        self.last_activity = self._collector.now()
        request = parse_request(data, self._collector.settings.max_message_bytes)
        kind = request.WhichOneof("message")
        if kind == "step":
            self._step(request.step)
        elif kind == "hello":
            self._hello(request.hello)
        elif kind == "announce":
            self._announce(request.announce)
        else:
            self._saved(request.saved)

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        """Send actions (called by the batcher)."""
        self.last_activity = self._collector.now()
        ids = b"" if agents is None else agents.tobytes()
        news = self._news() if self._has_news else b""
        self._send(encode_answer(step_id, agent_index.name, ids, continuous.tobytes(), discrete.tobytes(), news))

    def reset(self) -> None:
        """Make the simulator begin new episodes, with the newest parameters; everything pending is void."""
        self._reset_id += 1
        self._forget_agents()
        values, samplers = self._parameters()
        message = pb.Reset(reset_id=self._reset_id, environment_parameters=values, samplers=samplers)
        self._send(pb.ConnectResponse(reset=message).SerializeToString())

    def overdue(self, now: float) -> ProtocolError | None:
        """Return why the session has to end if it has been silent for too long."""
        settings, silence = self._collector.settings, now - self.last_activity
        if self.number < 0:
            if silence > HELLO_SECONDS:
                return hello_timeout()
        elif not self.started:
            if settings.startup_timeout is not None and silence > settings.startup_timeout:
                return ProtocolError(
                    CloseCode.STEP_TIMEOUT, f"no step within {settings.startup_timeout:.0f} s after Welcome"
                )
        elif silence > settings.step_timeout and self._is_owed_a_step:
            return step_timeout(settings.step_timeout)
        return None

    def _say_wait(self, reason: str) -> None:
        self._send(pb.ConnectResponse(wait=pb.Wait(reason=reason)).SerializeToString())

    def _say_close(self, code: str, reason: str, *, rejoin: bool) -> None:
        message = pb.Close(code=code, reason=reason, rejoin=rejoin)
        self._send(pb.ConnectResponse(close=message).SerializeToString())

    def _parameters(self) -> tuple[dict[str, float], dict[str, pb.Sampler]]:
        """Return the newest environment parameters, to be sent now: drawn values, and samplers."""
        newest = self._environment_parameters
        self._draws.change(newest)
        self._note_told()
        self._told = self._draws.next()
        return self._told, samplers_to_messages(newest)

    def _former_parameters(self, kept: SessionSnapshot) -> tuple[dict[str, float], dict[str, pb.Sampler]]:
        """Return the environment parameters as the simulator had been told them where it was."""
        newest = self._collector.settings.environment_parameters
        self._draws.change(newest)
        self._draws.restore(kept.draws)
        self._told = dict(kept.parameters)
        self._parameter_set, self._has_heard = kept.parameter_set, kept.has_heard
        return self._told, samplers_to_messages(newest)

    def _news(self) -> bytes:
        """Return the fields of `Actions` that tell the newest parameters."""
        values, samplers = self._parameters()
        return pb.Actions(environment_parameters=values, samplers=samplers).SerializeToString()

    # Messages ---------------------------------------------------------------------------------------------------

    def _hello(self, hello: pb.Hello) -> None:
        check_hello(hello, greeted=self.number >= 0)
        self.session_id, self.resumes = hello.session_id, hello.resumes
        kept = self._collector.kept(hello.session_id) if hello.resumes else None
        number = self._take_number(hello.ticket, hello.session_id, None if kept is None else kept.number)
        self.kept = kept if kept is not None and kept.number == number else None
        specs = [spec_from_message(message) for message in hello.behaviors]
        self.number = number
        self._draws = ParameterDraws({}, number)
        self._collector.welcomed(self, [spec.name for spec in specs], hello.client)
        self._welcome()
        for spec in specs:
            self._learn_of(spec)

    def _welcome(self) -> None:
        settings = self._collector.settings
        values, samplers = self._parameters() if self.kept is None else self._former_parameters(self.kept)
        welcome = pb.Welcome(
            run_id=settings.run_id,
            simulator_number=self.number,
            seed=self._seed,
            environment_parameters=values,
            samplers=samplers,
            max_message_bytes=settings.max_message_bytes,
            step_timeout_seconds=settings.step_timeout,
            position=None if self.kept is None else self.kept.position,
        )
        self._send(pb.ConnectResponse(welcome=welcome).SerializeToString())

    def _announce(self, announce: pb.Announce) -> None:
        self._expect_hello()
        for message in announce.behaviors:
            self._learn_of(spec_from_message(message))

    def _learn_of(self, spec: BehaviorSpec) -> None:
        self._introduce(spec)
        self._layouts.setdefault(spec.name, BehaviorLayout(spec))

    def _step(self, step: pb.Step) -> None:
        self._expect_hello()
        step_id = step.step_id
        check_step_order(step, last_step=self._step_id, last_reset=self._reset_id)
        self._step_id = step_id
        self._position = None
        kept, self.kept = self.kept, self.kept if step.resumed else None
        if kept is not None:
            self._collector.forget(self.session_id)
        stats = decode_stats(step) if step.stats else []
        batches = decode_step(step, self._layouts)
        self._note_start(batches)
        if step.resumed and self._resume(step_id, batches):
            return
        is_current = step.reset_id == self._reset_id  # else it was sent before the reset arrived there
        if stats and is_current:
            self._report(stats, batches)
        elif stats:
            self._collector.reported(stats, BEFORE_RESET)
        if is_current:
            self._stage(step_id, batches)

    def _resume(self, step_id: int, batches: list[BehaviorBatch]) -> bool:
        """Restore the agents from the snapshot; False if they can't, and begin new episodes."""
        if self.kept is not None and self._goes_on(batches):
            self._go_on_where_it_was(step_id, batches)
            return True
        self.kept = None
        self._collector.troubled(
            self,
            "not_resumed",
            "it went back to where it was in the checkpoint, but asks for other agents than those that waited there; "
            "their episodes begin again. Let `resume` ask again for exactly the agents of then, and end none",
        )
        return False

    def _saved(self, saved: pb.Saved) -> None:
        self._expect_hello()
        check_saved(saved, asked=self._asked)
        if saved.save_id == self._asked and self.is_at_rest:
            self._position = saved.position
            self._collector.came_to_rest()

    def told_position(self, save_id: int) -> bool:
        """Whether the simulator has come to rest and told where it is; it is asked once it has."""
        if not self.is_at_rest:
            self._hold = 0  # what it may have told does not hold any more
            return False
        if self._hold != save_id:
            self._hold, self._position = save_id, None
            self._asked += 1
            self._send(pb.ConnectResponse(save=pb.Save(save_id=self._asked)).SerializeToString())
        return self._position is not None

    def keep(self) -> SessionSnapshot | None:
        """Return the session for a checkpoint; None where it has not told where it is."""
        if self._position is None or not self.is_at_rest:
            return None
        return SessionSnapshot(
            session_id=self.session_id,
            number=self.number,
            position=self._position,
            parameter_set=self._parameter_set,
            has_heard=self._has_heard,
            parameters=self._told,
            draws=self._draws.state,
            agents={
                name: keep(runner.recorder, agent_index) for name, (runner, agent_index) in self.agent_indexes.items()
            },
        )

    def _expect_hello(self) -> None:
        check_first(greeted=self.number >= 0)
