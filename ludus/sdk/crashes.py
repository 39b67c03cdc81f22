"""Errors that a game raises: the frames of its own code, and one sentence with its last line.

Between them lie frames of this package, of event loops and of Python's import system, which tell the author nothing.
"""

import asyncio
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

_OURS: Final = str(Path(__file__).resolve().parents[1]) + os.sep
_MACHINERY: Final = (
    *("<frozen importlib", importlib.__file__, str(Path(asyncio.__file__).parent) + os.sep),
    *("uvloop/", "<frozen runpy>", _OURS),
)
"""Beginnings of the names of files that are no game's."""
_LIBRARIES: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
_MOST_CHARACTERS: Final = 500


def own_traceback(error: BaseException, *, of_libraries: bool = True) -> str | None:
    """Return the traceback of an error without the frames that are no game's; None if no frame is left.

    `of_libraries`: whether one that has only frames of installed packages is returned.
    """
    shown = traceback.TracebackException.from_exception(error)
    not_its_own = _MACHINERY if of_libraries else (*_MACHINERY, *_LIBRARIES)
    if all(frame.filename.startswith(not_its_own) for part in _parts(shown) for frame in part.stack):
        return None
    for part in _parts(shown):
        part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if not _is_machinery(frame)])
    return "".join(shown.format())


def last_words(error: BaseException) -> str:
    """Return the type, the message and the last line of a game's own code: `KeyError: 'exit' (maze.py:65)`."""
    message = " ".join(str(error).split())
    if len(message) > _MOST_CHARACTERS:
        message = f"{message[:_MOST_CHARACTERS]}..."
    return f"{type(error).__name__}{f': {message}' if message else ''}{line_of(error)}"


def line_of(error: BaseException) -> str:
    """Return the last line of a game's own code behind an error, ` (maze.py:65)`; nothing if it has none there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame)]
    frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def place_of(game: object, method: str = "") -> str:
    """Name the code of a game: `Maze in maze.py`, of a method `Maze.step (maze.py:37)`."""
    kind = type(game)
    name = f"{kind.__qualname__}.{method}" if method else kind.__qualname__
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None:
        return name
    code: Any = getattr(inspect.unwrap(getattr(kind, method)), "__code__", None) if method else None
    if code is None or code.co_filename != file:
        return f"{name} in {Path(file).name}"
    return f"{name} ({Path(file).name}:{code.co_firstlineno})"


def _parts(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Iterate over an error and those that led to it."""
    yield shown
    for before in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if before is not None:
            yield from _parts(before)


def _is_machinery(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_MACHINERY)


Made = TypeVar("Made")
FACTORIES: Final = ("parallel_env", "env")
"""Functions that make a PettingZoo game by that library's convention, in the order of preference."""


class GameNotMade(Exception):
    """A game cannot be made, or not with these options. The message has the reason and the remedy."""

    def __init__(self, message: str, trace: str | None = None) -> None:
        super().__init__(message)
        self.trace = trace
        """Traceback of the game's own code, where that raised."""


def guarded(name: str, call: Callable[..., Made], *args: object, **arguments: object) -> Made:
    """Call the code of a game. Raises GameNotMade with its traceback."""
    try:
        return call(*args, **arguments)
    except GameNotMade:
        raise
    except (Exception, SystemExit) as error:
        problem = f"{name} raises {last_words(error)}"
        if isinstance(error, ImportError) and "no known parent package" in str(error):
            problem += "; a file of a package is named as a module, PACKAGE.MODULE:NAME"
        raise GameNotMade(problem, own_traceback(error, of_libraries=False)) from error
