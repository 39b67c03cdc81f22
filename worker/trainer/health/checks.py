"""The checks of a behavior's health: each yields the facts that hold now, with a number, a cause and one remedy.

Their order says what is to blame: a check sees the codes that were found before it, and is silent where one of them
explains what it would report. docs/health.md lists the codes with their thresholds, and why they are these.
"""

from collections.abc import Callable, Collection, Iterator
from math import floor, log10
from typing import Final

from ludus.config.behavior import POCAConfig, PPOConfig
from ludus.config.hyperparameters import OnPolicyHyperparameters, SACHyperparameters
from ludus.config.rewards import GAILConfig
from ludus.config.trainer import TrainerConfig
from ludus.play.checks.facts import (
    LEAST_EPISODES,
    LEAST_STEPS,
    Fact,
    constant_observations,
    constant_returns,
    endless,
    holding,
    ignored_actions,
    no_choice,
    scale_of_observations,
)
from server.config.rules import FAST, futile
from worker.learning.algorithms.ppo_stats import ACTING_KL, STALE_SHARE
from worker.trainer.health.divergence import KL_METRIC
from worker.trainer.health.evidence import EXPLAINED_VARIANCE, VALUE_LOSS, Evidence

SUMMARIES: Final = 10
"""Periods without an ended episode, or with one and the same return."""
SOME_PROGRESS: Final = 0.2
"""Share of `max_steps` after which equal returns are no longer a rare reward that was not found yet."""
LARGE_REWARD: Final = 100.0
LARGE_OFF_POLICY: Final = 1000.0
HUGE_REWARD: Final = 1e4
"""Sizes of rewards that critics do not learn: of PPO where it explains little, off policy, and in any case."""
POORLY_EXPLAINED: Final = 0.3
"""Explained variance below which a critic does not keep up with large rewards."""
SMALL_RETURN: Final = 1e-3
SHORT_GAMMA: Final = 0.8
SHORT_HORIZONS: Final = 5.0
HORIZONS: Final = 20.0
"""Horizons of `gamma` between two rewards: for a gamma below `SHORT_GAMMA`, and for others."""
LEAST_MATCHES: Final = 50
MOSTLY: Final = 0.6
"""Share of wins that two sides of fair matches cannot both have."""


def episodes_end(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that episodes end."""
    long, late = SUMMARIES * evidence.period, evidence.is_late
    yield from holding([endless(evidence.episodes, evidence.step, evidence.agents, long=long, late=late)])


def observations(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check the size of observations, and that they change."""
    observed = evidence.observed
    scale = scale_of_observations(observed, normalize=evidence.config.network_settings.normalize)
    yield from holding([scale, constant_observations(observed) if evidence.is_late else None])


def returns(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that episodes differ in what they earn; where none has ended, that rewards do."""
    episodes, rewards = evidence.episodes, evidence.rewards
    if evidence.strength is None or evidence.is_initialized or evidence.matches.count:
        return
    waits = max(SUMMARIES * evidence.period, SOME_PROGRESS * evidence.config.max_steps)
    early = not evidence.ended and evidence.step < waits
    yield from holding([constant_returns(episodes, rewards, late=evidence.is_late, early=early)])


def reward_size(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that rewards have a size that a critic can learn."""
    strength, episodes, updates = evidence.strength, evidence.episodes, evidence.updates
    extrinsic = evidence.config.reward_signals.extrinsic
    is_scaled = extrinsic is not None and extrinsic.normalize_reward
    if strength is None or is_scaled or "returns_constant" in found:
        return
    size = evidence.rewards.size * abs(strength)
    explained = updates.means.get(EXPLAINED_VARIANCE)
    poorly = explained is not None and explained < POORLY_EXPLAINED
    limit = LARGE_OFF_POLICY if explained is None else LARGE_REWARD if poorly else HUGE_REWARD
    greatest = max(abs(episodes.least), abs(episodes.greatest)) * abs(strength)
    if size >= limit and updates.count:
        explains = "" if explained is None else f" and explains {explained:.2g} of the variance of returns"
        loss = updates.means.get(VALUE_LOSS, 0.0)
        factor = 10.0 ** -floor(log10(size))
        yield Fact(
            "reward_scale",
            f"Rewards are about {size:.2g} in size, too large for the critic, whose loss is {loss:.2g}{explains}.",
            f"Multiply rewards by {factor:g}: set reward_signals.extrinsic.strength: {strength * factor:g}.",
            {"reward": size, "factor": factor, "value_loss": loss, "explained_variance": explained},
        )
    elif episodes.count >= LEAST_EPISODES and 0 < greatest < SMALL_RETURN and evidence.is_late:
        factor = 10.0 ** -floor(log10(greatest))
        yield Fact(
            "reward_scale",
            f"No return of {episodes.count:,} episodes is beyond {greatest:.2g}, which is less than the "
            "error of the critic.",
            f"Multiply rewards by {factor:g}: set reward_signals.extrinsic.strength: {strength * factor:g}.",
            {"return": greatest, "factor": factor},
        )


def horizon(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that gamma looks as far ahead as rewards are away."""
    extrinsic, rewards = evidence.config.reward_signals.extrinsic, evidence.rewards
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
        long_enough = 1 - 10.0 ** floor(log10(1 / gap))
        yield Fact(
            "gamma_short",
            f"What tells good from bad (a reward, or an end) comes about every {gap:.0f} decisions, and gamma "
            f"{gamma:g} looks about {ahead:.1f} decisions ahead.",
            f"Set reward_signals.extrinsic.gamma: {max(long_enough, 0.99):g}.",
            {"gamma": gamma, "horizon": round(ahead, 2), "decisions_between_rewards": round(gap, 1)},
        )


def actions(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that the game does something with the actions."""
    if evidence.is_late:
        yield from holding([no_choice(evidence.rewards.steps, evidence.free)])
    if evidence.config.self_play is not None or not evidence.is_late or evidence.observed.is_blind():
        return
    shares, improved = evidence.divergence.newest, evidence.improved
    yield from holding([ignored_actions(evidence.spec.actions, evidence.influence, shares, improved=improved)])


def matches(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check that matches of self-play are won by one side."""
    played, self_play = evidence.matches, evidence.config.self_play
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
    why = " A time limit ended all of them, and self_play.interrupted_games: ignore leaves such matches unrated."
    why = why if ignored else ""
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


LEAST_UPDATES: Final = 10
USUAL_RATE: Final = 3e-4
"""Learning rate from which one is not too small."""
UNMOVED: Final = 1e-6
"""KL divergence, in nats, that no update of a run has reached whose learning rate is too small."""
AT_MAXIMUM: Final = 0.98
"""Share of the possible entropy."""
STRONG_BETA: Final = 0.05
WIDE_SIGMA: Final = 2.0
CERTAIN: Final = 0.05
PLATEAU_STEPS: Final = 10_000
PLATEAU_EPISODES: Final = 100
RARE: Final = 0.05
"""Share of the episodes with a return other than 0 below which the reward is rare."""


def divergence(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that updates leave the policy near the one that acted, and able to explore."""
    config, signs, lost = evidence.config, evidence.divergence.signs, evidence.divergence.lost
    rate = config.hyperparameters.learning_rate
    if "observation_scale" in found and rate <= FAST:
        return
    kl = signs.get("KL")
    since = min((sign.since for sign in lost.values() if sign.since is not None), default=None)
    solved = evidence.improved is True
    caused = kl is not None and kl.began is not None and since is not None and kl.began <= since and not solved
    if kl is not None and kl.began is not None and (kl.since is not None or caused):
        after = f" Since step {since:,} it hardly explores: {_values(evidence)}." if caused else ""
        yield Fact(
            "kl_exploded",
            f"One update moved the policy too far from the one that acted: {kl.latest}, where healthy updates stay "
            f"below 0.03.{after}",
            f"Lower hyperparameters.learning_rate ({rate:g}) to about {min(rate / 10, USUAL_RATE):.1g}.",
            {"kl": kl.value, "learning_rate": rate},
            kl.began,
        )
    elif since is not None and not solved:
        key = "init_entcoef" if isinstance(config.hyperparameters, SACHyperparameters) else "beta"
        if isinstance(config, PPOConfig | POCAConfig):
            key += f" ({config.hyperparameters.beta:g})"
        yield Fact(
            "entropy_collapsed",
            f"The policy hardly explores any more, and returns are no better than at the beginning: "
            f"{_values(evidence)}.",
            f"Raise hyperparameters.{key}, and go on from an earlier checkpoint (`ludus run branch`).",
            {"measures": {name: sign.value for name, sign in lost.items()}},
            since,
        )


def _values(evidence: Evidence) -> str:
    return "; ".join(sign.latest for sign in evidence.divergence.lost.values())


def agreement(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that the policy that acts is the one that learns, and that its steps come in time to be learned from."""
    updates, hyper = evidence.updates, evidence.config.hyperparameters
    if updates.disagrees and not {"observation_scale", "kl_exploded"} & set(found):  # rounding of huge logits
        kl = updates.means[ACTING_KL]
        yield Fact(
            "actors_disagree",
            f"Collectors do not act with the policy that learns: of the same steps and version {ACTING_KL} is {kl:.2g} "
            "nats, where rounding costs less than 1e-6.",
            "Run one release on workers and edge collectors; if it stays, report it with the run's configuration.",
            {"kl": kl},
        )
    if updates.drops_steps and isinstance(hyper, OnPolicyHyperparameters):
        share, limit = updates.means[STALE_SHARE], hyper.max_policy_lag
        what = (
            f"Nothing of the newest {updates.dropped_rounds:,} rounds was learned from"
            if updates.dropped_rounds > 1
            else f"{share:.0%} of the newest steps were not learned from"
        )
        yield Fact(
            "steps_stale",
            f"{what}: the policies that took them were more than max_policy_lag ({limit}) versions old.",
            f"Raise hyperparameters.max_policy_lag to {2 * (limit or 0) + 1}, and set vtrace: true.",
            {"stale_share": round(share, 3), "max_policy_lag": limit, "dropped_rounds": updates.dropped_rounds},
        )


def learning_rate(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that updates change the policy."""
    updates, rate = evidence.updates, evidence.config.hyperparameters.learning_rate
    if (
        not {"returns_constant", "no_choice"} & set(found)
        and rate < USUAL_RATE
        and isinstance(evidence.config, PPOConfig | POCAConfig)
        and updates.count >= LEAST_UPDATES
        and updates.greatest_kl < UNMOVED
    ):
        yield Fact(
            "policy_unmoved",
            f"No update has changed the policy: {KL_METRIC} was at most {updates.greatest_kl:.2g} nats in "
            f"{updates.count:,} updates, where usual are 0.001 to 0.03.",
            f"Raise hyperparameters.learning_rate ({rate:g}) to about {USUAL_RATE:g}.",
            {"kl": updates.greatest_kl, "updates": updates.count, "learning_rate": rate},
        )


def entropy_bonus(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that the entropy bonus leaves room for rewards."""
    config, newest = evidence.config, evidence.divergence.newest
    explained = {"returns_constant", "action_ignored", "policy_unmoved", "reward_scale", "observation_scale"}
    if (
        not isinstance(config, PPOConfig | POCAConfig)
        or config.hyperparameters.beta < STRONG_BETA
        or not evidence.is_late
        or evidence.improved is True
        or evidence.updates.count < LEAST_UPDATES
        or explained & set(found)
    ):
        return
    high = {name: value for name, value in newest.items() if name.startswith("branch") and value >= AT_MAXIMUM}
    wide = newest.get("sigma", 0.0)
    if high or wide >= WIDE_SIGMA:
        what = "; ".join(f"the entropy of {name} is {value:.0%} of its maximum" for name, value in high.items())
        beta = config.hyperparameters.beta
        yield Fact(
            "entropy_bonus_large",
            "The policy still acts at random: "
            + (what or f"the standard deviation of continuous actions is {wide:.2g}")
            + f". The bonus for it (beta {beta:g}) outweighs the rewards.",
            "Set hyperparameters.beta: 0.005.",
            {"beta": beta, "entropy_share": high, "sigma": wide},
        )


def imitation(evidence: Evidence, _: Collection[str]) -> Iterator[Fact]:
    """Check GAIL: the horizon of its rewards, and its discriminator."""
    signals = {
        name: signal for name, signal in evidence.config.reward_signals.active() if isinstance(signal, GAILConfig)
    }
    episodes, means = evidence.episodes, evidence.updates.means
    lengths = [*evidence.lengths, *([episodes.shortest, episodes.longest] if episodes.count else [])]
    least, greatest = min(lengths, default=0), max(lengths, default=0)
    failing = evidence.is_late and evidence.improved is not True
    if failing and any(not signal.ignore_done for signal in signals.values()) and least != greatest:
        yield Fact(
            "gail_variable_horizon",
            f"Episodes differ in length ({least:,} to {greatest:,} decisions, of the game and of demonstrations "
            "together), and GAIL pays for every step that is survived: the policy may learn to live long, or to put "
            "off the end, without resembling the expert.",
            "Give all episodes one length, or set reward_signals.gail.ignore_done: true.",
            {"lengths": [least, greatest]},
        )
    for name, signal in signals.items():
        label = name.replace("_", " ").replace("gail", "GAIL")
        policy, expert = means.get(f"Policy/{label} Policy Estimate"), means.get(f"Policy/{label} Expert Estimate")
        if policy is None or expert is None or evidence.updates.count < LEAST_UPDATES:
            continue
        if failing and policy < CERTAIN and expert > 1 - CERTAIN:
            yield Fact(
                "gail_discriminator_certain",
                f"GAIL's discriminator always tells the policy from the expert ({policy:.2g} and {expert:.2g} of "
                "certainty that it is the expert), so that its reward does not say what would be better.",
                f"Lower reward_signals.{name}.learning_rate ({signal.learning_rate:g}), or set use_vail: true.",
                {"policy_estimate": policy, "expert_estimate": expert, "learning_rate": signal.learning_rate},
            )


def plateau(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that returns have risen, where nothing else explains why not."""
    episodes = evidence.episodes
    explained = set(found) - {"no_summary", "updates_slow", "observation_constant"}
    if (
        not explained
        and not evidence.observed.is_blind()
        and evidence.is_late
        and evidence.improved is False
        and evidence.strength is not None
        and evidence.step >= PLATEAU_STEPS
        and episodes.count >= PLATEAU_EPISODES
        and evidence.updates.count >= LEAST_UPDATES
        and evidence.config.self_play is None
        and not evidence.is_initialized
    ):
        first = sum(episodes.first) / len(episodes.first)
        is_rare = episodes.paid < RARE * episodes.count
        yield Fact(
            "plateau",
            "Nothing was learned: "
            + (
                f"only {episodes.paid:,} of {episodes.count:,} episodes had a return other than 0."
                if is_rare
                else f"the mean return of the newest {len(episodes.newest)} episodes is {episodes.mean:.4g}, that of "
                f"the first {len(episodes.first)} was {first:.4g}."
            ),
            "Reward steps on the way, or add reward_signals.curiosity or demonstrations."
            if is_rare
            else "Look whether the observations show what the reward depends on (`ludus play` with a scripted player "
            "is a yardstick).",
            {"newest": episodes.mean, "first": first, "episodes": episodes.count, "paid": episodes.paid},
        )


Check = Callable[[Evidence, Collection[str]], Iterator[Fact]]


def facts_of(evidence: Evidence) -> dict[str, Fact]:
    """Return the facts that hold now, by code."""
    facts: dict[str, Fact] = {}
    for check in CHECKS:
        for fact in check(evidence, facts.keys()):
            facts[fact.code] = fact
    return facts


def from_configuration(config: TrainerConfig) -> list[Fact]:
    """Return what the configuration of a behavior alone tells."""
    return [Fact(doubt.code, doubt.message, doubt.remedy, doubt.figures) for doubt in futile(config)]


CHECKS: Final[tuple[Check, ...]] = (
    lambda evidence, _: iter(from_configuration(evidence.config)),
    episodes_end,
    observations,
    returns,
    reward_size,
    horizon,
    actions,
    divergence,
    agreement,
    learning_rate,
    entropy_bonus,
    imitation,
    matches,
    plateau,
)
