"""Checks of the game: that episodes end, observations and rewards can be learned from, and actions count."""

from collections.abc import Collection, Iterator
from math import floor, log10
from typing import Final

from worker.trainer.health.facts import EXPLAINED_VARIANCE, VALUE_LOSS, Evidence, Fact
from worker.trainer.health.influence import NO_SCORE, Score, action_names

LEAST_STEPS: Final = 1000
"""Fewest steps from which anything is concluded."""
SUMMARIES: Final = 10
"""Periods without an ended episode, or with one and the same return."""
LONG_EPISODE: Final = 1000
LATE_EPISODE: Final = 300
"""Decisions of each agent without an end: at any time, and when half of the run is over."""
LEAST_EPISODES: Final = 20
SOME_PROGRESS: Final = 0.2
"""Share of `max_steps` after which equal returns are no longer a rare reward that was not found yet."""
LARGE_REWARD: Final = 100.0
LARGE_OFF_POLICY: Final = 1000.0
HUGE_REWARD: Final = 1e4
"""Sizes of rewards that critics do not learn: of PPO where it explains little, of SAC and DQN, and in any case."""
POORLY_EXPLAINED: Final = 0.3
"""Explained variance below which a critic does not keep up with large rewards."""
SMALL_RETURN: Final = 1e-3
SHORT_GAMMA: Final = 0.8
SHORT_HORIZONS: Final = 5.0
HORIZONS: Final = 20.0
"""Horizons of `gamma` between two rewards: for a gamma below `SHORT_GAMMA`, and for others."""
LEAST_REVIEWS: Final = 3
LEAST_PAIRS: Final = 1500
MANY_REVIEWS: Final = 5
MANY_PAIRS: Final = 2500
"""Evidence on an ignored action: with an entropy near its maximum, and without."""
NEAR_MAXIMUM: Final = 0.9
"""Share of the possible entropy."""
LEAST_MATCHES: Final = 50
MOSTLY: Final = 0.6
"""Share of wins that two sides of fair matches cannot both have."""


def episodes_end(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that episodes end."""
    episodes = evidence.played.episodes
    waited = evidence.step - episodes.last_end
    each = waited // max(evidence.agents, 1)
    is_long = waited >= SUMMARIES * evidence.period and each >= LONG_EPISODE
    if waited >= LEAST_STEPS and (is_long or (not episodes.count and evidence.is_late and each >= LATE_EPISODE)):
        since = f" since step {episodes.last_end:,}" if episodes.count else ""
        yield Fact(
            "no_episode_ended",
            f"No episode has ended{since}: {waited:,} decisions, about {each:,} of each of {evidence.agents} agents.",
            "Let the game end its episodes (Gymnasium: return `terminated` or `truncated`), or set a limit on their "
            "length.",
            {"decisions": waited, "decisions_each": each, "agents": evidence.agents, "episodes": episodes.count},
            episodes.last_end,
        )


def observations(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check the size of observations, and that they change."""
    observed, normalize = evidence.observed, evidence.config.network_settings.normalize
    large, small = observed.large(vectors=not normalize), observed.small()
    if large is not None:
        yield Fact(
            "observation_scale",
            f"{_sentence(large.words)} reaches {large.value:.3g}, and networks expect numbers near 1"
            + (", while network_settings.normalize is false." if large.rank == 1 else "."),
            "Set network_settings.normalize: true."
            if large.rank == 1
            else f"Divide {large.sensor} by about {large.value:.1g} in the game, which normalize does not do for it.",
            {"sensor": large.sensor, "element": large.place, "magnitude": large.value},
        )
    elif small is not None and not normalize:
        yield Fact(
            "observation_scale",
            f"No observation is beyond {small:.3g}, and networks expect numbers near 1, while "
            "network_settings.normalize is false.",
            "Set network_settings.normalize: true.",
            {"magnitude": small},
        )
    constant = observed.constant() if evidence.is_late and observed.samples >= LEAST_STEPS else []
    if constant:
        what = "No observation has ever changed" if observed.is_blind() else "These observations have never changed"
        values = ", ".join(f"{one.words} ({one.value:g})" if one.value == one.value else one.words for one in constant)
        yield Fact(
            "observation_constant",
            f"{what} in {observed.samples:,} steps that were looked at: {values}.",
            "Let the game fill it in at each step, or leave it out of the observations.",
            {"elements": [[one.sensor, one.place] for one in constant], "samples": observed.samples},
        )


def returns(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that episodes differ in what they earn; where none has ended, that rewards do."""
    episodes, rewards = evidence.played.episodes, evidence.played.rewards
    if evidence.strength is None or evidence.is_initialized or evidence.played.matches.count:
        return
    waits = max(SUMMARIES * evidence.period, SOME_PROGRESS * evidence.config.max_steps)
    is_early = not evidence.ended and evidence.step < waits
    figures: dict[str, object] = {"episodes": episodes.count, "return": episodes.least}
    is_zero = episodes.least == 0 and rewards.least == rewards.greatest
    if not episodes.count and evidence.is_late and rewards.steps >= LEAST_STEPS and rewards.least == rewards.greatest:
        message = f"Every reward was {rewards.least:g} in {rewards.steps:,} steps that were looked at."
        figures = {"steps": rewards.steps, "reward": rewards.least}
    elif episodes.count < LEAST_EPISODES or is_early or episodes.least != episodes.greatest:
        return
    elif is_zero:
        message = f"All {episodes.count:,} episodes had a return of exactly 0."
    elif episodes.shortest == episodes.longest:
        message = (
            f"All {episodes.count:,} episodes had the same return ({episodes.least:g}) and the same length "
            f"({episodes.longest:,} decisions)."
        )
    else:
        return
    yield Fact("returns_constant", message, "Let the game's reward depend on what the agent does.", figures)


def reward_size(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that rewards have a size that a critic can learn."""
    strength, played, updates = evidence.strength, evidence.played, evidence.updates
    if strength is None or "returns_constant" in found:
        return
    size = played.rewards.size * abs(strength)
    explained = updates.means.get(EXPLAINED_VARIANCE)
    poorly = explained is not None and explained < POORLY_EXPLAINED
    limit = LARGE_OFF_POLICY if explained is None else LARGE_REWARD if poorly else HUGE_REWARD
    greatest = max(abs(played.episodes.least), abs(played.episodes.greatest)) * abs(strength)
    if size >= limit and updates.count:
        told = "" if explained is None else f" and explains {explained:.2g} of the variance of returns"
        loss = updates.means.get(VALUE_LOSS, 0.0)
        factor = 10.0 ** -floor(log10(size))
        yield Fact(
            "reward_scale",
            f"Rewards are about {size:.2g} in size, too large for the critic, whose loss is {loss:.2g}{told}.",
            f"Multiply rewards by {factor:g}: set reward_signals.extrinsic.strength: {strength * factor:g}.",
            {"reward": size, "factor": factor, "value_loss": loss, "explained_variance": explained},
        )
    elif played.episodes.count >= LEAST_EPISODES and 0 < greatest < SMALL_RETURN and evidence.is_late:
        factor = 10.0 ** -floor(log10(greatest))
        yield Fact(
            "reward_scale",
            f"No return of {played.episodes.count:,} episodes is beyond {greatest:.2g}, which is less than the "
            "error of the critic.",
            f"Multiply rewards by {factor:g}: set reward_signals.extrinsic.strength: {strength * factor:g}.",
            {"return": greatest, "factor": factor},
        )


def horizon(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that gamma looks as far ahead as rewards are away."""
    extrinsic, rewards = evidence.config.reward_signals.extrinsic, evidence.played.rewards
    if (
        extrinsic is None
        or extrinsic.gamma >= 1
        or rewards.steps < LEAST_STEPS
        or rewards.events < LEAST_EPISODES
        or "returns_constant" in found
    ):
        return
    gamma, gap = extrinsic.gamma, rewards.steps / rewards.events
    ahead = 1 / (1 - gamma)
    is_short = gamma < SHORT_GAMMA and gap > SHORT_HORIZONS * ahead
    if is_short or (gap > HORIZONS * ahead and evidence.is_late and evidence.improved is False):
        wanted = 1 - 10.0 ** floor(log10(1 / gap))
        yield Fact(
            "gamma_short",
            f"What tells good from bad (a reward, or an end) comes about every {gap:.0f} decisions, and gamma "
            f"{gamma:g} looks about {ahead:.1f} decisions ahead.",
            f"Set reward_signals.extrinsic.gamma: {max(wanted, 0.99):g}.",
            {"gamma": gamma, "horizon": round(ahead, 2), "decisions_between_rewards": round(gap, 1)},
        )


def actions(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that the game does something with the actions."""
    looked_at = evidence.played.rewards.steps
    if evidence.is_late and looked_at >= LEAST_STEPS and not evidence.free:
        yield Fact(
            "no_choice",
            f"The action mask left one choice alone in all {looked_at:,} steps that were looked at.",
            "Let the mask allow every choice that the game can carry out.",
            {"steps": looked_at},
        )
    if evidence.config.self_play is not None or not evidence.is_late or evidence.observed.is_blind():
        return
    names = action_names(evidence.spec.actions)
    ignored = [name for name in names if _is_ignored(evidence, name, evidence.influence.get(name, Score()))]
    if not ignored:
        return
    pairs = min(evidence.influence[name].pairs for name in ignored)
    what = "the action" if len(ignored) == len(names) else " and ".join(ignored)
    shares = {name: evidence.divergence.newest[name] for name in ignored if name in evidence.divergence.newest}
    entropy = "".join(f"; the entropy of {name} is {share:.0%} of its maximum" for name, share in shares.items())
    yield Fact(
        "action_ignored",
        f"{_sentence(what)} changes nothing in what follows: in {pairs:,} steps the next observation, the reward and "
        f"the end did not depend on it{entropy}.",
        "Let the game use the action that it is given, or take it out of the action space.",
        {"ignored": ignored, "steps": pairs, "entropy_share": shares},
    )


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _is_ignored(evidence: Evidence, name: str, score: Score) -> bool:
    if score.joint >= NO_SCORE or score.reviews < LEAST_REVIEWS or score.pairs < LEAST_PAIRS:
        return False
    if name.startswith("continuous"):
        return evidence.improved is not True or score.pairs >= MANY_PAIRS
    share = evidence.divergence.newest.get(name)
    if share is not None and share >= NEAR_MAXIMUM:
        return True
    return score.reviews >= MANY_REVIEWS and score.pairs >= MANY_PAIRS


def matches(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that matches of self-play are won by one side."""
    played, self_play = evidence.played.matches, evidence.config.self_play
    if self_play is None or played.count < LEAST_MATCHES:
        return
    shares = played.won / played.count, played.opponents_won / max(played.opponents, 1)
    if played.opponents >= LEAST_MATCHES and min(shares) > MOSTLY:
        yield Fact(
            "both_teams_win",
            f"Both sides win the same matches: the team that learns has won {shares[0]:.0%} of {played.count:,}, its "
            f"opponents {shares[1]:.0%}, so that ratings rise for ever.",
            "Let the last reward of an episode be above 0 for the winner alone, and below 0 for the loser.",
            {"matches": played.count, "won": round(shares[0], 3), "opponents_won": round(shares[1], 3)},
        )
    ignored = not played.rated and played.truncated == played.count and self_play.interrupted_games == "ignore"
    why = (
        " A time limit ended all of them, and self_play.interrupted_games: ignore leaves such matches unrated."
        if ignored
        else ""
    )
    figures = {"matches": played.count, "drawn": played.drawn, "truncated": played.truncated, "rated": played.rated}
    is_early = not (evidence.ended or evidence.step >= SOME_PROGRESS * evidence.config.max_steps)
    if played.drawn == played.count and not is_early:
        yield Fact(
            "matches_drawn",
            f"All {played.count:,} matches were drawn.{why}",
            "Let the last reward of an episode be above 0 for the winner, and below 0 for the loser"
            + (", also when the time is up." if ignored else "."),
            figures,
        )
    elif ignored and not is_early:
        yield Fact(
            "matches_unrated",
            f"None of {played.count:,} matches is rated.{why}",
            "Set self_play.interrupted_games: draw, or let the game's rules end its matches.",
            figures,
        )
