"""What is legal in a configuration but probably not meant: warnings, which keep nothing from running."""

from collections.abc import Iterator
from typing import Final

from server.errors import Problem
from server.training.behavior import POCAConfig, SACConfig, TrainerConfig
from server.training.document import Path
from server.training.problems import join_path
from server.training.run import RunConfig

_SAMPLES: Final = (
    "has no effect under `sac`, which imitates `behavioral_cloning.num_epoch` minibatches per gradient step; remove it"
)


def advise(config: RunConfig) -> list[Problem]:
    """Return the warnings about a resolved configuration, in its order."""
    sections: list[tuple[Path, TrainerConfig]] = [(("behaviors", name), own) for name, own in config.behaviors.items()]
    if config.default_settings is not None:
        sections.insert(0, (("default_settings",), config.default_settings))
    return [
        Problem(join_path((*path, *below)), code, message)
        for path, section in sections
        for below, code, message in _about(section)
    ]


def _about(section: TrainerConfig) -> Iterator[tuple[Path, str, str]]:
    """Yield path below the section, code and message."""
    match section:
        case SACConfig(behavioral_cloning=cloning) if cloning is not None and cloning.samples_per_update:
            yield ("behavioral_cloning", "samples_per_update"), "no_effect", _SAMPLES
        case POCAConfig():
            for name, _ in section.reward_signals.active():
                if name != "extrinsic":
                    yield ("reward_signals", name.partition("_")[0]), "doubtful", _posthumous(name)


def _posthumous(name: str) -> str:
    return (
        f"the signal `{name}` rewards each agent for itself, while POCA credits a group; ML-Agents does not support it "
        "with POCA, and results may be unexpected"
    )
