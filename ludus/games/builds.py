"""Run builds, or the Editor, in a run: open ports, start processes, watch and restart them until the run ends.

`play` does all of it, for `ludus unity`, `ludus learn` and programs of your own. One event loop, no threads;
differences between operating systems are in `ludus.child_process`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ludus.games import diagnostics
from ludus.games.port import GamePort
from ludus.games.process import (
    PORT_ARGUMENT,
    ExecutableNotFound,
    Player,
    PlayerLog,
    RestartQuota,
    arguments,
    find_executable,
)
from ludus.games.reporter import GameReporter, Refusal, RunReporter, game_reporters
from ludus.games.settings import LAST_PORT, GameSettings, collects_here, falls_back
from ludus.games.unity.bridge import CLIENT, BridgeSession
from ludus.sdk.errors import CannotConnect, Failure, SessionRefused, SimulatorError
from ludus.sdk.join import JoinClient, RunEnd, client_name

logger = logging.getLogger("ludus.games")

TICK_SECONDS: Final = 0.1
KILL_SECONDS: Final = 5.0
"""Time-out for a process to terminate, before it is killed."""
RESTART_SECONDS: Final = 0.5
"""Pause before a restart, so that a process that ends at once does not keep the machine busy."""


class GivenUp(SimulatorError):
    """A build cannot be started, or may not be restarted."""

    def __init__(self, problem: Failure) -> None:
        super().__init__(problem.code, problem.sentence)


async def play(settings: GameSettings) -> RunEnd:
    """Keep games playing in a run until it ends; return how it ended.

    Logs to the logger `ludus.games`, errors included. Problems that the server cannot see become events of the run.
    Cancelling ends the games: each is asked to quit within `timeout_wait_seconds`; cancelling again kills them.

    Raises CannotConnect or GivenUp, with the reason of the last game, when all games have been given up.
    """
    try:
        named = replace(settings, target=replace(settings.target, label=settings.label))
        if await collects_here(named.target, CLIENT, named.collect, bridged=True):
            try:
                return await _play_here(named)
            except CannotConnect as error:
                if not falls_back(error, named.collect):
                    raise
        return await _play(named)
    except SimulatorError as error:
        logger.log(logging.ERROR, error)
        raise


async def _play_here(settings: GameSettings) -> RunEnd:
    """Play with an edge collector in this process."""
    # What it needs, a light installation lacks.
    from ludus.collector.edge import edge_collector  # noqa: PLC0415

    async with edge_collector(settings.target, logger.log, shares_memory=True) as collector:
        target = replace(
            settings.target, server=collector.address, token="", ca_file=None, client_certificate=None, client_key=None
        )
        collecting = asyncio.create_task(collector.run())
        playing = asyncio.create_task(_play(replace(settings, target=target, exchange=collector.exchange)))
        try:
            await asyncio.wait({collecting, playing}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                return playing.result()
            end = collecting.result()
            # Games receive the end of the run themselves; then they have time to quit.
            await asyncio.wait({playing}, timeout=2 * settings.timeout_wait_seconds + KILL_SECONDS)
            return end
        finally:
            for task in (playing, collecting):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def _play(settings: GameSettings) -> RunEnd:
    executable = _executable(settings)
    async with JoinClient(settings.target, logger.log, client_name(CLIENT)) as join_client:
        join_client.warn()
        end = await join_client.ask()
        if end is not None:
            return end
        run_reporter = RunReporter(join_client)
        try:
            count = 1 if executable is None else settings.num_envs
            reporters = game_reporters(count, run_reporter, settings.target, logger.log)
            workers = [
                Editor(settings, reporter) if executable is None else Build(settings, executable, worker, reporter)
                for worker, reporter in enumerate(reporters)
            ]
            return await _keep_playing(workers, settings)
        finally:
            await run_reporter.close()


def _executable(settings: GameSettings) -> Path | None:
    """Return the executable of the build; None without a build. Raises GivenUp if it cannot be started."""
    if settings.env is None:
        return None
    if PORT_ARGUMENT in settings.env_args:
        raise GivenUp(diagnostics.failure("port_in_arguments", argument=PORT_ARGUMENT))
    try:
        return find_executable(settings.env)
    except ExecutableNotFound as error:
        raise GivenUp(_not_launched(error)) from None


async def _keep_playing(workers: "Sequence[Build | Editor]", settings: GameSettings) -> RunEnd:
    """Run all workers until the run ends; log why some were given up. Raises the SimulatorError of the last one."""
    tasks = [asyncio.create_task(worker.play()) for worker in workers]
    logged, remaining = set[str](), len(tasks)
    try:
        for finished in asyncio.as_completed(tasks):
            remaining -= 1
            try:
                end = await finished
            except SimulatorError as error:
                if not remaining:
                    raise
                if str(error) not in logged:
                    logger.log(logging.ERROR, error)
                logged.add(str(error))
            else:
                # The others receive the end of the run themselves; then their games have time to quit.
                await asyncio.wait(tasks, timeout=2 * settings.timeout_wait_seconds + KILL_SECONDS)
                return end
        raise AssertionError("there is at least one game")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Build:
    """One build: its port, its process and its restarts."""

    def __init__(self, settings: GameSettings, executable: Path, worker: int, reporter: GameReporter) -> None:
        self._settings = settings
        self._executable = executable
        self._worker = worker
        self._reporter = reporter
        self._no_graphics = settings.no_graphics or (settings.no_graphics_monitor and worker != 0)
        self._port = GamePort(self._new_session, reporter.tell, exclusive=True)
        limits = (settings.max_lifetime_restarts, settings.restarts_rate_limit_n)
        self._quota = RestartQuota(*limits, settings.restarts_rate_limit_period_seconds)
        self._dialled = False
        """Whether any process of this build has called."""

    async def play(self) -> RunEnd:
        """Start the build, and restart it, until the run ends. Raises SimulatorError when it is given up."""
        first = self._settings.base_port + self._worker
        # Steps of num_envs leave the other builds the ports that they want.
        for number in range(first, LAST_PORT + 1, self._settings.num_envs):
            if await self._port.open(number):
                break
        else:
            raise self._given_up(diagnostics.failure("no_port", first=first, last=LAST_PORT))
        if number != first:
            self._reporter.tell(diagnostics.failure("port_taken", port=first, instead=number))
        try:
            while True:
                outcome = await self._run_process()
                if isinstance(outcome, RunEnd):
                    return outcome
                if outcome.permanent:
                    raise self._given_up(outcome)
                if not self._quota.take():
                    raise self._given_up(
                        Failure(
                            "restarts_exhausted",
                            f"{outcome.sentence}\nworker {self._worker} is given up: it was started again "
                            f"{self._quota.used} times, and --max-lifetime-restarts {self._quota.lifetime}, "
                            f"--restarts-rate-limit-n {self._quota.rate} and --restarts-rate-limit-period-s "
                            f"{self._quota.period_seconds:g} allow no more now",
                            permanent=True,
                        )
                    )
                self._reporter.tell(outcome, "starting it again")
                await asyncio.sleep(RESTART_SECONDS)
        finally:
            await self._port.close()

    def _given_up(self, problem: Failure) -> GivenUp:
        """Report a problem to the run; the caller raises and logs it."""
        self._reporter.report(problem)
        return GivenUp(problem)

    def _new_session(self) -> BridgeSession:
        self._dialled = True
        return self._settings.session(self._reporter, self._worker, no_graphics=self._no_graphics, parks=False)

    async def _run_process(self) -> RunEnd | Failure:
        """Start one process and watch it until it has ended. Raises GivenUp or CannotConnect."""
        self._reporter.expect_session()
        folder = self._settings.logs
        log = None if folder is None else PlayerLog(folder.resolve(), self._worker)
        player_log = None if log is None else log.player
        command = arguments(self._port.number, player_log, self._settings.env_args, no_graphics=self._no_graphics)
        try:
            player = Player(self._executable, command, log)
        except ExecutableNotFound as error:
            raise self._given_up(_not_launched(error)) from None
        timeout = self._settings.timeout_wait_seconds
        try:
            outcome = await self._watch(player)
            session = self._port.session
            if isinstance(outcome, Failure) and (session is None or not session.over):
                timeout = 0.0  # it has ended, or it hangs and would not receive a goodbye
            return outcome
        finally:
            await self._end_process(player, timeout)

    async def _watch(self, player: Player) -> RunEnd | Failure:
        """Wait until the process has ended or must be ended. Raises CannotConnect for failures of the server."""
        while True:
            session = self._port.session
            if session is not None and session.outcome is not None:
                return _interpreted(session.outcome)
            code = player.exit_code()
            if code is not None:
                if session is not None and session.said_goodbye and code == 0:
                    return diagnostics.failure("game_quit")
                return diagnostics.exited(code, dialled=session is not None, last_lines=player.last_lines())
            problem = self._diagnose(player, session)
            if problem is not None:
                return problem
            await asyncio.sleep(TICK_SECONDS)

    def _diagnose(self, player: Player, session: BridgeSession | None) -> Failure | None:
        """Return the problem of a running process, if it has one."""
        limit = self._settings.timeout_wait_seconds
        if session is None:
            if time.monotonic() - player.started_at <= limit:
                return None
            problem = diagnostics.never_dialled(
                self._executable, self._port.number, limit, diagnostics.proxies_in(os.environ)
            )
            return replace(problem, permanent=not self._dialled)
        if session.idle_seconds <= limit:
            return None
        return diagnostics.failure("second_call_missing" if session.calls == 1 else "stopped_calling", seconds=limit)

    async def _end_process(self, player: Player, timeout: float) -> None:
        """Wait for the end of a process, which is asked to quit at its next call; then terminate and kill it."""
        try:
            if self._port.session is not None:
                await self._port.session.leave()
            await _ended(player, timeout)
        finally:
            try:
                if player.exit_code() is None:
                    player.terminate()
                    await _ended(player, KILL_SECONDS)
            finally:
                player.end()
                player.clear()
                await self._port.end_session()


class Editor:
    """The Editor, which users start and stop themselves: each Play is one session."""

    def __init__(self, settings: GameSettings, reporter: GameReporter) -> None:
        self._settings = settings
        self._reporter = reporter
        self._port = GamePort(self._new_session, reporter.tell, exclusive=False)

    async def play(self) -> RunEnd:
        """Serve each Play until the run ends. Raises SimulatorError when the Editor cannot be served."""
        number = self._settings.editor_port
        if not await self._port.open(number):
            problem = diagnostics.failure("editor_port_taken", port=number)
            self._reporter.report(problem)
            raise GivenUp(problem)
        self._reporter.log(logging.INFO, f"press Play in the Editor (port {number})")
        try:
            while True:
                end = await self._one_play()
                if end is not None:
                    return end
                await self._port.end_session()
        finally:
            await self._port.close()

    def _new_session(self) -> BridgeSession:
        return self._settings.session(self._reporter, 0, no_graphics=False, parks=True)

    async def _one_play(self) -> RunEnd | None:
        """Wait until Play was pressed and stopped. Returns the run's end if it came first. Raises CannotConnect."""
        self._reporter.expect_session()
        waiting_since, limit = time.monotonic(), self._settings.timeout_wait_seconds
        advised = set[str]()
        while True:
            session = self._port.session
            advice: Failure | None = None
            if session is None:
                if time.monotonic() - waiting_since > limit:
                    proxies = diagnostics.proxies_in(os.environ)
                    advice = diagnostics.no_editor_plays(self._settings.editor_port, limit, proxies)
            elif session.outcome is not None:
                outcome = _interpreted(session.outcome)
                if isinstance(outcome, RunEnd):
                    return outcome
                self._reporter.tell(outcome, "waiting for the next Play")
                return None
            elif session.over:
                self._reporter.log(logging.INFO, "Play was stopped; waiting for the next one")
                return None
            elif session.calls == 1 and session.idle_seconds > limit:
                advice = diagnostics.failure("second_call_missing", seconds=limit)
            if advice is not None and advice.code not in advised:
                advised.add(advice.code)
                self._reporter.tell(advice)
            await asyncio.sleep(TICK_SECONDS)


def _interpreted(outcome: RunEnd | SimulatorError) -> RunEnd | Failure:
    """Return the outcome as a failure of this session. Raises CannotConnect, which concerns all sessions."""
    if isinstance(outcome, RunEnd):
        return outcome
    if isinstance(outcome, CannotConnect):
        raise outcome
    kind = Refusal if isinstance(outcome, SessionRefused) else Failure
    return kind(outcome.code, str(outcome), permanent=diagnostics.is_hopeless(outcome.code))


async def _ended(player: Player, seconds: float) -> None:
    """Wait at most `seconds` for the end of a process."""
    deadline = time.monotonic() + seconds
    while player.exit_code() is None and time.monotonic() < deadline:
        await asyncio.sleep(TICK_SECONDS)


def _not_launched(error: ExecutableNotFound) -> Failure:
    return Failure("executable_not_found", str(error), permanent=True)
