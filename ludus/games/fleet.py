"""Takes builds, or the Editor, to a run: opens ports, launches processes, watches and restarts them until the run ends.

`play` is the whole of it, for `ludus unity` and whoever else wants games in a run. One event loop and no threads; what
differs between operating systems is in `ludus.games.process`.
"""

import asyncio
import logging
import os
import platform
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from ludus.games import doctor
from ludus.games.engine import EngineOverrides
from ludus.games.executable import PORT_ARGUMENT, ExecutableNotFound, arguments, find_executable
from ludus.games.port import GamePort
from ludus.games.process import Player, PlayerLog, RestartQuota
from ludus.games.unity.bridge import CLIENT, Conversation
from ludus.games.unity.hook import SideChannelHook, Tap
from ludus.games.voice import Refusal, Voice, Words, voices
from ludus.sdk.errors import CannotConnect, Failure, SessionRefused, SimulatorError
from ludus.sdk.join import Joiner, RunEnd, Target, client_name

logger = logging.getLogger("ludus.games.unity")

BASE_PORT: Final = 5005
EDITOR_PORT: Final = 5004
LAST_PORT: Final = 65535
TICK_SECONDS: Final = 0.1
KILL_SECONDS: Final = 5.0
"""How long a process that was told to terminate has until it is killed."""
RESTART_SECONDS: Final = 0.5
"""Pause before a process is started again: without limits, one that ends at once would keep the machine busy."""


@dataclass(frozen=True)
class UnitySettings:
    """What to launch and how. Names and defaults are ML-Agents'."""

    target: Target
    """The run. Each life of a game gets an incarnation of its own."""
    env: Path | None = None
    """The build; None: games are played in the Editor."""
    num_envs: int = 1
    env_args: tuple[str, ...] = ()
    """Arguments for the game, behind ours."""
    base_port: int = BASE_PORT
    """Port of the first build; each further one takes the next."""
    editor_port: int = EDITOR_PORT
    no_graphics: bool = False
    no_graphics_monitor: bool = False
    """Without graphics, except for the first build."""
    engine: EngineOverrides = field(default_factory=EngineOverrides)
    timeout_wait_seconds: float = 60.0
    """How long a build may take to dial, to call again, and to end."""
    max_lifetime_restarts: int = 10
    """-1: any number. Per build, like the next two."""
    restarts_rate_limit_n: int = 1
    """-1: any number."""
    restarts_rate_limit_period_seconds: float = 60.0
    logs: Path | None = None
    """Folder of the player logs; None: nothing is kept."""
    side_channels: SideChannelHook | None = None
    """Your own code for raw bytes and float properties; None: nobody looks at them."""

    @property
    def label(self) -> str:
        """What people read in the list of simulators."""
        game = "Unity Editor" if self.env is None else self.env.name
        return self.target.label or f"{game} on {platform.node()}"[:200]

    def tap(self, worker: int) -> Tap | None:
        """Return the hook of side channels as a worker's games meet it."""
        return None if self.side_channels is None else Tap(self.side_channels, worker)


class GivenUp(SimulatorError):
    """A build won't be started again, or can't be started at all."""

    def __init__(self, problem: Failure) -> None:
        super().__init__(problem.code, problem.sentence)


async def play(settings: UnitySettings) -> RunEnd:
    """Have games play in a run until it ends, and say how it ended.

    What happens is logged to the logger `ludus.games.unity`, what is raised included. What the server cannot know of
    itself becomes an event of the run, too. Cancelling ends the games: each is told to quit, and has
    `timeout_wait_seconds` for it; cancelling again cuts that short.

    Raises CannotConnect or GivenUp when all games have been given up, with what became of the last one.
    """
    try:
        return await _play(replace(settings, target=replace(settings.target, label=settings.label)))
    except SimulatorError as error:
        logger.log(logging.ERROR, error)
        raise


async def _play(settings: UnitySettings) -> RunEnd:
    executable = _executable(settings)
    async with Joiner(settings.target, logger.log, client_name(CLIENT)) as joiner:
        joiner.warn()
        over = await joiner.ask()
        if over is not None:
            return over
        words = Words(joiner)
        try:
            return await _keep_playing(_workers(settings, executable, words), settings)
        finally:
            await words.close()


def _executable(settings: UnitySettings) -> Path | None:
    """Return what to launch; None: nothing. Raises GivenUp where that is hopeless from the start."""
    if settings.env is None:
        return None
    if contradiction := next((each for each in settings.env_args if each == PORT_ARGUMENT), None):
        raise GivenUp(doctor.port_in_arguments(contradiction))
    try:
        return find_executable(settings.env)
    except ExecutableNotFound as error:
        raise GivenUp(_not_launched(error)) from None


def _workers(settings: UnitySettings, executable: Path | None, words: Words) -> "list[Worker]":
    """Return everything that has to be kept playing."""
    if executable is None:
        return [Editor(settings, voice) for voice in voices(1, words, settings.target, logger.log)]
    all_voices = voices(settings.num_envs, words, settings.target, logger.log)
    return [Build(settings, executable, worker, voice) for worker, voice in enumerate(all_voices)]


async def _keep_playing(workers: "list[Worker]", settings: UnitySettings) -> RunEnd:
    """Have all workers play until the run ends. Raises SimulatorError when the last one is given up."""
    tasks = [asyncio.create_task(worker.play()) for worker in workers]
    try:
        end = await _first_end(tasks)
        # The others hear of it themselves, and then their games have time to quit.
        await asyncio.wait(tasks, timeout=2 * settings.timeout_wait_seconds + KILL_SECONDS)
        return end
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first_end(tasks: "list[asyncio.Task[RunEnd]]") -> RunEnd:
    """Wait until one game has seen the run's end, and log why others were given up. Raises what ended the last one."""
    said, remaining = set[str](), len(tasks)
    for finished in asyncio.as_completed(tasks):
        remaining -= 1
        try:
            return await finished
        except SimulatorError as error:
            if not remaining:
                raise
            if str(error) not in said:
                logger.log(logging.ERROR, error)
            said.add(str(error))
    raise AssertionError("there is at least one game")


class Worker(Protocol):
    """Somewhere games are played."""

    async def play(self) -> RunEnd:
        """Keep games playing until the run ends. Raises SimulatorError when it is given up."""


class Build:
    """One of the builds: its port, its process and what happened to earlier ones."""

    def __init__(self, settings: UnitySettings, executable: Path, worker: int, voice: Voice) -> None:
        self._settings = settings
        self._executable = executable
        self._worker = worker
        self._voice = voice
        self._no_graphics = settings.no_graphics or (settings.no_graphics_monitor and worker != 0)
        self._port = GamePort(self._converse, voice.tell, exclusive=True)
        self._quota = RestartQuota(
            settings.max_lifetime_restarts,
            settings.restarts_rate_limit_n,
            settings.restarts_rate_limit_period_seconds,
        )
        self._dialled = False
        """Whether any process of this build ever has."""

    async def play(self) -> RunEnd:
        """Launch the build, again and again, until the run ends."""
        await self._open_port()
        try:
            while True:
                outcome = await self._live()
                if isinstance(outcome, RunEnd):
                    return outcome
                if outcome.permanent:
                    raise self._given_up(outcome)
                if not self._quota.take():
                    raise self._given_up(self._exhausted(outcome))
                self._voice.tell(outcome, "starting it again")
                await asyncio.sleep(RESTART_SECONDS)
        finally:
            await self._port.close()

    def _given_up(self, problem: Failure) -> GivenUp:
        """Leave word of what is raised, and thereby said here, by our caller."""
        self._voice.leave_word(problem)
        return GivenUp(problem)

    def _exhausted(self, last: Failure) -> Failure:
        settings = self._settings
        return Failure(
            "restarts_exhausted",
            f"{last.sentence}\nworker {self._worker} is given up: it was started again {self._quota.used} times, and "
            f"--max-lifetime-restarts {settings.max_lifetime_restarts}, --restarts-rate-limit-n "
            f"{settings.restarts_rate_limit_n} and --restarts-rate-limit-period-s "
            f"{settings.restarts_rate_limit_period_seconds:g} allow no more now",
            permanent=True,
        )

    async def _open_port(self) -> None:
        wanted = self._settings.base_port + self._worker
        # Steps of num_envs leave the other builds the ports that they want.
        for number in range(wanted, LAST_PORT + 1, self._settings.num_envs):
            if await self._port.open(number):
                if number != wanted:
                    self._voice.tell(doctor.port_taken(wanted, number))
                return
        raise self._given_up(doctor.no_port(wanted, LAST_PORT))

    def _converse(self) -> Conversation:
        self._dialled = True
        voice = self._voice
        return Conversation(
            voice.begin_life(),
            voice.tell,
            voice.about_run,
            self._settings.engine,
            no_graphics=self._no_graphics,
            tap=self._settings.tap(self._worker),
        )

    async def _live(self) -> RunEnd | Failure:
        """Launch one process and see it through to its end. Raises GivenUp or CannotConnect."""
        self._voice.await_life()
        folder = self._settings.logs
        log = None if folder is None else PlayerLog(folder.resolve(), self._worker)
        given = arguments(
            self._port.number,
            None if log is None else log.player,
            self._settings.env_args,
            no_graphics=self._no_graphics,
        )
        try:
            player = Player.launch(self._executable, given, log)
        except ExecutableNotFound as error:
            raise self._given_up(_not_launched(error)) from None
        patience = self._settings.timeout_wait_seconds
        try:
            outcome = await self._watch(player)
            conversation = self._port.conversation
            if isinstance(outcome, Failure) and (conversation is None or not conversation.over):
                patience = 0.0  # it is gone, or it hangs and would not hear a goodbye
            return outcome
        finally:
            await self._see_out(player, patience)

    async def _watch(self, player: Player) -> RunEnd | Failure:
        """Wait until something ends the process or should. Raises CannotConnect where that's no fault of the game."""
        while True:
            conversation = self._port.conversation
            if conversation is not None and conversation.outcome is not None:
                return _judged(conversation.outcome)
            code = player.poll()
            if code is not None:
                if conversation is not None and conversation.said_goodbye and code == 0:
                    return doctor.quit_by_itself()
                return doctor.exited(code, dialled=conversation is not None, last_words=player.last_words())
            problem = self._diagnose(player, conversation)
            if problem is not None:
                return problem
            await asyncio.sleep(TICK_SECONDS)

    def _diagnose(self, player: Player, conversation: Conversation | None) -> Failure | None:
        """Say what is wrong with a process that runs, if anything is."""
        limit = self._settings.timeout_wait_seconds
        if conversation is None:
            if time.monotonic() - player.started_at <= limit:
                return None
            problem = doctor.never_dialled(self._executable, self._port.number, limit, doctor.proxies_in(os.environ))
            return replace(problem, permanent=not self._dialled)
        if conversation.idle_seconds <= limit:
            return None
        return doctor.second_call_missing(limit) if conversation.calls == 1 else doctor.stopped_calling(limit)

    async def _see_out(self, player: Player, patience: float) -> None:
        """Let a process end: it has been told, or is told when it calls next."""
        try:
            if self._port.conversation is not None:
                await self._port.conversation.leave()
            await _ended(player, patience)
        finally:
            try:
                if player.poll() is None:
                    player.terminate()
                    await _ended(player, KILL_SECONDS)
            finally:
                if player.poll() is None:
                    player.kill()
                player.clear()
                await self._port.forget()


class Editor:
    """The Editor, which people start and stop themselves: each Play is another life of the game."""

    def __init__(self, settings: UnitySettings, voice: Voice) -> None:
        self._settings = settings
        self._voice = voice
        self._port = GamePort(self._converse, voice.tell, exclusive=False)

    async def play(self) -> RunEnd:
        """Wait for one Play after the other until the run ends."""
        number = self._settings.editor_port
        if not await self._port.open(number):
            problem = doctor.editor_port_taken(number)
            self._voice.leave_word(problem)
            raise GivenUp(problem)
        self._voice.say(logging.INFO, f"press Play in the Editor (port {number})")
        try:
            while True:
                end = await self._one_play()
                if end is not None:
                    return end
                await self._port.forget()
        finally:
            await self._port.close()

    def _converse(self) -> Conversation:
        voice, settings = self._voice, self._settings
        return Conversation(
            voice.begin_life(), voice.tell, voice.about_run, settings.engine, parks=True, tap=settings.tap(0)
        )

    async def _one_play(self) -> RunEnd | None:
        """Wait until Play was pressed and stopped; return the run's end if it came first. Raises CannotConnect."""
        self._voice.await_life()
        waiting_since, limit = time.monotonic(), self._settings.timeout_wait_seconds
        given = set[str]()
        while True:
            conversation = self._port.conversation
            advice: Failure | None = None
            if conversation is None:
                if time.monotonic() - waiting_since > limit:
                    proxies = doctor.proxies_in(os.environ)
                    advice = doctor.nobody_plays(self._settings.editor_port, limit, proxies)
            elif conversation.outcome is not None:
                outcome = _judged(conversation.outcome)
                if isinstance(outcome, RunEnd):
                    return outcome
                self._voice.tell(outcome, "waiting for the next Play")
                return None
            elif conversation.over:
                self._voice.say(logging.INFO, "Play was stopped; waiting for the next one")
                return None
            elif conversation.calls == 1 and conversation.idle_seconds > limit:
                advice = doctor.second_call_missing(limit)
            if advice is not None and advice.code not in given:
                given.add(advice.code)
                self._voice.tell(advice)
            await asyncio.sleep(TICK_SECONDS)


def _judged(outcome: RunEnd | SimulatorError) -> RunEnd | Failure:
    """Tell what concerns this life of the game alone. Raises CannotConnect, which concerns them all."""
    if isinstance(outcome, RunEnd):
        return outcome
    if isinstance(outcome, CannotConnect):
        raise outcome
    kind = Refusal if isinstance(outcome, SessionRefused) else Failure
    return kind(outcome.code, str(outcome), permanent=doctor.is_hopeless(outcome.code))


async def _ended(player: Player, seconds: float) -> None:
    """Wait until a process has ended, at most so long."""
    deadline = time.monotonic() + seconds
    while player.poll() is None and time.monotonic() < deadline:
        await asyncio.sleep(TICK_SECONDS)


def _not_launched(error: ExecutableNotFound) -> Failure:
    return Failure("executable_not_found", str(error), permanent=True)
