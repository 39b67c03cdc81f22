"""Simulators made from environments of Gymnasium, games of PettingZoo, and Python games of one's own.

Each library's adapter is a plug-in (`ludus.adapters`): an `Adapter`, which says how its games are made. This module and
those that entry points lead to import no library of games.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Adapter:
    """How the games of a library become simulators: `ludus simulate NAME:GAME`."""

    factory: str
    """`module:function` that makes games: `factory(name, count, *, arguments, behavior, seed, seed_parameter)`, and
    with `has_teams` also `separate` and `teams`, as in `ludus.adapters.python.make_simulation`. It returns a
    `Simulation`, and raises `ludus.sdk.crashes.GameNotMade`, and ValueError for games that have no counterpart in a
    behavior.
    """
    example: str
    """The name of a game, as in an error that says how to write one."""
    form: str = "GAME"
    """The form of the names of its games."""
    accepts: str = ""
    """`module:function` that says whether a text without the adapter's name is a game of it; empty: none is."""
    modules: tuple[str, ...] = ()
    """Modules of the library, without which no game can be made."""
    packages: str = ""
    """The packages that have these modules: `pip install` gets them as arguments."""
    has_teams: bool = True
    """Whether its games may have several players."""
    vector_factory: str = ""
    """`module:function` that makes vector environments where `autoreset` tells how their episodes begin: it takes that
    in place of `separate` and `teams`, as in `ludus.adapters.vector.make_simulation`; empty: its games are none.
    """
