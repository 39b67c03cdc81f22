"""Legal keys and values that no run supports yet, each with its path and a replacement.

Resolving a document gives its values (`server.config.resolution`); this is asked before a run is
created from it, and by a trainer that runs alone, so that nothing is ignored silently.
"""

from collections.abc import Iterator
from typing import Final

from ludus.config.behavior import CloneConfig
from ludus.config.problems import join_path
from ludus.config.run import RunConfig
from server.kit.errors import InvalidConfig, Problem

_RESUME: Final = "name a checkpoint of that run in `resume_from`"

UNSUPPORTED: Final = {
    "env_settings.env_path": "remove it; start the game yourself",
    "checkpoint_settings.initialize_from": "remove it, and name a checkpoint of that run in each behavior",
    "checkpoint_settings.load_model": _RESUME,
    "checkpoint_settings.resume": _RESUME,
    "checkpoint_settings.inference": "remove it, or the behaviors of trainer_type clone; those are evaluated while "
    "they learn (`evaluation_interval`)",
    "checkpoint_settings.results_dir": "remove it; a trainer that runs alone writes where `--scratch` says",
}
"""Keys, with what to do instead. Playing without learning is legal for policies that learn by playing; all others are
where they ask for nothing."""


def unsupported(config: RunConfig) -> list[Problem]:
    """Return what no run can do yet, in the configuration's order."""
    return [
        Problem(join_path(path), "unsupported", f"`{path[-1]}` is legal, but Ludus does not support it yet: {instead}")
        for path in _found(config)
        for instead in [UNSUPPORTED[".".join(path)]]
    ]


def refuse_unsupported(config: RunConfig) -> None:
    """Raise InvalidConfig if a configuration asks for what no run can do yet."""
    if problems := unsupported(config):
        raise InvalidConfig(problems)


def _found(config: RunConfig) -> Iterator[tuple[str, ...]]:
    """Yield the paths of what is asked for."""
    if config.env_settings.env_path is not None:
        yield "env_settings", "env_path"
    settings = config.checkpoint_settings
    asked = {
        "initialize_from": settings.initialize_from is not None,
        "load_model": settings.load_model,
        "resume": settings.resume,
        "inference": settings.inference and any(isinstance(each, CloneConfig) for each in config.trainers().values()),
        "results_dir": settings.results_dir != "results",
    }
    yield from (("checkpoint_settings", key) for key, wanted in asked.items() if wanted)
