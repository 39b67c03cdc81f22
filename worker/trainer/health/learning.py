"""Checks of learning: that updates change the policy, and not too much, and that returns rise."""

from collections.abc import Collection, Iterator
from typing import Final

from ludus.config.behavior import POCAConfig, PPOConfig, SACConfig
from ludus.config.rewards import GAILConfig
from server.config.rules import FAST
from worker.trainer.health.divergence import KL_METRIC
from worker.trainer.health.facts import Evidence, Fact

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
        key, value = ("init_entcoef", "") if isinstance(config, SACConfig) else ("beta", _beta(config))
        yield Fact(
            "entropy_collapsed",
            f"The policy hardly explores any more, and returns are no better than at the beginning: "
            f"{_values(evidence)}.",
            f"Raise hyperparameters.{key}{value}, and go on from an earlier checkpoint (`ludus run branch`).",
            {"measures": {name: sign.value for name, sign in lost.items()}},
            since,
        )


def _values(evidence: Evidence) -> str:
    return "; ".join(sign.latest for sign in evidence.divergence.lost.values())


def _beta(config: object) -> str:
    return f" ({config.hyperparameters.beta:g})" if isinstance(config, PPOConfig | POCAConfig) else ""


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
    signals = [(name, one) for name, one in evidence.config.reward_signals.active() if isinstance(one, GAILConfig)]
    episodes, means = evidence.played.episodes, evidence.updates.means
    known = [*evidence.lengths, *([episodes.shortest, episodes.longest] if episodes.count else [])]
    failing = evidence.is_late and evidence.improved is not True
    if failing and any(not one.ignore_done for _, one in signals) and known and min(known) != max(known):
        yield Fact(
            "gail_variable_horizon",
            f"Episodes differ in length ({min(known):,} to {max(known):,} decisions, of the game and of demonstrations "
            "together), and GAIL pays for every step that is survived: the policy may learn to live long, or to put "
            "off the end, without resembling the expert.",
            "Give all episodes one length, or set reward_signals.gail.ignore_done: true.",
            {"lengths": [min(known), max(known)]},
        )
    for name, one in signals:
        label = name.replace("_", " ").replace("gail", "GAIL")
        policy, expert = means.get(f"Policy/{label} Policy Estimate"), means.get(f"Policy/{label} Expert Estimate")
        if policy is None or expert is None or evidence.updates.count < LEAST_UPDATES:
            continue
        if failing and policy < CERTAIN and expert > 1 - CERTAIN:
            yield Fact(
                "gail_discriminator_certain",
                f"GAIL's discriminator always tells the policy from the expert ({policy:.2g} and {expert:.2g} of "
                "certainty that it is the expert), so that its reward does not say what would be better.",
                f"Lower reward_signals.{name}.learning_rate ({one.learning_rate:g}), or set use_vail: true.",
                {"policy_estimate": policy, "expert_estimate": expert, "learning_rate": one.learning_rate},
            )


def plateau(evidence: Evidence, found: Collection[str]) -> Iterator[Fact]:
    """Check that returns have risen, where nothing else explains why not."""
    episodes = evidence.played.episodes
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
