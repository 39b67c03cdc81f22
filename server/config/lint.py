"""Warnings about legal configurations that are probably not meant so. They do not stop a run."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from server.config.behavior import POCAConfig, PPOConfig, ReinforcementConfig, TrainerConfig
from server.config.document import Path
from server.config.hyperparameters import OffPolicyHyperparameters
from server.config.problems import join_path, show
from server.config.run import CheckpointSettings, RunConfig
from server.config.selfplay import SelfPlaySettings
from server.config.values import NAME
from server.kit.errors import Problem

Finding: TypeAlias = tuple[Path, str, str]
"""Path, code and message."""

MAX_TIME_SCALE: Final = 100.0
"""Of Unity's engine."""

_SAMPLES: Final = (
    "has no effect under `{}`, which imitates `behavioral_cloning.num_epoch` minibatches per gradient step; remove it"
)
_STALE: Final = (
    "is not advised under `{}`: its replay buffer keeps games against opponents that have changed since, and learns "
    "from them; take `ppo` or `poca`"
)
_NO_KL: Final = "has no effect under `{}`, whose updates measure no KL divergence; remove it"
_AGAINST_ITSELF: Final = (
    "with 1 every opponent is a copy of the newest policy, and a match against a copy of itself does not change a "
    "policy's rating: where all teams share this behavior, `Self-play/ELO` is constant. Below 1 snapshots are "
    "opponents, too"
)
FAST: Final = 0.03
"""Learning rates above this are doubted: three times the largest that is usual. PPO's policies and critics saturate
within an update or a few, at 0.1 as at 1, and from then on losses and gradients are small: no guard can see it."""


def warnings_of(config: RunConfig) -> list[Problem]:
    """Return the warnings about a resolved configuration, in its order."""
    found = [
        ((*path, *below), code, message)
        for path, section in config.trainers().items()
        for below, code, message in _about(section)
    ]
    found += [*_about_builds(config), *_about_parameters(config), *_about_checkpoints(config.checkpoint_settings)]
    return [Problem(join_path(path), code, message) for path, code, message in found]


def _about(section: TrainerConfig) -> Iterator[Finding]:
    """Yield advice with paths below the section."""
    rates = {"learning_rate": section.hyperparameters.learning_rate}
    if isinstance(section, PPOConfig):
        rates["critic_learning_rate"] = section.hyperparameters.critic_learning_rate or 0.0
    for key, rate in rates.items():
        if rate > FAST:
            yield ("hyperparameters", key), "doubtful", _high_learning_rate(rate)
    if isinstance(section, ReinforcementConfig) and section.self_play is not None:
        yield from _about_self_play(section.self_play, section.max_steps)
    match section:
        case ReinforcementConfig(hyperparameters=OffPolicyHyperparameters(), trainer_type=trainer):
            if section.self_play is not None:
                yield ("self_play",), "doubtful", _STALE.format(trainer)
            if section.behavioral_cloning is not None and section.behavioral_cloning.samples_per_update:
                yield ("behavioral_cloning", "samples_per_update"), "no_effect", _SAMPLES.format(trainer)
            if section.divergence.stop_kl_above is not None:
                yield ("divergence", "stop_kl_above"), "no_effect", _NO_KL.format(trainer)
        case POCAConfig():
            for name, _ in section.reward_signals.active():
                if name != "extrinsic":
                    yield ("reward_signals", name.partition("_")[0]), "doubtful", _own_reward_with_poca(name)


def _about_self_play(self_play: SelfPlaySettings, max_steps: int) -> Iterator[Finding]:
    ratio = self_play.play_against_latest_model_ratio
    findings = []
    if not 0 <= ratio <= 1:
        findings.append(f"is a probability, but {ratio:g} is not between 0 and 1; the nearer of the two is meant")
    if ratio >= 1:
        findings.append(_AGAINST_ITSELF)
    if findings:
        yield ("self_play", "play_against_latest_model_ratio"), "doubtful", "; ".join(findings)
    if self_play.team_change > max_steps:
        message = f"is {self_play.team_change}, above max_steps ({max_steps}), so that only the first team ever learns"
        yield ("self_play", "team_change"), "doubtful", message


def _about_builds(config: RunConfig) -> Iterator[Finding]:
    if config.engine_settings.time_scale > MAX_TIME_SCALE:
        message = f"is above {MAX_TIME_SCALE:g}, the most that Unity takes"
        yield ("engine_settings", "time_scale"), "doubtful", message


def _about_parameters(config: RunConfig) -> Iterator[Finding]:
    for name, lessons in config.lessons().items():
        path = ("environment_parameters", name, "curriculum", len(lessons) - 1, "completion_criteria")
        criteria = lessons[-1].completion_criteria
        if criteria is not None and criteria.fall_back_below is None:
            yield path, "no_effect", "the last lesson does not end; remove its completion_criteria"


def _about_checkpoints(settings: CheckpointSettings) -> Iterator[Finding]:
    if settings.force:
        yield ("checkpoint_settings", "force"), "no_effect", "every run has an id of its own, nothing is overwritten"
    if settings.train_model:
        yield (
            ("checkpoint_settings", "train_model"),
            "no_effect",
            "runs train by default; remove it",
        )
    if not NAME.fullmatch(settings.run_id):
        message = (
            f"{show(settings.run_id)} can't be a run's name here, which is made of 1 to 200 letters, digits, dots, "
            "underscores and hyphens and begins with one of the first two; the run gets the name that it is created "
            "with, or its id"
        )
        yield ("checkpoint_settings", "run_id"), "no_effect", message


def _high_learning_rate(rate: float) -> str:
    return (
        f"is {rate:g}: Adam moves every weight by about as much in each gradient step, so that networks saturate and "
        "learn nothing more; usual are 1e-5 to 1e-2"
    )


def _own_reward_with_poca(name: str) -> str:
    return (
        f"the signal `{name}` rewards each agent for itself, while POCA credits a group; ML-Agents does not support it "
        "with POCA, and results may be unexpected"
    )
