"""Makes games: the errors of their code become one sentence, with the traceback of the game's own frames beside it."""

from collections.abc import Callable
from typing import Final, TypeVar

from ludus.sdk.crashes import last_words, own_traceback

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
