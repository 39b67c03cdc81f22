"""ML-Agents' own end-to-end checks, held to its budgets: what must be learned there is learned here in as many steps.

Of `trainers/tests/torch_entities/test_simple_rl.py` and `test_hybrid.py` of ML-Agents 1.1.0: a walk on a line (or two,
or a team of two on lines of their own) whose end is told by a number, by pictures, by lists of entities, or only at
first; its networks (one layer of 32 units; 16 for SAC), its hyperparameters, its number of agent steps and its rule:
the mean of the newest five returns is above the bar when the steps are used up. There that is asked of one seed; here
of seed 1; with match3 and SAC, where 100 steps are a matter of luck (of the seeds 1 to 10 the first one misses), of the
median of three. Of hybrid actions and PPO the budget is half of what ML-Agents gives. Not here: self-play, and what
only has to run to its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
import torch

from ludus.demonstrations import write
from ludus.protocol.spec import ActionSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.toys.playing import TRAINERS, Arcade, Training
from tests.toys.team_walk import TeamWalk
from tests.toys.walk import HYPERPARAMETERS, NUMBER, STEP, Line, shown_on
from worker.learning.build import Demonstrations, build_algorithm

DISCRETE, CONTINUOUS, HYBRID = ActionSpec(0, (2,)), ActionSpec(1), ActionSpec(1, (2,))
TWO_BRANCHES, TWO_COLUMNS = ActionSpec(0, (2, 2)), ActionSpec(2)
NAMES = {
    DISCRETE: "discrete",
    CONTINUOUS: "continuous",
    HYBRID: "hybrid",
    TWO_BRANCHES: "discrete",
    TWO_COLUMNS: "continuous",
}

PICTURE, LARGE, BOARD = (ObservationSpec(shape, "picture") for shape in ((3, 20, 20), (3, 36, 36), (5, 5, 5)))
ENTITIES = ObservationSpec(
    (10, 5), "entities", "float32", ObservationType.DEFAULT, (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
)
GOAL = ObservationSpec((1,), "goal", type=ObservationType.GOAL_SIGNAL)
GOAL_PICTURE = ObservationSpec((3, 20, 20), "goal", type=ObservationType.GOAL_SIGNAL)

UNITS = {"ppo": 32, "poca": 32, "sac": 16}

CALM = {"learning_rate": 3e-4}
CALM_SAC = {"learning_rate": 3e-4, "batch_size": 16}
SHARED = {**CALM, "shared_critic": True}
AT_ONCE = {**CALM_SAC, "buffer_init_steps": 0}
FIRST_MOVES: dict[str, Any] = {
    "told": 2,
    "hyper": {"learning_rate": 1e-3, "batch_size": 64, "buffer_size": 128},
    "network": {"memory": {"memory_size": 16}},
}
FIRST_MOVES_SAC: dict[str, Any] = {
    "told": 2,
    "hyper": {"learning_rate": 3e-4, "batch_size": 256, "buffer_init_steps": 1000, "steps_per_update": 2},
    "network": {"memory": {"memory_size": 16, "sequence_length": 16}},
}
SHORT_SIGHT: dict[str, Any] = {"cloned": 1500, "gamma": 0.8, "hyper": {"learning_rate": 1e-3}}
WIDE = {"batch_size": 64, "buffer_size": 640}
WIDER = {"batch_size": 64, "buffer_size": 1024}
HYBRID_SAC = {"batch_size": 256, "buffer_size": 50_000, "buffer_init_steps": 0}
HYBRID_CALM_SAC = {**CALM, "batch_size": 128, "buffer_size": 50_000}
RESNET: dict[str, Any] = {"sees": (LARGE,), "network": {"vis_encode_type": "resnet", "hidden_units": 16}, "step": 0.5}
NATURE: dict[str, Any] = {**RESNET, "network": {"vis_encode_type": "nature_cnn", "hidden_units": 16}}
MATCH3: dict[str, Any] = {"sees": (BOARD,), "network": {"vis_encode_type": "match3", "hidden_units": 16}, "step": 0.5}
TWO_BOARDS: dict[str, Any] = {**MATCH3, "sees": (BOARD, BOARD)}

ALWAYS: tuple[pytest.MarkDecorator, ...] = ()
"""Part of `make test`."""
LONG = (pytest.mark.long,)
"""Part of `make test-all`."""
LEARN = (pytest.mark.learning,)
"""Part of `make learn-quick`."""
HOURS = (pytest.mark.learning, pytest.mark.hours, pytest.mark.timeout(1800))
"""Part of `make learn`."""


@dataclass(frozen=True, slots=True)
class Check:
    """One of ML-Agents' checks."""

    variant: str
    trainer: str
    actions: ActionSpec
    steps: int
    """ML-Agents' budget."""
    bar: float
    """ML-Agents' threshold."""
    when: tuple[pytest.MarkDecorator, ...]
    sees: Sequence[ObservationSpec] = (NUMBER,)
    step: float = STEP
    """How far the agent goes in one step at most."""
    team: bool = False
    told: float = float("inf")
    """For so many moves the agent sees where to go."""
    hyper: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    cloned: int = 0
    """Rewards are GAIL's alone, and behavioral cloning fades out over so many steps."""
    gamma: float = 0.99
    """Of GAIL."""
    seeds: tuple[int, ...] = (1,)

    def __str__(self) -> str:
        return f"{self.variant}-{self.trainer}-{NAMES[self.actions]}"

    def game(self, seed: int) -> Line | TeamWalk:
        if self.team:
            return TeamWalk(discrete=self.actions == DISCRETE, sees=self.sees, seed=seed)
        return Line(self.actions, self.sees, step=self.step, told=self.told, seed=seed)

    def document(self, folder: Path) -> dict[str, Any]:
        """Return the behavior's section of the configuration."""
        document: dict[str, Any] = {
            "trainer_type": self.trainer,
            "hyperparameters": {**HYPERPARAMETERS[self.trainer], **self.hyper},
            "network_settings": {"num_layers": 1, "hidden_units": UNITS[self.trainer], **self.network},
            "max_steps": self.steps,
        }
        if self.cloned:
            path = str(folder / "walk.demo")
            write(shown_on(Line(self.actions, self.sees, seed=5)), Path(path))  # 20 walks are ML-Agents' 100 steps
            gail = {"demo_path": path, "gamma": self.gamma, "network_settings": {"hidden_units": 32}}
            document["reward_signals"] = {"gail": gail}
            document["behavioral_cloning"] = {"demo_path": path, "steps": self.cloned}
        return document


# fmt: off
CHECKS = (
    #     variant           trainer actions       steps   bar  when
    Check("simple",         "ppo",  DISCRETE,      3_000, 0.9, ALWAYS),
    Check("simple",         "ppo",  CONTINUOUS,    3_000, 0.9, LONG),
    Check("simple",         "sac",  DISCRETE,      1_000, 0.9, LONG),
    Check("simple",         "sac",  CONTINUOUS,    1_000, 0.9, LONG),
    Check("simple",         "poca", DISCRETE,      3_000, 0.9, LONG, team=True),
    Check("simple",         "poca", CONTINUOUS,    3_000, 0.9, LONG, team=True),
    Check("2d",             "ppo",  TWO_BRANCHES, 10_000, 0.9, LEARN, step=0.8, hyper=WIDE),
    Check("2d",             "ppo",  TWO_COLUMNS,  10_000, 0.9, LEARN, step=0.8, hyper=WIDE),
    Check("2d",             "sac",  TWO_BRANCHES,  3_000, 0.8, LEARN, step=0.8, hyper={"buffer_init_steps": 2000}),
    Check("2d",             "sac",  TWO_COLUMNS,   3_000, 0.8, LEARN, step=0.8, hyper={"buffer_init_steps": 2000}),
    Check("picture",        "ppo",  DISCRETE,      3_000, 0.9, HOURS, (PICTURE,), hyper=CALM),
    Check("picture",        "ppo",  CONTINUOUS,    3_000, 0.9, HOURS, (PICTURE,), hyper=CALM),
    Check("picture-shared", "ppo",  DISCRETE,      3_000, 0.9, HOURS, (PICTURE,), hyper=SHARED),
    Check("picture-shared", "ppo",  CONTINUOUS,    3_000, 0.9, HOURS, (PICTURE,), hyper=SHARED),
    Check("picture",        "sac",  DISCRETE,      1_000, 0.9, HOURS, (PICTURE,), hyper=CALM_SAC),
    Check("picture",        "sac",  CONTINUOUS,    1_000, 0.9, HOURS, (PICTURE,), hyper=CALM_SAC),
    Check("picture",        "poca", DISCRETE,      3_000, 0.9, HOURS, (NUMBER, PICTURE), team=True, hyper=CALM),
    Check("resnet",         "ppo",  DISCRETE,        900, 0.5, HOURS, hyper=CALM, **RESNET),
    Check("nature_cnn",     "ppo",  DISCRETE,        900, 0.5, HOURS, hyper=CALM, **NATURE),
    Check("match3",         "ppo",  DISCRETE,        900, 0.5, LEARN, hyper=CALM, **MATCH3),
    Check("resnet",         "sac",  DISCRETE,        100, 0.5, HOURS, hyper=AT_ONCE, **RESNET),
    Check("nature_cnn",     "sac",  DISCRETE,        100, 0.5, LEARN, hyper=AT_ONCE, **NATURE),
    Check("match3",         "sac",  DISCRETE,        100, 0.5, LEARN, hyper=AT_ONCE, **MATCH3, seeds=(1, 2, 3)),
    Check("match3-2",       "sac",  DISCRETE,        100, 0.5, LEARN, hyper=AT_ONCE, **TWO_BOARDS),
    Check("entities",       "sac",  DISCRETE,      1_000, 0.9, HOURS, (ENTITIES,), hyper=CALM_SAC),
    Check("entities",       "sac",  CONTINUOUS,    1_000, 0.9, HOURS, (ENTITIES,), hyper=CALM_SAC),
    Check("entities-goal",  "ppo",  DISCRETE,      3_000, 0.9, HOURS, (GOAL, ENTITIES), hyper=CALM),
    Check("entities-goal",  "ppo",  CONTINUOUS,    3_000, 0.9, HOURS, (GOAL, ENTITIES), hyper=CALM),
    Check("entities-shown-goal", "ppo", DISCRETE,  3_000, 0.9, HOURS, (GOAL_PICTURE, ENTITIES), hyper=CALM),
    Check("entities-goal",  "poca", DISCRETE,      5_000, 0.9, HOURS, (GOAL, ENTITIES), team=True, hyper=CALM),
    Check("recurrent",      "ppo",  DISCRETE,      6_000, 0.9, HOURS, **FIRST_MOVES),
    Check("recurrent",      "ppo",  CONTINUOUS,    6_000, 0.9, HOURS, **FIRST_MOVES),
    Check("recurrent",      "poca", DISCRETE,      6_000, 0.9, HOURS, **FIRST_MOVES),
    Check("recurrent",      "poca", CONTINUOUS,    6_000, 0.9, HOURS, **FIRST_MOVES),
    Check("recurrent",      "sac",  DISCRETE,      4_000, 0.9, HOURS, **FIRST_MOVES_SAC),
    Check("recurrent",      "sac",  CONTINUOUS,    4_000, 0.9, HOURS, step=0.5, **FIRST_MOVES_SAC),
    Check("2d",             "ppo",  HYBRID,       10_000, 0.9, LEARN, step=0.8, hyper=WIDER),
    Check("2d",             "sac",  HYBRID,        8_000, 0.9, HOURS, step=0.8, hyper=HYBRID_SAC),
    Check("picture",        "sac",  HYBRID,        3_000, 0.9, HOURS, (PICTURE,), hyper=HYBRID_CALM_SAC),
    Check("recurrent",      "sac",  HYBRID,        4_000, 0.9, HOURS, step=0.5, **FIRST_MOVES_SAC),
    Check("gail",           "ppo",  DISCRETE,        500, 0.9, LEARN, cloned=1000),
    Check("gail",           "ppo",  CONTINUOUS,      500, 0.9, LEARN, cloned=1000),
    Check("gail",           "sac",  DISCRETE,        500, 0.9, LEARN, cloned=1000),
    Check("gail",           "sac",  CONTINUOUS,      500, 0.9, LEARN, cloned=1000),
    Check("gail-picture",   "ppo",  DISCRETE,      1_000, 0.9, HOURS, (PICTURE,), 0.3, **SHORT_SIGHT),
    Check("gail-picture",   "ppo",  CONTINUOUS,    1_000, 0.9, HOURS, (PICTURE,), 0.3, **SHORT_SIGHT),
    Check("gail-picture",   "sac",  DISCRETE,        500, 0.9, HOURS, (PICTURE,), cloned=1000, hyper=CALM_SAC),
    Check("gail-picture",   "sac",  CONTINUOUS,      500, 0.9, HOURS, (PICTURE,), cloned=1000, hyper=CALM_SAC),
)
# fmt: on


def newest_five(check: Check, seed: int, folder: Path) -> float:
    """Train for the budget, not a step more; return the mean of the newest five returns."""
    game = check.game(seed)
    config = TRAINERS[check.trainer].model_validate(check.document(folder))
    algorithm = build_algorithm(config, game.spec, torch.device("cpu"), seed, Demonstrations({}))
    learning = Training(algorithm, Arcade(game, config, max(algorithm.round_steps(), 256), seed))
    while learning.step < check.steps:
        learning.arcade.steps = min(algorithm.round_steps(), check.steps - learning.step)
        learning.advance()
    assert learning.step == check.steps
    return fmean(game.returns[-5:])


@pytest.mark.long
@pytest.mark.parametrize("check", [pytest.param(check, id=str(check), marks=check.when) for check in CHECKS])
def test_what_ml_agents_checks_is_learnt_within_its_budget(check: Check, tmp_path: Path) -> None:
    scores = [newest_five(check, seed, tmp_path) for seed in check.seeds]

    assert median(scores) > check.bar, scores
