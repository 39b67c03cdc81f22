"""The checks of a behavior's health: each yields the facts that hold now, with a number, a cause and one remedy.

Their order says what is to blame: a check sees the codes that were found before it, and is silent where one of them
explains what it would report. docs/health.md lists the codes with their thresholds, and why they are these.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from ludus.config.behavior import TrainerConfig
from server.config.rules import futile
from worker.trainer.health import game, learning
from worker.trainer.health.facts import Evidence, Fact

Check = Callable[[Evidence, Collection[str]], Iterator[Fact]]


def facts_of(evidence: Evidence) -> dict[str, Fact]:
    """Return the facts that hold now, by code."""
    found: dict[str, Fact] = {}
    for check in CHECKS:
        for fact in check(evidence, found.keys()):
            found[fact.code] = fact
    return found


def from_configuration(config: TrainerConfig) -> list[Fact]:
    """Return what the configuration of a behavior alone tells."""
    return [Fact(one.code, one.message, one.remedy, one.figures) for one in futile(config)]


def configuration(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Yield what the configuration alone tells."""
    yield from from_configuration(evidence.config)


CHECKS: Final[tuple[Check, ...]] = (
    configuration,
    game.episodes_end,
    game.observations,
    game.returns,
    game.reward_size,
    game.horizon,
    game.actions,
    learning.divergence,
    learning.learning_rate,
    learning.entropy_bonus,
    learning.imitation,
    game.matches,
    learning.plateau,
)
