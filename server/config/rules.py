"""Rules about a whole configuration: contradictions, what no run supports yet, and what is probably not meant.

`problems_of` and `unsupported` stop a run; `warnings_of` does not. `futile` is for findings about the health of a run.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from ludus.config.behavior import POCAConfig, PPOConfig
from ludus.config.environment_parameters import Lesson
from ludus.config.hyperparameters import OffPolicyHyperparameters, OnPolicyHyperparameters
from ludus.config.problems import Path, join_path, show
from ludus.config.recommendations import advice, measured
from ludus.config.run import RunConfig
from ludus.config.trainer import DemonstratedConfig, ReinforcementConfig, TrainerConfig
from ludus.names import NAME_RULE, is_name
from server.kit.errors import InvalidConfig, Problem

Finding: TypeAlias = tuple[Path, str, str]
"""Path, code and message."""

MAX_TIME_SCALE: Final = 100.0
"""The most that Unity's engine takes."""

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
_WITH_POCA: Final = (
    "the signal `{}` rewards each agent for itself, while POCA credits a group; ML-Agents does not support it with "
    "POCA, and results may be unexpected"
)
FAST: Final = 0.03
"""Learning rates above this are doubted: three times the largest that is usual. PPO's policies and critics saturate
within an update or a few, at 0.1 as at 1, and from then on losses and gradients are small: no guard can see it."""
SLOW: Final = 4.0
"""Factor by which updates may cost more than usual ones, before it is doubted. ML-Agents' Match3 has 3.3."""
UPDATE_MS, GRADIENT_STEP_MS, SAMPLE_MS, GAME_STEP_MS = 5.0, 1.0, 0.01, 0.05
"""Costs of one update with its new policy, of one gradient step, of one step in it, and of playing one step: rounded,
for a CPU, two layers of 64 units and one process of games. Only their ratios count. They err to the low side: a buffer
of 16, with which a run was 10 times slower, is called 6 times slower."""
USUAL_BUFFER, USUAL_BATCH, USUAL_EPOCHS = 2048, 256, 10
"""Smallest buffer and batch, and most epochs, to which costs are compared."""


class Futile(NamedTuple):
    """Something that makes a run slow or silent, as its configuration alone tells."""

    code: str
    """Of a finding about the run (docs/health.md)."""
    path: Path
    """Below the behavior's section."""
    message: str
    remedy: str
    figures: dict[str, int | float]


def futile(section: TrainerConfig) -> Iterator[Futile]:
    """Yield what a section alone tells about the health of its runs."""
    if section.summary_freq > section.max_steps:
        yield Futile(
            "no_summary",
            ("summary_freq",),
            f"No metric is ever written: summary_freq ({section.summary_freq:,}) is above max_steps "
            f"({section.max_steps:,}).",
            f"Lower summary_freq to about {max(section.max_steps // 20, 1):,}.",
            {"summary_freq": section.summary_freq, "max_steps": section.max_steps},
        )
    hyper = section.hyperparameters
    if isinstance(hyper, OnPolicyHyperparameters):
        if hyper.buffer_size >= section.max_steps:
            yield Futile(
                "no_update",
                ("hyperparameters", "buffer_size"),
                f"The policy is updated only when the run ends: buffer_size ({hyper.buffer_size:,}) is not below "
                f"max_steps ({section.max_steps:,}).",
                f"Raise max_steps to at least {20 * hyper.buffer_size:,}, or lower buffer_size.",
                {"buffer_size": hyper.buffer_size, "max_steps": section.max_steps},
            )
        values = {"buffer_size": hyper.buffer_size, "batch_size": hyper.batch_size, "num_epoch": hyper.num_epoch}
        usual = {
            "buffer_size": max(hyper.buffer_size, USUAL_BUFFER),
            "batch_size": max(hyper.batch_size, USUAL_BATCH),
            "num_epoch": min(hyper.num_epoch, USUAL_EPOCHS),
        }
        cost = _cost(**values)
        factor = cost / _cost(**usual)
        if factor >= SLOW:
            key = min(values, key=lambda name: _cost(**{**values, name: usual[name]}))  # the change that gains most
            numbers = ", ".join(f"{name} {value:,}" for name, value in values.items())
            changes = " and ".join(f"{name} to {usual[name]:,}" for name in values if values[name] != usual[name])
            yield Futile(
                "updates_slow",
                ("hyperparameters", key),
                f"Updates make the run about {factor:.0f} times slower than usual ({numbers}).",
                f"Set {changes}.",
                {"factor": round(factor, 1), **values},
            )
    elif isinstance(hyper, OffPolicyHyperparameters):
        if hyper.buffer_init_steps >= section.max_steps:
            yield Futile(
                "no_update",
                ("hyperparameters", "buffer_init_steps"),
                f"The policy is never updated: buffer_init_steps ({hyper.buffer_init_steps:,}) is not below max_steps "
                f"({section.max_steps:,}).",
                f"Lower buffer_init_steps to about {section.max_steps // 20:,}, or raise max_steps.",
                {"buffer_init_steps": hyper.buffer_init_steps, "max_steps": section.max_steps},
            )
        if 1 / hyper.steps_per_update >= SLOW:
            factor = 1 / hyper.steps_per_update
            yield Futile(
                "updates_slow",
                ("hyperparameters", "steps_per_update"),
                f"Updates make the run about {factor:.3g} times slower than usual: steps_per_update is "
                f"{hyper.steps_per_update:g}, which is {factor:.3g} gradient steps for each step of an agent.",
                "Raise steps_per_update to 1.",
                {"factor": round(factor, 1), "steps_per_update": hyper.steps_per_update},
            )


def _cost(buffer_size: int, batch_size: int, num_epoch: int) -> float:
    """Return the milliseconds that a step of an agent costs, played and learned from."""
    return GAME_STEP_MS + UPDATE_MS / buffer_size + num_epoch * (GRADIENT_STEP_MS / batch_size + SAMPLE_MS)


def problems_of(config: RunConfig) -> Iterator[Problem]:
    """Yield what only the whole configuration shows to be wrong."""
    for name, lessons in config.lessons().items():
        for index, lesson in enumerate(lessons):
            path = ("environment_parameters", name, "curriculum", index, "completion_criteria")
            for key, code, message in _lesson_problems(config, lesson, index, is_last=index == len(lessons) - 1):
                yield Problem(join_path((*path, key)), code, message)
    # Not a rule of `RunConfig`: runs of earlier releases have such configurations, and learn in one process.
    torch, gpus = config.torch_settings, config.resources.gpu
    device = torch.device or "cuda"
    needed = int(device.partition(":")[2] or 0) + torch.processes
    if torch.processes > 1 and device != "cpu" and gpus < needed:
        message = (
            f"is {torch.processes}, one GPU each from {device} on, but resources.gpu is {gpus}: the slot may have "
            f"fewer than {needed}; set resources.gpu to {needed}, processes to 1, or torch_settings.device to cpu"
        )
        yield Problem("torch_settings.processes", "contradiction", message)
    places = config.simulators.collectors
    if places.local == 0 and places.edge < torch.processes:
        message = (
            f"is {torch.processes}, and each of them needs a collector, but simulators.collectors.local is 0 and edge "
            f"is {places.edge}; set edge to {torch.processes}, or leave local out"
        )
        yield Problem("torch_settings.processes", "contradiction", message)


def _lesson_problems(config: RunConfig, lesson: Lesson, index: int, *, is_last: bool) -> Iterator[tuple[str, str, str]]:
    """Yield key, code and message of what is wrong with a lesson's criteria."""
    criteria = lesson.completion_criteria
    if criteria is None or (is_last and criteria.fall_back_below is None):  # the latter is a warning
        return
    behavior = config.behavior(criteria.behavior)
    if behavior is None:
        names = ", ".join(config.behaviors)
        message = (
            f"{show(criteria.behavior)} is not trained in this run, so the lesson would never end; there is {names}"
        )
        yield "behavior", "not_found", message
    elif criteria.measure == "Elo" and not (isinstance(behavior, ReinforcementConfig) and behavior.self_play):
        message = (
            f"Elo needs self-play, but behaviors.{criteria.behavior} has no self_play; give it one, or choose another "
            "measure"
        )
        yield "measure", "contradiction", message
    if criteria.fall_back_below is None:
        return
    if index == 0:
        message = "there is no lesson before the first one to fall back to; remove it"
        yield "fall_back_below", "contradiction", message
    elif not is_last and criteria.fall_back_below > criteria.threshold:
        message = (
            f"is {criteria.fall_back_below:g}, above `threshold` ({criteria.threshold:g}), so that the same measure "
            "would end the lesson and fall back from it; choose a lower one"
        )
        yield "fall_back_below", "contradiction", message


_RESUME: Final = "name a checkpoint of that run in `resume_from`"
UNSUPPORTED: Final = {
    "env_settings.env_path": "remove it; start the game yourself",
    "checkpoint_settings.initialize_from": "remove it, and name a checkpoint of that run in each behavior",
    "checkpoint_settings.load_model": _RESUME,
    "checkpoint_settings.resume": _RESUME,
    "checkpoint_settings.inference": "remove it, or the behaviors that learn from demonstrations alone; those are "
    "evaluated while they learn (`evaluation_interval`)",
    "checkpoint_settings.results_dir": "remove it; a trainer that runs alone writes where `--scratch` says",
}
"""Legal keys that no run supports yet, with what to do instead. Playing without learning is legal for policies that
learn by playing; all others are where they ask for nothing."""


def unsupported(config: RunConfig) -> list[Problem]:
    """Return what no run can do yet, in the configuration's order."""
    settings = config.checkpoint_settings
    demonstrated = any(isinstance(section, DemonstratedConfig) for section in config.trainers().values())
    requested = {
        "env_settings.env_path": config.env_settings.env_path is not None,
        "checkpoint_settings.initialize_from": settings.initialize_from is not None,
        "checkpoint_settings.load_model": settings.load_model,
        "checkpoint_settings.resume": settings.resume,
        "checkpoint_settings.inference": settings.inference and demonstrated,
        "checkpoint_settings.results_dir": settings.results_dir != "results",
    }
    return [
        Problem(
            path, "unsupported", f"`{path.partition('.')[2]}` is legal, but Ludus does not support it yet: {instead}"
        )
        for path, instead in UNSUPPORTED.items()
        if requested[path]
    ]


def refuse_unsupported(config: RunConfig) -> None:
    """Raise InvalidConfig if a configuration asks for what no run can do yet."""
    if problems := unsupported(config):
        raise InvalidConfig(problems)


def warnings_of(config: RunConfig) -> Iterator[Finding]:
    """Yield the warnings about a resolved configuration, in its order."""
    for path, section in config.trainers().items():
        for key, code, message in _behavior_warnings(section):
            yield (*path, *key), code, message
    if config.engine_settings.time_scale > MAX_TIME_SCALE:
        message = f"is above {MAX_TIME_SCALE:g}, the most that Unity takes"
        yield ("engine_settings", "time_scale"), "doubtful", message
    for name, lessons in config.lessons().items():
        criteria = lessons[-1].completion_criteria
        if criteria is not None and criteria.fall_back_below is None:
            path = ("environment_parameters", name, "curriculum", len(lessons) - 1, "completion_criteria")
            yield path, "no_effect", "the last lesson does not end; remove its completion_criteria"
    settings = config.checkpoint_settings
    if settings.force:
        yield ("checkpoint_settings", "force"), "no_effect", "every run has an id of its own, nothing is overwritten"
    if settings.train_model:
        yield ("checkpoint_settings", "train_model"), "no_effect", "runs train by default; remove it"
    if not is_name(settings.run_id):
        message = (
            f"{show(settings.run_id)} can't be a run's name here, which has {NAME_RULE}; the run gets the name that "
            "it is created with, or its id"
        )
        yield ("checkpoint_settings", "run_id"), "no_effect", message


def _behavior_warnings(section: TrainerConfig) -> Iterator[Finding]:
    """Yield warnings with paths below the section."""
    if (found := advice(measured(section.model_dump(mode="json")))) is not None:
        yield tuple(found[0].split(".")), "measured_better", found[1]
    for finding in futile(section):
        yield finding.path, "doubtful", f"{finding.message} {finding.remedy}".removesuffix(".")  # as all warnings
    rates = {"learning_rate": section.hyperparameters.learning_rate}
    if isinstance(section, PPOConfig):
        rates["critic_learning_rate"] = section.hyperparameters.critic_learning_rate or 0.0
    for key, rate in rates.items():
        if rate > FAST:
            message = (
                f"is {rate:g}: Adam moves every weight by about as much in each gradient step, so that networks "
                "saturate and learn nothing more; usual are 1e-5 to 1e-2"
            )
            yield ("hyperparameters", key), "doubtful", message
    if isinstance(section, ReinforcementConfig) and section.self_play is not None:
        ratio = section.self_play.play_against_latest_model_ratio
        messages = []
        if not 0 <= ratio <= 1:
            messages.append(f"is a probability, but {ratio:g} is not between 0 and 1; the nearer of the two is meant")
        if ratio >= 1:
            messages.append(_AGAINST_ITSELF)
        if messages:
            yield ("self_play", "play_against_latest_model_ratio"), "doubtful", "; ".join(messages)
        if section.self_play.team_change > section.max_steps:
            change = f"is {section.self_play.team_change}, above max_steps ({section.max_steps})"
            yield ("self_play", "team_change"), "doubtful", f"{change}, so that only the first team ever learns"
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
                    yield ("reward_signals", name.partition("_")[0]), "doubtful", _WITH_POCA.format(name)
