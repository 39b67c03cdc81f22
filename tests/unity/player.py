"""A Unity player: shakes hands, plays its behaviors, answers the trainer's commands, misbehaves when it is told to.

As a thread: `Player(port, [Behavior(...)]).play(steps=100)`. As a process, with the arguments of a Unity executable:
`python -m tests.unity.player --mlagents-port 5005 --behaviors '[{"name": "Learner", "continuous": 2}]' --steps 100`.
Prints a `Summary` as one line of JSON at its end. Without a port it connects to nobody, like a build.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

import grpc

from ludus.protocol import simulation_pb2
from ludus.protocol.mlagents import agent_pb2, unity_pb2
from ludus.protocol.options import SESSION_ID_METADATA, TICKET_METADATA
from tests.unity.academy import Academy
from tests.unity.communicator import Communicator, NobodyListens, Transcript
from tests.unity.descriptions import CAPABILITIES, PACKAGES, Behavior, Package, Trouble, without_graphics
from tests.unity.side_channels import AGGREGATIONS, SideChannels

OK = 200
GOODBYE = 400
FIXED_UPDATE_SECONDS = 0.02
"""How long a game without agents waits between its steps."""


@dataclasses.dataclass
class Summary:
    """What happened, for people and tests."""

    ending: str = ""
    """`left`: all steps played; `ended`: the trainer said so; `vanished`; `inference`: the handshake failed; or the
    name of gRPC's status."""
    messages: int = 0
    """Calls that were made, those of the handshake included."""
    steps: int = 0
    agent_steps: int = 0
    """Decisions that were asked for and answered."""
    resets: int = 0
    """Commands to begin again, without that of the handshake."""
    seconds: float = 0.0
    """Of play, after the handshake."""
    seed: int = 0
    num_areas: int = 0
    trainer_version: str = ""
    episodes: dict[str, int] = dataclasses.field(default_factory=dict)
    first_scores: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """By behavior: the share of right actions over the first tenth of the steps, ..."""
    last_scores: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """... and over the last tenth."""
    forbidden_choices: int = 0
    engine: dict[str, int | float] = dataclasses.field(default_factory=dict)
    parameters: dict[str, list[float | str]] = dataclasses.field(default_factory=dict)
    floats: dict[str, float] = dataclasses.field(default_factory=dict)
    raw: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """(channel, payload in hexadecimal)."""
    close: tuple[str, str] | None = None
    """Code and reason of the `Close` that came with the last reply."""


class Over(Exception):
    """The conversation has come to its end; the argument says how."""


class Player:
    """One Unity process. Play it in one thread; `leave` and `vanish` may be called from others."""

    def __init__(
        self,
        port: int,
        behaviors: Iterable[Behavior],
        *,
        host: str = "localhost",
        package: Package | None = None,
        seed: int | None = None,
        trouble: Trouble | None = None,
        stats: bool = False,
        raw: Sequence[UUID] = (),
        metadata: Sequence[tuple[str, str]] = (),
        own_connection: bool = True,
        proxy: bool = False,
        pace: float = 0.0,
        patience: float = 30.0,
        timeout: float = 600.0,
        record: bool = False,
    ) -> None:
        """Describe a player; nothing is dialled before `play`.

        `seed`: of its game, else the trainer's. `stats`: reports four stats with every message, one per aggregation.
        `raw`: channels that the game knows; it answers their frames with `echo:` and the same bytes. `pace`: seconds
        that a step takes. `timeout`: seconds until somebody listens; `timeout`: of a call.
        """
        self.side = SideChannels(tuple(raw))
        self.summary = Summary()
        self._behaviors = tuple(behaviors)
        self._package = package or Package()
        self._seed = seed
        self._trouble = trouble
        self._stats = stats
        self._pace = pace
        self._seconds_to_wait = patience
        self._leaving = threading.Event()
        self._vanished = threading.Event()
        self._announced: set[str] = set()
        self._echoed = 0
        self._communicator = Communicator(
            f"{host}:{port}",
            metadata=metadata,
            own_connection=own_connection,
            proxy=proxy,
            timeout=timeout,
            record=record,
        )

    @property
    def transcript(self) -> Transcript:
        """Every message in its order, if it was asked for."""
        return self._communicator.transcript

    def play(self, steps: int | None = None, seconds: float | None = None) -> Summary:
        """Play until the trainer ends it, or so many steps of the game, or so long."""
        academy = None
        try:
            academy = self._shake_hands()
            self._play(academy, steps or sys.maxsize, seconds or math.inf)
        except Over as over:
            self.summary.ending = str(over)
        except NobodyListens:
            self.summary.ending = "inference"
        except grpc.RpcError as error:
            self.summary.ending = "vanished" if self._vanished.is_set() else error.code().name.lower()
        except ValueError:  # the channel was closed before the call
            if not self._vanished.is_set():
                raise
            self.summary.ending = "vanished"
        finally:
            self._communicator.close()
            self._conclude(academy)
        return self.summary

    def leave(self) -> None:
        """Say goodbye with status 400 instead of the next message."""
        self._leaving.set()

    def vanish(self) -> None:
        """Cut the connection now, without a word."""
        self._vanished.set()
        self._communicator.close()

    # --- the handshake ---

    def _shake_hands(self) -> Academy:
        output = unity_pb2.UnityOutputProto()
        hello = output.rl_initialization_output
        hello.name = "AcademySingleton"
        hello.communication_version, hello.package_version = self._package.communication, self._package.version
        for capability in CAPABILITIES:
            setattr(hello.capabilities, capability, self._package.has(capability))
        first = self._exchange(output)
        second = self._exchange(None)  # the trainer may hold it for as long as it likes
        welcome = first.unity_input.rl_initialization_input
        if {first.header.status, second.header.status} != {OK} or not compatible(
            self._package.communication, welcome.communication_version
        ):
            raise Over("inference")
        self.summary.seed, self.summary.num_areas = welcome.seed, welcome.num_areas
        self.summary.trainer_version = welcome.package_version
        self._hear_side_channels(second)  # its command, RESET, finds nobody who listens
        academy = Academy(self._behaviors, self._package, welcome.seed if self._seed is None else self._seed)
        academy.trainer = {capability for capability in CAPABILITIES if getattr(welcome.capabilities, capability)}
        return academy

    # --- the game ---

    def _play(self, academy: Academy, steps: int, seconds: float) -> None:
        began = time.monotonic()
        try:
            while academy.steps < steps and time.monotonic() - began < seconds and not self._leaving.is_set():
                self._step(academy)
                if self._vanished.wait(self._pace or (0 if len(academy) else FIXED_UPDATE_SECONDS)):
                    raise Over("vanished")
        finally:
            self.summary.seconds = time.monotonic() - began
        with contextlib.suppress(grpc.RpcError):  # as C#'s Dispose
            self._exchange(None, GOODBYE)
        raise Over("left")

    def _step(self, academy: Academy) -> None:
        academy.advance()
        if infos := academy.flush():
            reply = self._exchange(self._tell(infos, academy))
            if reply.header.status != OK:
                raise Over("ended")
            self._hear_side_channels(reply)
            self._obey(reply.unity_input.rl_input, academy)
            self.summary.agent_steps += sum(not info.done for listed in infos.values() for info in listed)
        academy.finish()

    def _tell(self, infos: dict[str, list[agent_pb2.AgentInfoProto]], academy: Academy) -> unity_pb2.UnityOutputProto:
        output = unity_pb2.UnityOutputProto()
        for name, listed in infos.items():
            output.rl_output.agentInfos[name].value.extend(listed)  # an entry for every known behavior, empty or not
            if listed and name not in self._announced:
                self._announced.add(name)
                announcement = self._announce(academy.behaviors[name], academy)
                output.rl_initialization_output.brain_parameters.append(announcement)
        if self._stats:
            for number, aggregation in enumerate(AGGREGATIONS):
                self.side.say_stat(f"Player/{aggregation}", self.summary.messages, number)
        output.rl_output.side_channel = self.side.flush()
        return output

    def _announce(self, behavior: Behavior, academy: Academy) -> agent_pb2.BrainParametersProto:
        parameters = agent_pb2.BrainParametersProto(brain_name=behavior.name, is_training=True)
        if self._package.has("hybridActions") and "hybridActions" in academy.trainer:
            parameters.action_spec.num_continuous_actions = behavior.continuous
            parameters.action_spec.num_discrete_actions = len(behavior.branches)
            parameters.action_spec.discrete_branch_sizes.extend(behavior.branches)
            return parameters
        if behavior.continuous and behavior.branches:
            raise AssertionError(f"{behavior.name}: one of the two ends cannot mix actions; Unity asserts here")
        parameters.vector_action_size_deprecated.extend(behavior.branches or (behavior.continuous,))
        parameters.vector_action_space_type_deprecated = (
            agent_pb2.discrete if behavior.branches else agent_pb2.continuous
        )
        return parameters

    def _hear_side_channels(self, reply: unity_pb2.UnityMessageProto) -> None:
        self.side.hear(reply.unity_input.rl_input.side_channel)
        for channel, payload in self.side.raw[self._echoed :]:
            self.side.say(channel, b"echo:" + payload)
        self._echoed = len(self.side.raw)

    def _obey(self, message: unity_pb2.UnityRLInputProto, academy: Academy) -> None:
        if message.command == unity_pb2.QUIT:
            raise Over("ended")
        if message.command == unity_pb2.RESET:
            self.summary.resets += 1
            academy.reset()
        academy.take(message)  # nothing after RESET: actions are zeros

    # --- the conversation ---

    def _exchange(self, output: unity_pb2.UnityOutputProto | None, status: int = OK) -> unity_pb2.UnityMessageProto:
        """Make the next call; the fault, if there is one, happens here."""
        self.summary.messages += 1
        message = unity_pb2.UnityMessageProto()
        message.header.status = status
        if output is not None:
            message.unity_output.CopyFrom(output)
        if self._trouble is not None and self.summary.messages >= self._trouble.at:
            self._misbehave(self._trouble, message)
        if self.summary.messages == 1:
            return self._communicator.introduce(message, self._seconds_to_wait)
        return self._communicator.exchange(message)

    def _misbehave(self, trouble: Trouble, message: unity_pb2.UnityMessageProto) -> None:
        """Do what the trouble says: always (`empty`, `not_...`), or once."""
        output = message.unity_output
        infos = [info for listed in output.rl_output.agentInfos.values() for info in listed.value]
        match trouble.fault:
            case "empty":
                output.Clear()
                output.rl_output.SetInParent()
                return
            case "not_announced":
                output.ClearField("rl_initialization_output")
                return
            case "not_training":
                for parameters in output.rl_initialization_output.brain_parameters:
                    parameters.is_training = False
                return
        self._trouble = None
        match trouble.fault:
            case "garbage":
                self._communicator.exchange_bytes(b"\xff" * 64)
            case "hang":
                self._vanished.wait()
                raise Over("vanished")
            case "pause":
                self._vanished.wait(trouble.seconds)
            case "vanish":
                self.vanish()
                raise Over("vanished")
            case "nan_reward":
                for info in infos:
                    info.reward = math.nan
            case "nan_observation":
                for info in infos:
                    info.observations[0].float_data.data[0] = math.nan
            case "wrong_shape":
                for info in infos:
                    info.observations[0].shape[0] += 1
                    info.observations[0].float_data.data.append(0.0)
            case "oversized":
                self.side.say(UUID(int=0), bytes(trouble.size))
                output.rl_output.side_channel += self.side.flush()

    def _conclude(self, academy: Academy | None) -> None:
        summary, side = self.summary, self.side
        summary.engine, summary.parameters, summary.floats = side.engine, side.parameters, side.floats
        summary.raw = [(str(channel), payload.hex()) for channel, payload in side.raw]
        if self._communicator.close_bytes:
            close = simulation_pb2.Close.FromString(self._communicator.close_bytes)
            summary.close = (close.code, close.reason)
        if academy is None:
            return
        summary.steps, summary.episodes = academy.steps, academy.episodes
        summary.forbidden_choices = academy.forbidden_choices
        for name, scores in academy.scores.items():
            tenth = math.ceil(len(scores) / 10)
            summary.first_scores[name] = round(sum(scores[:tenth]) / tenth, 4) if tenth else None
            summary.last_scores[name] = round(sum(scores[-tenth:]) / tenth, 4) if tenth else None


def compatible(ours: str, theirs: str) -> bool:
    """Whether two versions of the communication API understand each other: the major ones are the same."""
    (major, minor, *_), (their_major, their_minor, *_) = ([*version.split("."), "", ""] for version in (ours, theirs))
    return major == their_major and (major != "0" or minor == their_minor)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play as a process. Arguments that are not known are for the game, as in Unity."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--mlagents-port", "--port", type=int, help="without it the player dials nobody")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--behaviors", type=json.loads, default=[{"continuous": 2}], help="JSON: a list of Behavior")
    parser.add_argument("--package", choices=PACKAGES, default="3.0.0")
    parser.add_argument("--communication", help="version of the communication API, if not the package's")
    parser.add_argument("--trouble", type=json.loads, help="JSON: a Trouble")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--stats", action="store_true")
    parser.add_argument("--raw", type=UUID, action="append", default=[])
    parser.add_argument("--ticket")
    parser.add_argument("--session-id")
    parser.add_argument("--proxy", action="store_true", help="obey proxy variables, as Unity's gRPC does")
    parser.add_argument("-nographics", action="store_true")
    parser.add_argument("-batchmode", action="store_true")
    parser.add_argument("-logFile", "-logfile", dest="log_file", type=Path)
    known, _ = parser.parse_known_args(arguments)
    log(known.log_file, f"Unity player, arguments {sys.argv[1:]}")
    if known.mlagents_port is None:
        log(known.log_file, "no --mlagents-port: playing alone")
        time.sleep(known.seconds or 3600)  # allow: sleep, because this game plays alone until it is killed
        return
    package = PACKAGES[known.package]
    if known.communication:
        package = dataclasses.replace(package, communication=known.communication)
    named = {TICKET_METADATA: known.ticket, SESSION_ID_METADATA: known.session_id}
    behaviors = [Behavior.from_json(behavior) for behavior in known.behaviors]
    player = Player(
        known.mlagents_port,
        [without_graphics(behavior) for behavior in behaviors] if known.nographics else behaviors,
        host=known.host,
        package=package,
        seed=known.seed,
        trouble=Trouble(**known.trouble) if known.trouble else None,
        stats=known.stats,
        raw=known.raw,
        metadata=[(key, value) for key, value in named.items() if value],
        proxy=known.proxy,
        pace=known.pace,
    )
    summary = json.dumps(dataclasses.asdict(player.play(known.steps, known.seconds)))
    log(known.log_file, summary)
    print(summary)  # noqa: T201  what this process is for


def log(path: Path | None, line: str) -> None:
    """Write a line into the log that the launcher asked for."""
    if path is not None:
        with path.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
