"""The run of `ludus learn` on a server, and its games: queues it, follows it while its results are copied, ends it."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from types import FrameType
from typing import Final, Protocol, Self, TypeAlias

from ludus.cli.ending import end_run
from ludus.cli.learn_options import EngineSettings, EnvironmentSettings, LearnError, LearnSettings
from ludus.client import TERMINAL_STATES, Busy, Client, NotFound, RunStalled, ServerUnreachable
from ludus.client.backoff import OUTAGE_FACTOR, ServerBackoff
from ludus.demonstrations import FOLDER_SUFFIXES
from ludus.event_loop import run
from ludus.games.builds import play
from ludus.games.process import ExecutableNotFound, find_executable
from ludus.games.settings import EDITOR_PORT, GameSettings, can_collect_here
from ludus.json_values import JsonObject
from ludus.mlagents.results import Folder, Mirror
from ludus.mlagents.results.console import info, warning
from ludus.mlagents.results.folder import Journal
from ludus.names import to_name
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import COMMUNICATION_VERSION
from ludus.protocol.side_channels import EngineOverrides
from ludus.schemas import Checkpoint, Run
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import Target

LISTENING: Final = f"Listening on port {EDITOR_PORT}. Start training by pressing the Play button in the Unity Editor."
REFUSALS: Final = {CloseCode.BEHAVIOR_NOT_CONFIGURED, CloseCode.BAD_SPEC}
"""Codes of behaviors that a run refuses to train, or its collector to read."""
_INVITATION: Final = "press Play in the Editor"
"""The same in the words of the bridge."""


class Games(Protocol):
    """Games that play during a block, in a run."""

    @property
    def failure(self) -> str | None:
        """The reason, once all games are given up."""

    @property
    def refusal(self) -> str | None:
        """The code of the reason, where it is that the game's behaviors are refused."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


class Players:
    """Games that play during the block; they quit at its end, and at the run's end."""

    def __init__(self, settings: GameSettings, say: Callable[[str], None]) -> None:
        self.failure: str | None = None
        """The reason, once all games are given up."""
        self.refusal: str | None = None
        """The code of the reason, where it is that the game's behaviors are refused."""
        self._settings = settings
        self._handler = _Lines(say)
        self._thread = threading.Thread(target=self._run, name="games", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = threading.Event()

    def __enter__(self) -> Self:
        logger = logging.getLogger("ludus.games")
        logger.addHandler(self._handler)
        logger.setLevel(logging.INFO)
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._interrupt()
            self._thread.join()
        except KeyboardInterrupt:
            self._interrupt()  # the second one cuts the games' time to quit short
            self._thread.join()
            raise
        finally:
            logging.getLogger("ludus.games").removeHandler(self._handler)

    def _interrupt(self) -> None:
        if self._thread.is_alive() and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        try:
            run(self._play())
        except asyncio.CancelledError:
            pass
        finally:
            self._begun.set()

    async def _play(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        try:
            await play(self._settings)
        except SimulatorError as error:
            self.failure, self.refusal = str(error), error.code if error.code in REFUSALS else None


class _Lines(logging.Handler):
    """Prints the log records of the bridge as `mlagents-learn` would."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._say(info(LISTENING) if text.startswith(_INVITATION) else f"[{record.levelname}] {text}")


def check_build(settings: LearnSettings) -> None:
    """Raise LearnError if the build does not exist, before anything is started."""
    if settings.environment.env_path is None:
        return
    try:
        find_executable(Path(settings.environment.env_path))
    except ExecutableNotFound as error:
        raise LearnError(
            f"Couldn't launch the {settings.environment.env_path} environment. Provided filename does not match any "
            f"environments: {error}."
        ) from error


def players_of(settings: LearnSettings, target: Target, logs: Path, say: Callable[[str], None]) -> Players:
    """Return the games of the settings."""
    environment, engine = settings.environment, settings.engine
    # The configuration of a new run has the engine settings; a resumed run may have others.
    names = [field.name for field in fields(EngineOverrides)] if settings.checkpoints.resume else []
    unity = GameSettings(
        target,
        env=None if environment.env_path is None else Path(environment.env_path),
        num_envs=environment.num_envs,
        env_args=tuple(environment.env_args or ()),
        base_port=environment.base_port,
        no_graphics=engine.no_graphics,
        no_graphics_monitor=engine.no_graphics_monitor,
        engine=EngineOverrides(**{name: getattr(engine, name) for name in names}),
        timeout_wait_seconds=environment.timeout_wait,
        max_lifetime_restarts=environment.max_lifetime_restarts,
        restarts_rate_limit_n=environment.restarts_rate_limit_n,
        restarts_rate_limit_period_seconds=environment.restarts_rate_limit_period_s,
        logs=logs,
    )
    return Players(unity, say)


POLL_SECONDS: Final = 1.0
REFUSAL_POLLS: Final = 30
"""Looks for the event of a refusal, before a run is ended without."""
PLAYS: Final = "-inference"
"""Ends the name of a run of `--inference`."""
PLACES: Final = 16
"""Places for edge collectors: of this command, and of others that connect games to its run."""
Say = Callable[[str], None]
MakePlayers: TypeAlias = Callable[[LearnSettings, Target, Path, Say], Games]
"""Returns the games of a run, which log to a folder."""
_LOCAL_KEYS: Final = frozenset({"env_path", "base_port", "seed"})
"""Keys of `env_settings` that only this machine needs, or that the document has at its top."""


class Interrupts:
    """Counts presses of Ctrl-C and ends `sleep`; the second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0
        self._pressed = threading.Event()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Count presses of Ctrl-C during the block; the end of the job, and of the terminal, count as one."""
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # as under `nohup`
            previous[hangup] = signal.getsignal(hangup)

        def press(_number: int, _frame: FrameType | None) -> None:
            self.count += 1
            self._pressed.set()
            if self.count > 1:
                raise KeyboardInterrupt

        for number in previous:
            signal.signal(number, press)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until the first press."""
        if self.count:
            time.sleep(seconds)
        else:
            self._pressed.wait(seconds)


def server_document(client: Client, settings: LearnSettings, say: Say) -> JsonObject:
    """Return the configuration for the server: files are uploaded and named by their ids, paths are left out.

    Raises LearnError, ApiError.
    """
    if not settings.document:
        raise LearnError(
            "No configuration file is given, and Ludus needs to know the behaviors: ludus learn CONFIG.yaml"
        )
    uploads: dict[Path, str] = {}
    document: JsonObject = {key: _uploaded(client, value, uploads) for key, value in settings.document.items()}
    _initialize(client, document, settings, say)
    if settings.checkpoints.inference:
        document["checkpoint_settings"] = {"inference": True}
    if settings.environment.seed >= 0:
        document["seed"] = settings.environment.seed
    simulators = document.get("simulators") or {}
    if isinstance(simulators, dict):
        if can_collect_here() and not settings.remote_env:  # the games of this command will
            simulators = {"collectors": {"local": 0, "edge": PLACES}, **simulators}
        if settings.environment.env_path is None:
            # A person presses Play in the Editor, at any time.
            simulators = {"startup_grace_seconds": None, **simulators}
        document["simulators"] = simulators
    for name, section in (("env_settings", settings.environment), ("engine_settings", settings.engine)):
        changed = _changed(section)
        if changed:
            document[name] = changed
    return document


def open_run(client: Client, settings: LearnSettings, folder: Folder, say: Say) -> Run:
    """Create the run, or find the one to continue. Raises LearnError, ApiError."""
    if not settings.checkpoints.resume:
        return client.runs.create(server_document(client, settings, say), name=_name(settings))
    say(info(f"Resuming from {folder.path.as_posix()}."))
    journal = folder.read_journal()
    if journal is None:
        raise LearnError(
            f"{folder.path.as_posix()} was not written by Ludus, so --resume has no run to continue; start "
            "from its networks with --initialize-from instead."
        )
    try:
        run = client.runs.get(journal.run)
    except NotFound as error:
        raise LearnError(
            f"The server at {client.server} does not have the run {journal.run} of {folder.path.as_posix()}; name "
            f"{journal.server or 'the one that trained it'} with --server."
        ) from error
    step = run.step
    if run.state in TERMINAL_STATES:
        run, step = _continued(client, settings, folder, journal, run, say)
    elif settings.checkpoints.inference:
        raise LearnError(f"Run {run.id} still trains; stop it (ludus run stop {run.id}) before --inference.")
    elif run.state == "PAUSED":
        run = client.runs.resume(run.id)
        step = run.step
    say(info(f"Resuming training from step {step}."))
    return run


def begin_anew(client: Client, folder: Folder) -> None:
    """Prepare a folder for a new run: `--force`.

    As in ML-Agents only event files are deleted, and only those that Ludus wrote. Their run is stopped.
    """
    journal = folder.read_journal()
    if journal is None:
        return
    with suppress(NotFound):  # a run of another server
        end_run(client, journal.run, "stop")
    for behavior, copied in journal.behaviors.items():
        if copied.event_file is not None:
            (folder.behavior(behavior) / copied.event_file.name).unlink(missing_ok=True)
    (folder.logs / "ludus.json").unlink()


def follow(client: Client, mirror: Mirror, interrupts: Interrupts, players: Games | None, say: Say) -> Run:
    """Follow a run until it has ended and all results are copied. Raises ApiError.

    The first Ctrl-C stops the run with a checkpoint, and so does the end of the last game on this machine. A run that
    continues only after a person acts is reported once, and followed further: its games are started from here.
    """
    # A server of this call is not upgraded: where it is silent, it has ended.
    backoff = ServerBackoff(outage_factor=OUTAGE_FACTOR if mirror.journal.server else 1.0)
    stopped = stalled = False
    while True:
        try:
            if not stopped and (interrupts.count or (players is not None and players.failure is not None)):
                if interrupts.count:
                    say(info("Learning was interrupted. Please wait while the graph is generated."))
                run_id = mirror.journal.run
                if interrupts.count or players is None or _ends_well(client, run_id, players.refusal, interrupts):
                    end_run(client, run_id, "stop")
                else:
                    end_run(client, run_id, "cancel")
                stopped = True
            run = mirror.sync()
            if run.state in TERMINAL_STATES:
                return mirror.finish()
            if run.needs_action and not stalled:
                say(warning(str(RunStalled(run))))
            stalled = run.needs_action
            backoff.reset()
        except (ServerUnreachable, Busy) as error:
            backoff.wait(error)
        interrupts.sleep(POLL_SECONDS if not stopped else POLL_SECONDS / 4)


def _ends_well(client: Client, name: str, refusal: str | None, interrupts: Interrupts) -> bool:
    """Whether a run whose games are given up is stopped: it has taken steps of its own, or its trainer refused them.

    Such a trainer fails the run itself and names the reason. It reports that before the end of the games' sessions,
    which has the code of the refusal, too, and comes alone where a collector could not read the games. Any other run in
    which no game has taken a step is no success, and is cancelled.
    """
    run = client.runs.get(name)
    begun_at = 0
    if run.continues is not None:
        begun_at = client.checkpoints.get(run.continues, run.config["checkpoint_settings"]["resume_from"]).step
    if run.step > begun_at:
        return True
    for _ in range(REFUSAL_POLLS):
        events = [event for event in client.events.list(name) if refusal is None or event.data.get("code") == refusal]
        if refusal is None or events:
            return any(event.type == "behavior_refused" for event in events)
        interrupts.sleep(POLL_SECONDS)  # the games know before the server
    return False


def _name(settings: LearnSettings) -> str | None:
    """Return the name of a run: what its run ID makes of one; None without any.

    A run that only plays has another name than the run that trained: a name stands for the newest run of that name,
    whose checkpoints people want.
    """
    name = to_name(settings.checkpoints.run_id)
    return f"{name[:180]}{PLAYS}" if name and settings.checkpoints.inference else name


def _continued(
    client: Client, settings: LearnSettings, folder: Folder, journal: Journal, ended: Run, say: Say
) -> tuple[Run, int]:
    """Create a run that resumes from the newest checkpoint of an ended one, with today's configuration."""
    checkpoint: Checkpoint | None = None
    for former in (ended.id, *reversed(journal.former)):  # a run of inference has no checkpoint
        with suppress(NotFound):
            checkpoint = client.checkpoints.get(former)
            break
    if checkpoint is None:
        raise LearnError(
            f"Run {ended.id} has ended ({ended.state}, {ended.stop_reason}) without a checkpoint to resume from; start "
            "again with --force."
        )
    document = server_document(client, settings, say)
    document["checkpoint_settings"] = {**document.get("checkpoint_settings", {}), "resume_from": checkpoint.id}
    run = client.runs.create(document, name=_name(settings))
    journal.continue_with(run.id)
    folder.write_journal(journal)
    return run, checkpoint.step


def _initialize(client: Client, document: JsonObject, settings: LearnSettings, say: Say) -> None:
    """Replace the paths in each behavior by the checkpoint that it begins with."""
    behaviors = document.get("behaviors")
    if not isinstance(behaviors, dict):
        return
    document["behaviors"] = named = {}
    folder = settings.initial_folder
    for name, behavior in behaviors.items():
        init_path = behavior.get("init_path") if isinstance(behavior, dict) else None
        if init_path is None:
            path = None if folder is None else Folder(folder).behavior(name) / "checkpoint.pt"
        else:
            path = Path(str(init_path))
            if folder is not None and path.parent == Path():
                path = Folder(folder).behavior(name) / path
        named[name] = behavior
        if path is not None:
            if not (path.is_file() and path.suffix == ".pt"):
                raise LearnError(f"Could not initialize from {path}. file does not exists or is not a `.pt` file")
            section = {key: value for key, value in (behavior or {}).items() if key != "init_path"}
            uploaded = client.uploaded_checkpoints.upload(path, name=to_name(path.stem), behavior=name)
            named[name] = {**section, "initialize_from": uploaded.id}
            say(info(f"Initializing from {path.as_posix()}."))
            say(info(f"Starting training from step 0 and saving to {settings.folder.as_posix()}/{name}."))


def _uploaded(client: Client, value: object, known: dict[Path, str]) -> object:
    """Replace every `demo_path` below by the ids of its uploaded files."""
    if isinstance(value, list):
        return [_uploaded(client, item, known) for item in value]
    if not isinstance(value, dict):
        return value
    replaced = {key: _uploaded(client, item, known) for key, item in value.items() if key != "demo_path"}
    if (path := value.get("demo_path")) is not None:
        files = recordings(Path(str(path)))
        for file in files:
            if file not in known:
                known[file] = client.demonstrations.upload(file).id
        replaced["demonstrations"] = [known[file] for file in files]
    return replaced


def recordings(path: Path) -> list[Path]:
    """Return the recordings that a `demo_path` means: the file, or those in the folder. Raises LearnError."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in FOLDER_SUFFIXES)
        if not files:
            raise LearnError(f"There are no '.demo' files in the provided directory {path}.")
        return files
    if not path.is_file():
        raise LearnError(f"The demonstration file or directory {path} does not exist.")
    if path.suffix not in FOLDER_SUFFIXES:
        raise LearnError(f"The file {path} is not a '.demo' file. Please provide a file with a .demo extension.")
    return [path]


def _changed(section: EnvironmentSettings | EngineSettings) -> JsonObject:
    """Return the values of a section that are not its defaults, for the server, which has the same defaults."""
    values: Mapping[str, object] = asdict(section)
    return {
        field.name: values[field.name]
        for field in fields(section)
        if field.name not in _LOCAL_KEYS and values[field.name] != field.default
    }


def greeting(version: str, server: str, server_version: str) -> str:
    """Return the lines with which `mlagents-learn` begins, with our versions."""
    versions = f"  ludus: {version},\n  Communicator API: {COMMUNICATION_VERSION},\n  Server: {server} {server_version}"
    return f"\n Version information:\n{versions}"


def warn(settings: LearnSettings, say: Say) -> None:
    """Print warnings about options and keys that have no effect."""
    for text in settings.warnings:
        say(warning(text))
