"""What ML-Agents' format has and Ludus does not: each key with what to do instead.

A key listed here is never ignored silently. It is accepted only where it can't matter: null, its default in ML-Agents
(exported files print every default), or a value that means what Ludus does anyway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from server.training.behavior import ExtrinsicConfig, POCAHyperparameters, SACHyperparameters, TrainerConfig
from server.training.run import RunConfig
from server.training.values import Section

_REASONS: Final = {
    "unsupported": "is legal in ML-Agents, but Ludus does not support it yet",
    "path_refused": "is a path, and paths never mean the server's disk",
    "old_format": "is of an older format",
    "unknown_key": "is not a key of this trainer",
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A key of ML-Agents' format, current or former, that Ludus doesn't act on."""

    code: Literal["unsupported", "path_refused", "old_format", "unknown_key"]
    instead: str
    """What to do instead, as the end of a sentence."""
    neutral: tuple[object, ...] = ()
    """Values beside null that are accepted, since they change nothing."""
    inert: bool = False
    """Any mapping is accepted: ML-Agents doesn't use it either."""

    def accepts(self, value: object) -> bool:
        """Say whether a value changes nothing. Truth values aren't numbers."""
        if value is None or (self.inert and isinstance(value, dict)):
            return True
        return any(isinstance(value, bool) == isinstance(item, bool) and value == item for item in self.neutral)

    def message(self, key: str) -> str:
        """Say what is wrong and what to do."""
        return f"`{key}` {_REASONS[self.code]}: {self.instead}"


def _unsupported(instead: str, *neutral: object) -> Foreign:
    return Foreign("unsupported", instead, neutral)


def _path(instead: str, *neutral: object) -> Foreign:
    return Foreign("path_refused", instead, neutral)


_UPGRADE: Final = "convert the file with `python -m mlagents.trainers.upgrade_config` first"
_HOST: Final = "remove it, and start the game with this setting on its own host"
_EACH: Final = "remove it; simulators are started where they run, in any number"
_RUN: Final = "remove it; this is said when the run is created"
_DEMO_PATH: Final = "upload the file with `ludus demonstration upload FILE`, and name its id in `demonstrations` here"

SAMPLERS: Final = frozenset({"uniform", "gaussian", "multirangeuniform"})
"""Values of `sampler_type` beside `constant`, which is supported as a plain number."""

ENV_SETTINGS: Final[Mapping[str, Foreign]] = {
    "env_path": _path("start the game yourself and let it dial in (`ludus simulate`)"),
    "env_args": _unsupported(_HOST),
    "base_port": _unsupported("remove it; simulators dial in, and the gateway tells them the address", 5005),
    "num_envs": _unsupported(_EACH, 1),
    "num_areas": _unsupported(_HOST, 1),
    "timeout_wait": _unsupported("use `simulators.startup_timeout_seconds` and `simulators.step_timeout_seconds`", 60),
    "seed": _unsupported("use `seed` at the top of the document", -1),
    "max_lifetime_restarts": _unsupported(_EACH, 10),
    "restarts_rate_limit_n": _unsupported(_EACH, 1),
    "restarts_rate_limit_period_s": _unsupported(_EACH, 60),
}

ENGINE_SETTINGS: Final[Mapping[str, Foreign]] = {
    "width": _unsupported(_HOST, 84),
    "height": _unsupported(_HOST, 84),
    "quality_level": _unsupported(_HOST, 5),
    "time_scale": _unsupported(_HOST, 20),
    "target_frame_rate": _unsupported(_HOST, -1),
    "capture_frame_rate": _unsupported(_HOST, 60),
    "no_graphics": _unsupported(_HOST, False),
    "no_graphics_monitor": _unsupported(_HOST, False),
}

CHECKPOINT_SETTINGS: Final[Mapping[str, Foreign]] = {
    "run_id": _unsupported("remove it, and give the run a name when it is created", "ppo"),
    "initialize_from": _path("remove it; starting from a checkpoint of another run is not supported yet"),
    "load_model": _unsupported(_RUN, False),
    "resume": _unsupported("remove it; a run that loses its worker resumes by itself", False),
    "force": _unsupported("remove it; every run has an id of its own, nothing is overwritten", False),
    "train_model": _unsupported(_RUN, False),
    "inference": _unsupported("remove it; download the model and play it with onnxruntime", False),
    "results_dir": _path("remove it, and download checkpoints from the server", "results"),
}

SECTIONS: Final[Mapping[str, Mapping[str, Foreign]]] = {
    "env_settings": ENV_SETTINGS,
    "engine_settings": ENGINE_SETTINGS,
    "checkpoint_settings": CHECKPOINT_SETTINGS,
}
"""Whole sections at the top of a document, with their keys."""

KEYS: Final[Mapping[type[Section], Mapping[str, Foreign]]] = {
    RunConfig: {
        "debug": _unsupported("remove it; the log's level is set where the server is started", False),
        "parameter_randomization": Foreign("old_format", _UPGRADE),
        "curriculum": Foreign("old_format", _UPGRADE),
    },
    TrainerConfig: {
        "init_path": _path("remove it; starting from a checkpoint of another run is not supported yet"),
        "output_path": _path("remove it, and download checkpoints from the server"),
        "self_play": _unsupported("remove it; the teams of a behavior train one policy together"),
        "framework": _unsupported("remove it; PyTorch is the only one", "pytorch"),
    },
    SACHyperparameters: {
        "shared_critic": Foreign(
            "unknown_key",
            "remove it; the Q networks of SAC also see the actions, and have bodies of their own",
            (False,),
        ),
    },
    POCAHyperparameters: {
        "shared_critic": Foreign(
            "unknown_key", "remove it; the critic of POCA sees the whole group, and has a body of its own", (False,)
        ),
    },
    ExtrinsicConfig: {
        "network_settings": Foreign("unsupported", "remove it; extrinsic rewards need no network", inert=True),
    },
}
"""Keys of sections that Ludus has, and of those derived from them."""

DEMO_PATH: Final = _path(_DEMO_PATH)
"""`demo_path`, which only a trainer that runs alone may read."""


def foreign_keys(section: type[Section]) -> dict[str, Foreign]:
    """Return the foreign keys of a section, its own and those of its parents."""
    return {key: foreign for parent in section.__mro__ for key, foreign in KEYS.get(parent, {}).items()}
