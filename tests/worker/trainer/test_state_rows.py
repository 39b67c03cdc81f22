"""Every entry of an algorithm's state counts: the rows of docs/resume.md, trainer by trainer.

Each trainer learns two rounds, and is saved. Going on from there twice ends alike; going on without one entry (as it is
in an algorithm that has not learned) does not. An entry that nobody would miss here has no test, and no row.
"""

import copy
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from ludus.config.run import RunConfig
from tests.worker.trainer.differences import differences
from tests.worker.trainer.resumed_learning import BEHAVIOR, Job, build
from tests.worker.trainer.test_checkpoints import document, show, trainers
from worker.trainer import checkpoint

pytestmark = pytest.mark.xdist_group("state rows")  # each world is made once

ROWS = {
    "ppo": ("version", "generator", "model", "optimizer"),
    "ppo-kl": ("generator", "model", "optimizer", "rate_factor"),
    "ppo-lstm": ("version", "generator", "model", "optimizer", "memories"),
    "ppo-gail": ("version", "generator", "model", "optimizer", "signals/gail", "episodes", "cloning"),
    "ppo-curiosity-rnd": ("generator", "model", "optimizer", "signals/curiosity", "signals/rnd", "episodes"),
    "sac": (
        *("version", "counters", "agents", "generator", "actor", "critics", "log_coefficients", "optimizer"),
        *("signals/curiosity", "episodes", "replay"),
    ),
    "poca": ("version", "generator", "model", "optimizer", "episodes"),
    "clone": ("version", "generator", "order", "at", "model", "optimizer"),
}
"""What each trainer's test covers, by the names of the state's entries."""

GUARDS = {"values_before": [7.0], "losses_before": {"Losses/Pretraining Loss": 7.0}}
"""Of SAC, with values: an update that explodes beside them is taken back, one that does not replaces them."""


class World:
    """A trainer that has learned two rounds."""

    def __init__(self, name: str, folder: Path) -> None:
        shown = show(folder / "shown.npz")
        clone = {"trainer_type": "clone", "demo_path": shown, "hyperparameters": {"batch_size": 24}}
        section = clone if name == "clone" else trainers(shown)[name]
        config = RunConfig.model_validate({**document({}), "behaviors": {BEHAVIOR: section}})
        self.job = Job(config)
        self.fresh = {"progress": {"step": 0}, "algorithm": copy.deepcopy(build(config, self.job.seed).state_dict())}
        (folder / "config.json").write_text(config.model_dump_json())
        self.saved = self._on_disk(self.job.learn(self.fresh, 0, 2), folder / "saved")

    def _on_disk(self, state: dict[str, Any], folder: Path) -> dict[str, Any]:
        folder.mkdir()
        checkpoint.save(folder, {BEHAVIOR: state})
        loaded: dict[str, Any] = checkpoint.load(folder)[BEHAVIOR]
        return loaded

    def restored(self, algorithm: dict[str, Any]) -> dict[str, Any]:
        """Load this state, and return what is there then."""
        begun = {"progress": self.saved["progress"], "algorithm": copy.deepcopy(algorithm)}
        state: dict[str, Any] = self.job.learn(begun, 2, 2)["algorithm"]
        return state

    @cached_property
    def uncut(self) -> dict[str, Any]:
        """The end of two rounds more, from the saved state."""
        return self.end(self.saved["algorithm"])

    def end(self, algorithm: dict[str, Any]) -> dict[str, Any]:
        """Learn two rounds more, from this state."""
        return self.job.learn({"progress": self.saved["progress"], "algorithm": copy.deepcopy(algorithm)}, 2, 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all worlds."""
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def worlds(root: Path) -> dict[str, World]:
    """Made when they are first asked for."""

    class Worlds(dict[str, World]):
        def __missing__(self, name: str) -> World:
            (root / name).mkdir()
            self[name] = World(name, root / name)
            return self[name]

    return Worlds()


@pytest.mark.timeout(120)
@pytest.mark.long
def test_a_fresh_process_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(
    worlds: dict[str, World], root: Path
) -> None:
    made = {name: worlds[name] for name in ROWS}

    subprocess.run([sys.executable, "-m", "tests.worker.trainer.resumed_learning", str(root)], check=True)

    uncut = {name: world.job.learn(world.fresh, 0, 4) for name, world in made.items()}
    for name, whole in uncut.items():
        elsewhere = checkpoint.load(root / name / "elsewhere")[BEHAVIOR]
        whole["measured"] = whole["measured"][2:]
        assert differences(whole, elsewhere) == [], name


@pytest.mark.parametrize("name", ROWS)
def test_going_on_twice_from_a_saved_trainer_ends_alike(worlds: dict[str, World], name: str) -> None:
    world = worlds[name]

    again = world.end(world.saved["algorithm"])

    assert differences(world.uncut, again) == []
    assert differences(again["algorithm"], world.saved["algorithm"]), "it has learned meanwhile"


@pytest.mark.long
@pytest.mark.parametrize(("name", "row"), [(name, row) for name, rows in ROWS.items() for row in rows])
def test_a_row_that_is_not_restored_is_noticed(worlds: dict[str, World], name: str, row: str) -> None:
    world = worlds[name]
    altered = copy.deepcopy(world.saved["algorithm"])
    first, _, second = row.partition("/")
    if second:
        altered[first][second] = world.fresh["algorithm"][first][second]
    else:
        altered[first] = world.fresh["algorithm"][first]
    if row == "order":  # of one pass over the demonstrations: still that which it began with
        altered[row] = altered[row].flip(0)

    found = differences(world.uncut, world.end(altered))

    assert found, f"{row} is in the checkpoint, but nothing depends on it"


@pytest.mark.parametrize(("row", "value"), GUARDS.items())
def test_what_the_next_update_is_judged_by_is_restored(worlds: dict[str, World], row: str, value: Any) -> None:
    world = worlds["sac"]
    altered = {**world.saved["algorithm"], row: value}

    assert differences(world.restored(world.saved["algorithm"]), world.saved["algorithm"]) == []
    assert world.restored(altered)[row] == value


@pytest.mark.long
def test_statistics_that_wait_for_a_gradient_step_are_restored(worlds: dict[str, World]) -> None:
    world = worlds["sac-filling"]
    altered = {**world.saved["algorithm"], "statistics": None}

    assert world.saved["algorithm"]["statistics"] is not None
    assert differences(world.uncut, world.end(world.saved["algorithm"])) == []
    assert differences(world.uncut, world.end(altered))


@pytest.mark.parametrize("name", ROWS)
def test_every_entry_of_a_state_has_a_row(worlds: dict[str, World], name: str) -> None:
    entries = set()
    for key, value in worlds[name].saved["algorithm"].items():
        entries |= {f"signals/{signal}" for signal in value} if key == "signals" else {key}

    without = entries - {*ROWS[name], *GUARDS}

    assert without <= IDLE, "an entry that the trainer uses needs a row in ROWS, and in docs/resume.md"


IDLE = {"signals/extrinsic", "memories", "cloning", "beginnings", "version", "episodes", "rate_factor", "statistics"}
"""What may have nothing in it, or nothing that matters: the game's own rewards have no state, others
need a memory, demonstrations, a second signal, `desired_kl`, or steps since the last gradient step."""
