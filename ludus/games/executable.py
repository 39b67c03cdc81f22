"""The executable of a build, and its arguments: those of ML-Agents, in its order."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PORT_ARGUMENT: Final = "--mlagents-port"
LOG_ARGUMENT: Final = "-logFile"
NO_GRAPHICS: Final = ("-nographics", "-batchmode")
EXTENSIONS: Final = (".app", ".exe", ".x86_64", ".x86")
"""Extensions of builds on all systems."""


class ExecutableNotFound(Exception):
    """There is no build at a path; the message has the places that were searched."""


def find_executable(path: Path, system: str = sys.platform) -> Path:
    """Return the file that starts the build which `path` names, with or without its extension.

    `system` is one of `sys.platform`'s names. Raises ExecutableNotFound.
    """
    looked = list(dict.fromkeys(_candidates(path, system)))
    for candidate in looked:
        if candidate.is_file():
            if not os.access(candidate, os.X_OK):
                raise ExecutableNotFound(f"{candidate} may not be executed: run chmod +x on it")
            return candidate.resolve()
    where = ", ".join(str(candidate) for candidate in looked)
    raise ExecutableNotFound(f"there is no build {path} for this system ({system}); looked for {where}")


def _candidates(path: Path, system: str) -> Iterator[Path]:
    """Yield the possible paths of a build, the named one first."""
    yield path
    bare = path.with_name(path.name.removesuffix(path.suffix)) if path.suffix in EXTENSIONS else path
    if system == "darwin":
        inside = bare.with_name(f"{bare.name}.app") / "Contents" / "MacOS"
        yield inside / bare.name
        yield from sorted(inside.glob("*"))
    elif system == "win32":
        yield bare.with_name(f"{bare.name}.exe")
    else:
        yield bare.with_name(f"{bare.name}.x86_64")
        yield bare.with_name(f"{bare.name}.x86")
        yield bare


def arguments(port: int, log: Path | None, env_args: Sequence[str] = (), *, no_graphics: bool = False) -> list[str]:
    """Return the arguments of one build. `log` is left out where `env_args` name a log file themselves."""
    log_arguments = [] if log is None or own_log(env_args) is not None else [LOG_ARGUMENT, str(log)]
    return [*(NO_GRAPHICS if no_graphics else ()), PORT_ARGUMENT, str(port), *log_arguments, *env_args]


def own_log(env_args: Sequence[str]) -> str | None:
    """Return the log file that a user's arguments name: `-` stands for the console. None if they name none."""
    lowered = [argument.lower() for argument in env_args]
    if LOG_ARGUMENT.lower() not in lowered:
        return None
    following = env_args[lowered.index(LOG_ARGUMENT.lower()) + 1 :]
    return following[0] if following else "-"
