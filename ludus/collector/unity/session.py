"""One Unity player: the state machine of its conversation, without the transport.

A player always makes the calls, one at a time, and waits for each reply: it introduces itself (call 1), waits for the
training to begin (call 2), and from then on sends its agents and waits for their actions. A reset is the reply to
whichever call is pending. The conversation ends with a reply of status 400.
"""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from ludus.collector.agents import AgentIndex
from ludus.collector.session import LEFT, Host, Session
from ludus.collector.unity import diagnostics
from ludus.collector.unity.decoding import InfoReader
from ludus.collector.unity.encoding import CLOSING_REPLY, ActionEncoder, reset_reply, step_reply
from ludus.mlagents.specs import PICTURE_DIMENSIONS
from ludus.play.recordings.file import Direction
from ludus.protocol import side_channels
from ludus.protocol import simulation_pb2 as sim
from ludus.protocol.batches import BehaviorBatch, Floats, Ints, StatValue
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import MAX_CLIENT, check_size
from ludus.protocol.environment_parameters import ParameterValue
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import shallow_pb2 as shallow
from ludus.protocol.mlagents import unity_pb2 as unity
from ludus.protocol.options import COMMUNICATION_VERSION, GAME_RECEIVES_BYTES, ML_AGENTS_VERSION

OK = 200
LOOK_SECONDS = 1.0
"""A player's connection is looked up after this time of silence: longer than the age of the table of connections."""
FIRST_LOOKS = 10
"""So many of a behavior's first steps have their pictures looked at."""


class Phase(Enum):
    """The message that a session expects next."""

    INTRODUCTION = auto()
    SECOND_CALL = auto()
    AGENTS = auto()


@dataclass(slots=True)
class _Cameras:
    """Those of one behavior that have seen a single color so far."""

    blind: set[int]
    looks: int = 0


class UnitySession(Session):
    """One player. `call` takes a message; its future is the reply."""

    carrier = "unity"

    def __init__(
        self,
        host: Host,
        peer: str,
        session_id: str,
        *,
        ticket: str | None,
        client: str,
        parks: bool,
        tied: bool,
    ) -> None:
        super().__init__(host, peer)
        self.session_id = session_id
        self.goodbye: bytes | None = None
        """A serialised `ludus.v1.Close`, once the session has ended."""
        self.end_sent = False
        """Whether the player has been replied to with its end."""
        self.is_queued = False
        """Whether the reply is there, but waits until others, who share its connection, have called."""
        self.is_in_the_way: Callable[[], bool] = lambda: False
        """Whether others, who share its connection, wait for its next call."""
        self._ticket = ticket
        """None: the player came by a port that asks for none."""
        self._client = client
        self._parks = parks
        """Whether a long silence is allowed while the connection lives: the Editor may be paused."""
        self._tied = tied
        """Whether the player is known by its connection alone, and gone with it."""
        self._reported_problems: set[str] = set()
        self._cameras: dict[str, _Cameras] = {}
        """By behavior, as long as they are looked at."""
        self._phase = Phase.INTRODUCTION
        self._ready_at = 0.0
        """When the second call was replied to."""
        self._reply: asyncio.Future[bytes] | None = None
        """That of the pending call."""
        self._brains: dict[str, agent.BrainParametersProto] = {}
        """Announced behaviors that had no agents yet."""
        self._readers: dict[str, InfoReader] = {}
        self._encoders: dict[str, ActionEncoder] = {}
        self._step_id = 0
        self._missing = 0
        """Behaviors of the pending step that are not answered yet."""
        self._entries: list[bytes] = []
        """Those that are."""
        self._must_reset = False
        """Whether there is a reset that the player has not received yet."""

    @property
    def waits(self) -> bool:
        """Whether the player waits for us."""
        return self._reply is not None and not self._reply.done()

    def was_opened_with(self, ticket: str) -> bool:
        """Whether a call that brings this ticket is the player's own; by a port that asks for none, any is."""
        return self._ticket is None or hmac.compare_digest(self._ticket.encode(), ticket.encode())

    def call(self, message: shallow.Message, data: bytes) -> "asyncio.Future[bytes]":
        """Take a call, which was read from `data`, and return its reply to come."""
        self.tape.take(Direction.RECEIVED, data)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.closed is None and self.waits and message.header.status != OK:
            self._hear_goodbye()  # the pending call was broken off, of which we may hear later
        elif self.closed is None and self.waits:
            code = CloseCode.UNEXPECTED_MESSAGE
            self.end(code.value, "a call came while another one was pending; players make one at a time", rejoin=False)
        self._reply = reply
        if self.closed is not None:
            self.end_sent = True
            self._send(CLOSING_REPLY)
            return reply
        self.last_activity = self._host.now()
        try:
            check_size(len(data), self._host.settings.max_message_bytes)
            self._receive(message)
        except ProtocolError as error:
            self.end_by(error)
        return reply

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        """Take actions (called by the runner); the last behavior's send the reply."""
        assert agents is None, "no agent of a player can end while it waits: the player waits, too"
        assert step_id == self._step_id, "a player has one step under way"
        rows = self._readers[agent_index.behavior].rows
        if rows is not None:
            continuous, discrete = continuous[rows], discrete[rows]
        self._entries.append(self._encoders[agent_index.behavior].encode(continuous, discrete))
        self._missing -= 1
        if not self._missing:
            self._send(step_reply(self._entries, self._news()))

    def reset(self) -> None:
        """Make the player begin new episodes, with its next reply; everything pending is void."""
        self._forget_agents()
        self._must_reset = True
        if self._phase is Phase.AGENTS and self.waits:
            self._send(self._take_reset())

    def goes_out(self) -> None:
        """Record that the reply leaves only now."""
        self.is_queued = False
        self._note_answer()

    def is_gone(self) -> bool:
        """Whether the connection has broken that the player was known by."""
        silence = self._host.now() - self.last_activity
        computes = not (self.waits or self.is_queued)
        return self._tied and computes and silence > LOOK_SECONDS and not self._is_connected()

    def _is_connected(self) -> bool:
        """Whether the connection is established, as far as the system knows."""
        return self._host.connections.lives(self.peer, self._host.now())

    def overdue(self, now: float) -> ProtocolError | None:
        """Return why the session has to end if it has been silent for too long."""
        if self.waits or self.is_queued:
            return None
        settings, silence = self._host.settings, now - self.last_activity
        if self._phase is not Phase.AGENTS:
            limit = settings.second_call_timeout
            return diagnostics.second_call_missing(limit) if silence > limit else None
        if not self.started and not self.is_in_the_way():
            seconds, timeout, report_after = now - self._ready_at, settings.startup_timeout, settings.no_agents_after
            if timeout is not None and seconds > timeout:
                return diagnostics.no_agents(timeout)
            if seconds > report_after:
                self._report_problem(CloseCode.NO_AGENTS.value, diagnostics.no_agents(report_after).message)
            return None
        if silence <= settings.step_timeout:
            return None
        is_bearable = self._parks and not self.is_in_the_way()
        if is_bearable and (silence <= LOOK_SECONDS or self._is_connected()):
            self._report_problem(*diagnostics.parked(settings.step_timeout))
            return None
        return ProtocolError(
            CloseCode.STEP_TIMEOUT,
            f"nothing came for {settings.step_timeout:.0f} s after the last reply; where the game takes longer, raise "
            "simulators.step_timeout_seconds in the run's configuration",
        )

    def _report_problem(self, code: str, sentence: str) -> None:
        """Report a problem once."""
        if code not in self._reported_problems:
            self._reported_problems.add(code)
            self._tell_problem(code, sentence)

    def say_wait(self, reason: str) -> None:
        """Do nothing: the protocol has no message for it."""

    def _say_close(self, code: str, reason: str, *, rejoin: bool) -> None:
        self.goodbye = sim.Close(code=code, reason=reason, rejoin=rejoin).SerializeToString()
        if self.waits:
            self.end_sent = True
            self._send(CLOSING_REPLY)

    def _send(self, reply: bytes) -> None:
        assert self._reply is not None, "there is a call to reply to"
        if len(reply) > GAME_RECEIVES_BYTES:
            # Later: the runner, which has just drawn these actions, still has to note them down.
            error = diagnostics.reply_too_large(len(reply))
            asyncio.get_running_loop().call_soon(lambda: self.end(error.code.value, error.message, rejoin=False))
            return
        self._note_answer()
        self.tape.take(Direction.SENT, reply)
        self._reply.set_result(reply)

    # Calls ------------------------------------------------------------------------------------------------------

    def _receive(self, message: shallow.Message) -> None:
        if message.header.status != OK:
            self._hear_goodbye()
        elif self._phase is Phase.AGENTS:
            self._step(message.unity_output)
        elif self._phase is Phase.SECOND_CALL:
            self.tape.pin()
            self._phase, self._ready_at = Phase.AGENTS, self._host.now()
            # As in ML-Agents, the engine configuration goes with the first reset, behind the environment parameters.
            settings = self._host.settings
            engine = side_channels.join(side_channels.engine_configuration(settings.engine))
            self._send(reset_reply(_parameter_frames(settings.environment_parameters) + engine))
            self._must_reset = False
            self.parameter_set = settings.parameter_set
        else:
            self._introduction(message.unity_output.rl_initialization_output)

    def _hear_goodbye(self) -> None:
        self.end(LEFT, "the player ended the conversation", rejoin=False)

    def _introduction(self, hello: unity.UnityRLInitializationOutputProto) -> None:
        version = hello.communication_version
        if not is_compatible(version):
            raise diagnostics.version(version, hello.package_version, COMMUNICATION_VERSION)
        number = self._take_number(self._ticket, self.session_id) if self._ticket is not None else None
        self.number = next(self._host.numbers) if number is None else number
        self.tape.pin()
        client = f"{self._client} Unity ML-Agents {hello.package_version} (API {version})".strip()
        self._host.listener.welcomed(self, [], client.encode()[:MAX_CLIENT].decode(errors="ignore"))
        self._phase = Phase.SECOND_CALL
        reply = unity.UnityMessageProto(
            header=unity.HeaderProto(status=OK),
            unity_input=unity.UnityInputProto(
                rl_initialization_input=unity.UnityRLInitializationInputProto(
                    seed=self._seed,
                    communication_version=COMMUNICATION_VERSION,
                    package_version=ML_AGENTS_VERSION,
                    capabilities=_EVERYTHING,
                    num_areas=self._host.settings.num_areas,
                )
            ),
        )
        self._send(reply.SerializeToString())

    def _step(self, output: shallow.Output) -> None:
        self._note_step()
        agents = output.rl_output
        stats: list[StatValue] = []
        if agents.side_channel:
            # Training analytics, float properties and raw bytes are of no concern to the training; the sender for the
            # player (`ludus unity`) can hear them.
            received = side_channels.read(agents.side_channel)
            stats = received.stats
            for sentence in received.refused:
                self._report_problem(CloseCode.BAD_STAT.value, f"{sentence}; it is left out")
        if output.rl_initialization_output.brain_parameters:
            self.tape.pin()
        for brain in output.rl_initialization_output.brain_parameters:
            self._brains.setdefault(brain.brain_name, brain)
        batches: list[BehaviorBatch] = []
        infos = agents.agent_infos
        for name in sorted(infos):
            values = infos[name].value
            reader = self._readers.get(name) or (self._begin(name, values[0]) if values else None)
            if reader is not None and values:
                batches.append(reader.read(values))
        if stats:
            self._report(stats, batches)
        if not batches:
            # no agent asks; C# does not send such a message
            self._send(self._take_reset() if self._must_reset else step_reply([], self._news()))
            return
        if not self.started:
            self._note_start(batches)
        if self._must_reset:
            self._send(self._take_reset())  # these agents did not know of it
            return
        self._step_id += 1
        if self._cameras:
            self._look_at_pictures(batches)
        self._entries = []
        self._missing = sum(batch.decisions is not None for batch in batches)
        if not self._missing:
            self._send(step_reply([], self._news()))
        self._stage(self._step_id, batches)

    def _begin(self, name: str, first: shallow.Info) -> InfoReader | None:
        """Take a behavior whose first agents are here. None: its game has not announced it."""
        brain = self._brains.get(name)
        if brain is None:
            self._report_problem(
                CloseCode.UNKNOWN_BEHAVIOR.value,
                f"agents of {name[:200]!r} came without brain parameters, which the first message with them has to "
                "have; as with ML-Agents they get no actions",
            )
            return None
        reader = InfoReader.of(brain, first, self._report_problem)
        self._introduce(reader.spec)
        self._encoders[name] = ActionEncoder(name, reader.spec.actions)
        self._readers[name] = reader
        cameras = {
            index for index, sensor in enumerate(reader.spec.observations) if len(sensor.shape) == PICTURE_DIMENSIONS
        }
        if cameras:
            self._cameras[name] = _Cameras(cameras)
        return reader

    def _look_at_pictures(self, batches: list[BehaviorBatch]) -> None:
        """Report cameras that see a single color."""
        for batch in batches:
            cameras = self._cameras.get(batch.behavior)
            if cameras is None or batch.decisions is None:
                continue
            pictures = batch.decisions.observations
            cameras.blind -= {index for index in cameras.blind if pictures[index].min() != pictures[index].max()}
            cameras.looks += 1
            if cameras.looks < FIRST_LOOKS and cameras.blind:
                continue
            del self._cameras[batch.behavior]
            if cameras.blind:
                sensors = self.specs[batch.behavior].observations
                names = [sensors[index].name or f"observation {index}" for index in sorted(cameras.blind)]
                self._report_problem(*diagnostics.blind(names))

    def _take_reset(self) -> bytes:
        self._must_reset = False
        return reset_reply(self._tell_parameters())

    def _news(self) -> bytes:
        """Return the frames of environment parameters that the player has not received yet."""
        return b"" if self.parameter_set == self._host.settings.parameter_set else self._tell_parameters()

    def _tell_parameters(self) -> bytes:
        self.parameter_set = self._host.settings.parameter_set
        return _parameter_frames(self._environment_parameters)


_EVERYTHING = unity.UnityRLCapabilitiesProto(
    baseRLCapabilities=True,
    concatenatedPngObservations=True,
    compressedChannelMapping=True,
    hybridActions=True,
    trainingAnalytics=True,
    variableLengthObservation=True,
    multiAgentGroups=True,
)


def _parameter_frames(parameters: Mapping[str, ParameterValue]) -> bytes:
    return side_channels.join(side_channels.environment_parameter(key, value) for key, value in parameters.items())


def is_compatible(version: str) -> bool:
    """Whether a player of this communication version can be served: ML-Agents' rule of semantic versions."""
    ours = [int(part) for part in COMMUNICATION_VERSION.split(".")]
    try:
        theirs = [int(part) for part in version.partition("-")[0].split(".")]
    except ValueError:
        return False
    if len(theirs) not in {2, 3}:
        return False
    return theirs[0] == ours[0] and (theirs[0] != 0 or theirs[1] == ours[1])
