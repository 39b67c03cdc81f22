"""Checks of a game's columns. Each check returns a fact (a number, its cause, one remedy), or None.

The caller says when a check applies: a run late in its training, `ludus doctor` after its steps at random.
"""

from collections.abc import Collection, Iterator, Mapping
from math import isnan
from typing import Any, Final, NamedTuple

from ludus.play.checks.influence import NO_SCORE, Score, action_names
from ludus.play.checks.observed import Observed
from ludus.play.checks.played import Episodes, Rewards
from ludus.protocol.spec import ActionSpec

LEAST_STEPS: Final = 1000
"""Fewest steps from which anything is concluded that did not happen."""
LONG_EPISODE: Final = 1000
LATE_EPISODE: Final = 300
"""Decisions of each agent without an end: at any time, and when half of a run is over."""
LEAST_EPISODES: Final = 20
LEAST_REVIEWS: Final = 3
LEAST_PAIRS: Final = 1500
MANY_REVIEWS: Final = 5
MANY_PAIRS: Final = 2500
"""Evidence on an ignored action: with an entropy near its maximum, and without."""
NEAR_MAXIMUM: Final = 0.9
"""Share of the possible entropy."""


class Fact(NamedTuple):
    """Something that a person should know (`ludus.schemas.Finding`)."""

    code: str
    message: str
    remedy: str
    figures: dict[str, Any]
    since: int | None = None
    """Step at which it began; None: when it was found."""


def endless(episodes: Episodes, step: int, agents: int, *, long: int, late: bool) -> Fact | None:
    """Check that episodes end. `long` decisions of all agents without an end are many; `late`: see `LATE_EPISODE`."""
    waited = step - episodes.last_end
    of_each = waited // max(agents, 1)
    is_long = waited >= long and of_each >= LONG_EPISODE
    if waited < LEAST_STEPS or not (is_long or (not episodes.count and late and of_each >= LATE_EPISODE)):
        return None
    since = f" since step {episodes.last_end:,}" if episodes.count else ""
    return Fact(
        "no_episode_ended",
        f"No episode has ended{since}: {waited:,} decisions, about {of_each:,} of each of {agents} agents.",
        "Let the game end its episodes (Gymnasium: return `terminated` or `truncated`), or set a limit on their "
        "length.",
        {"decisions": waited, "decisions_each": of_each, "agents": agents, "episodes": episodes.count},
        episodes.last_end,
    )


def scale_of_observations(observed: Observed, *, normalize: bool | None) -> Fact | None:
    """Check the size of observations. `normalize`: whether vectors are normalized; None: that is not known."""
    large, small = observed.large(vectors=not normalize), observed.small()
    whether = "unless" if normalize is None else "while"
    state = "true" if normalize is None else "false"
    if large is not None:
        return Fact(
            "observation_scale",
            f"{_sentence(large.words)} reaches {large.value:.3g}, and networks expect numbers near 1"
            + (f", {whether} network_settings.normalize is {state}." if large.rank == 1 else "."),
            "Set network_settings.normalize: true."
            if large.rank == 1
            else f"Divide {large.sensor} by about {large.value:.1g} in the game, which normalize does not do for it.",
            {"sensor": large.sensor, "element": large.place, "magnitude": large.value},
        )
    if small is not None and not normalize:
        return Fact(
            "observation_scale",
            f"No observation is beyond {small:.3g}, and networks expect numbers near 1, {whether} "
            f"network_settings.normalize is {state}.",
            "Set network_settings.normalize: true.",
            {"magnitude": small},
        )
    return None


def constant_observations(observed: Observed, *, flags: bool = True) -> Fact | None:
    """Check that observations change. Without `flags` elements that are a whole number may change later."""
    constant = observed.constant() if observed.samples >= LEAST_STEPS else []
    constant = [element for element in constant if flags or not element.place or not element.value.is_integer()]
    if not constant:
        return None
    what = "No observation has ever changed" if observed.is_blind() else "These observations have never changed"
    values = ", ".join(
        element.words if isnan(element.value) else f"{element.words} ({element.value:g})" for element in constant
    )
    return Fact(
        "observation_constant",
        f"{what} in {observed.samples:,} steps that were looked at: {values}.",
        "Let the game fill it in at each step, or leave it out of the observations.",
        {"elements": [[element.sensor, element.place] for element in constant], "samples": observed.samples},
    )


def constant_returns(episodes: Episodes, rewards: Rewards, *, late: bool, early: bool) -> Fact | None:
    """Check that episodes differ in what they earn; where none has ended and it is `late`, that rewards do.

    `early`: a rare reward may only not have been found yet.
    """
    figures: dict[str, Any] = {"episodes": episodes.count, "return": episodes.least}
    is_zero = episodes.least == 0 and rewards.least == rewards.greatest
    if not episodes.count and late and rewards.steps >= LEAST_STEPS and rewards.least == rewards.greatest:
        message = f"Every reward was {rewards.least:g} in {rewards.steps:,} steps that were looked at."
        figures = {"steps": rewards.steps, "reward": rewards.least}
    elif episodes.count < LEAST_EPISODES or early or episodes.least != episodes.greatest:
        return None
    elif is_zero:
        message = f"All {episodes.count:,} episodes had a return of exactly 0."
    elif episodes.shortest == episodes.longest:
        message = (
            f"All {episodes.count:,} episodes had the same return ({episodes.least:g}) and the same length "
            f"({episodes.longest:,} decisions)."
        )
    else:
        return None
    return Fact("returns_constant", message, "Let the game's reward depend on what the agent does.", figures)


def no_choice(steps: int, free: int) -> Fact | None:
    """Check that masks leave a choice, in `free` of these steps."""
    if steps < LEAST_STEPS or free:
        return None
    return Fact(
        "no_choice",
        f"The action mask left one choice alone in all {steps:,} steps that were looked at.",
        "Let the mask allow every choice that the game can carry out.",
        {"steps": steps},
    )


def ignored_actions(
    actions: ActionSpec, influence: Mapping[str, Score], shares: Mapping[str, float], *, improved: bool | None = None
) -> Fact | None:
    """Check that actions change what follows.

    `shares` are the entropies of branches as shares of what they could have; `improved`: whether returns are better
    than at the beginning.
    """
    names = action_names(actions)
    ignored = [name for name in names if _is_ignored(name, influence.get(name, Score()), shares.get(name), improved)]
    if not ignored:
        return None
    pairs = min(influence[name].pairs for name in ignored)
    what = "the action" if len(ignored) == len(names) else " and ".join(ignored)
    of_ignored = {name: shares[name] for name in ignored if name in shares}
    entropy = "".join(f"; the entropy of {name} is {share:.0%} of its maximum" for name, share in of_ignored.items())
    return Fact(
        "action_ignored",
        f"{_sentence(what)} changes nothing in what follows: in {pairs:,} steps the next observation, the reward and "
        f"the end did not depend on it{entropy}.",
        "Let the game use the action that it is given, or take it out of the action space.",
        {"ignored": ignored, "steps": pairs, "entropy_share": of_ignored},
    )


def _is_ignored(name: str, score: Score, share: float | None, improved: bool | None) -> bool:
    if score.joint >= NO_SCORE or score.reviews < LEAST_REVIEWS or score.pairs < LEAST_PAIRS:
        return False
    if name.startswith("continuous"):
        return improved is not True or score.pairs >= MANY_PAIRS
    if share is not None and share >= NEAR_MAXIMUM:
        return True
    return score.reviews >= MANY_REVIEWS and score.pairs >= MANY_PAIRS


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def holding(facts: Collection[Fact | None]) -> Iterator[Fact]:
    """Yield those that hold."""
    return (fact for fact in facts if fact is not None)
