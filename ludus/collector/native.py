"""The native protocol, `ludus.v1`: the state machine of one simulator's stream, without the transport.

`receive` takes a message's bytes and raises `ProtocolError` when the simulator breaks the contract; the owner of the
stream then calls `end`.
"""

from collections.abc import Callable

from ludus.collector.agents import AgentIndex
from ludus.collector.session import Host, Session
from ludus.collector.snapshots.sessions import SessionCheckpoints
from ludus.play.recordings.file import Direction
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import Floats, Ints
from ludus.protocol.codec import decode_stats, decode_step, encode_answer, samplers_to_messages
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import (
    HELLO_SECONDS,
    check_hello,
    check_saved,
    check_step_order,
    hello_timeout,
    parse_request,
    step_timeout,
)
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import BehaviorLayout, spec_from_message
from ludus.sdk.environment_parameters import ParameterDraws

NOT_RESUMED = (
    "it went back to where it was in the checkpoint, but asks for other agents than those that waited there; their "
    "episodes begin again. `resume` must ask again for exactly these agents, and end none"
)
BEFORE_RESET = -1
"""Stands for the environment parameters of episodes that a reset has ended."""


class NativeSession(Session):
    """One simulator on a stream of its own."""

    carrier = "native"

    def __init__(self, host: Host, peer: str, send: Callable[[bytes], None]) -> None:
        super().__init__(host, peer)
        self._put = send
        self._layouts: dict[str, BehaviorLayout] = {}
        self._step_id = 0
        self._reset_id = 0
        self.draws = ParameterDraws({}, 0)
        """The environment parameters that the simulator has received."""
        self.checkpoints: SessionCheckpoints | None = None
        """Of a simulator that can go back to where it was."""

    def receive(self, data: bytes) -> None:
        """Handle one message. Raises ProtocolError."""
        self.last_activity = self._host.now()
        self.tape.take(Direction.RECEIVED, data)
        request = parse_request(data, self._host.settings.max_message_bytes, greeted=self.number >= 0)
        kind = request.WhichOneof("message")
        if kind == "step":
            self._step(request.step)
        elif kind == "hello":
            self._hello(request.hello)
        elif kind == "announce":
            self.tape.pin()
            for message in request.announce.behaviors:
                self._learn_of(spec_from_message(message))
        elif self.checkpoints is None:
            check_saved(request.saved, asked=0)
        elif self.checkpoints.saved(request.saved):
            self._host.listener.position_came()

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        """Send actions (called by the runner)."""
        self._note_answer()
        ids = b"" if agents is None else agents.tobytes()
        news = b"" if self.parameter_set == self._host.settings.parameter_set else self._news()
        self._send(encode_answer(step_id, agent_index.behavior, ids, continuous.tobytes(), discrete.tobytes(), news))

    def reset(self) -> None:
        """Make the simulator begin new episodes, with the newest parameters; everything pending is void."""
        self._reset_id += 1
        self._forget_agents()
        values, samplers = self._parameters()
        message = pb.Reset(reset_id=self._reset_id, environment_parameters=values, samplers=samplers)
        self.send(pb.ConnectResponse(reset=message))

    def overdue(self, now: float) -> ProtocolError | None:
        """Return why the session has to end if it has been silent for too long."""
        settings, silence = self._host.settings, now - self.last_activity
        if self.number < 0:
            if silence > HELLO_SECONDS:
                return hello_timeout()
        elif not self.started:
            if settings.startup_timeout is not None and silence > settings.startup_timeout:
                return ProtocolError(
                    CloseCode.STEP_TIMEOUT, f"no step within {settings.startup_timeout:.0f} s after Welcome"
                )
        elif silence > settings.step_timeout:
            pairs = self.agent_indexes.values()
            if any(len(runner.recorder.agents.acting([agent_index])) for runner, agent_index in pairs):
                return step_timeout(settings.step_timeout)
        return None

    def say_wait(self, reason: str) -> None:
        """Send the simulator the reason why no answer comes yet."""
        self.send(pb.ConnectResponse(wait=pb.Wait(reason=reason)))

    def _say_close(self, code: str, reason: str, *, rejoin: bool) -> None:
        self.send(pb.ConnectResponse(close=pb.Close(code=code, reason=reason, rejoin=rejoin)))

    def _admitted(self, name: str) -> None:
        if self.checkpoints is not None:
            self.checkpoints.admitted(name)

    def _forget_agents(self) -> None:
        super()._forget_agents()
        if self.checkpoints is not None:
            self.checkpoints.forget()

    def send(self, response: pb.ConnectResponse) -> None:
        """Send a message."""
        self._send(response.SerializeToString())

    def _send(self, data: bytes) -> None:
        self.tape.take(Direction.SENT, data)
        self._put(data)

    def _parameters(self) -> tuple[dict[str, float], dict[str, pb.Sampler]]:
        """Return the newest environment parameters, to be sent now: drawn values, and samplers."""
        newest = self._environment_parameters
        self.draws.change(newest)
        self.parameter_set = self._host.settings.parameter_set
        return self.draws.next(), samplers_to_messages(newest)

    def _news(self) -> bytes:
        """Return the fields of `Actions` with the newest parameters."""
        values, samplers = self._parameters()
        return pb.Actions(environment_parameters=values, samplers=samplers).SerializeToString()

    # Messages ---------------------------------------------------------------------------------------------------

    def _hello(self, hello: pb.Hello) -> None:
        check_hello(hello, greeted=self.number >= 0)
        self.session_id = hello.session_id
        former = self._host.snapshots.get(hello.session_id) if hello.resumes else None
        number = self._take_number(hello.ticket, hello.session_id, None if former is None else former.number)
        if former is not None and former.number != number:
            former = None  # its ticket names another simulator
        specs = [spec_from_message(message) for message in hello.behaviors]
        self.number = number
        self.draws = ParameterDraws({}, number)
        hello.ClearField("ticket")  # a secret, which recordings do without
        self.tape.pin(pb.ConnectRequest(hello=hello).SerializeToString())
        if hello.resumes:
            self.checkpoints = SessionCheckpoints(self, self._host, former, self.draws, self.send)
        self._host.listener.welcomed(self, [spec.name for spec in specs], hello.client)
        settings = self._host.settings
        if former is None:
            values, samplers = self._parameters()
        else:  # the environment parameters that the simulator had when the snapshot was taken
            self.draws.change(settings.environment_parameters)
            self.draws.restore(former.draws, former.parameters)
            values, samplers = self.draws.newest, samplers_to_messages(settings.environment_parameters)
            self.parameter_set = former.parameter_set
        welcome = pb.Welcome(
            run_id=settings.run_id,
            simulator_number=self.number,
            seed=self._seed,
            environment_parameters=values,
            samplers=samplers,
            max_message_bytes=settings.max_message_bytes,
            step_timeout_seconds=settings.step_timeout,
            position=None if former is None else former.position,
        )
        self.send(pb.ConnectResponse(welcome=welcome))
        for spec in specs:
            self._learn_of(spec)

    def _learn_of(self, spec: BehaviorSpec) -> None:
        self._introduce(spec)
        self._layouts.setdefault(spec.name, BehaviorLayout(spec))

    def _step(self, step: pb.Step) -> None:
        step_id = step.step_id
        check_step_order(step, last_step=self._step_id, last_reset=self._reset_id)
        self._step_id = step_id
        self._note_step(step.game_seconds)
        if self.checkpoints is not None:
            self.checkpoints.leave_position(resumed=step.resumed)
        stats = decode_stats(step) if step.stats else []
        batches = decode_step(step, self._layouts)
        if not self.started:
            self._note_start(batches)
        if step.resumed:
            if self.checkpoints is not None and self.checkpoints.resume(step_id, batches):
                return
            self._tell_problem("not_resumed", NOT_RESUMED)
        is_current = step.reset_id == self._reset_id  # else it was sent before the reset arrived there
        if stats and is_current:
            self._report(stats, batches)
        elif stats:
            self._host.stats.add(stats, BEFORE_RESET)
        if is_current:
            self._stage(step_id, batches)
