"""Datasets of Minari as demonstrations, written here in its format."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ludus.adapters.minari import read_minari
from ludus.demonstrations import DemonstrationError

SEES = {"type": "Box", "dtype": "float64", "shape": [2], "low": [-np.inf, -np.inf], "high": [np.inf, np.inf]}
ACTS = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}


def written(folder: Path, sees: Any = SEES, acts: Any = ACTS, *, in_attributes: bool = False, **columns: Any) -> Path:
    """Write two episodes of two steps; the first one is terminated, the second one truncated."""
    (folder / "data").mkdir(parents=True)
    described = {"observation_space": json.dumps(sees), "action_space": json.dumps(acts)}
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for number, ends in enumerate([(True, False), (False, True)]):
            parts = {
                "observations": np.arange(6, dtype=np.float64).reshape(3, 2),
                "actions": np.array([[1.0], [-2.0]], np.float32),
                "rewards": np.array([1.0, 2.0]),
                "terminations": np.array([False, ends[0]]),
                "truncations": np.array([False, ends[1]]),
                **columns,
            }
            group = file.create_group(f"episode_{number}")
            for name, values in parts.items():
                if isinstance(values, dict):
                    for key, inner in values.items():
                        group[f"{name}/{key}"] = inner
                elif values is not None:
                    group[name] = values
        if in_attributes:
            file.attrs.update(described)
    if not in_attributes:
        (folder / "data" / "metadata.json").write_text(json.dumps(described))
    return folder


@pytest.mark.parametrize("in_attributes", [False, True], ids=["metadata.json", "attributes"])
def test_episodes_keep_how_they_ended_and_actions_are_scaled_to_the_bounds(tmp_path: Path, in_attributes: bool) -> None:
    shown = read_minari(written(tmp_path / "d", in_attributes=in_attributes), "Walker")

    assert shown.lengths.tolist() == [2, 2]
    assert shown.terminated.tolist() == [False, True, False, False]
    assert shown.truncated.tolist() == [False, False, False, True]
    assert shown.continuous[:2, 0].tolist() == [0.5, -1.0]
    assert shown.observations[0][:2].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert shown.final_observations[0].tolist() == [[4.0, 5.0], [4.0, 5.0]]


def test_dictionaries_and_choices_get_the_form_of_the_adapter(tmp_path: Path) -> None:
    sees = {
        "type": "Dict",
        "subspaces": {"room": {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}, "at": SEES},
    }
    seen = {"room": np.array([0, 2, 1]), "at": np.zeros((3, 2))}
    acts = {"type": "Discrete", "dtype": "int64", "start": 1, "n": 4}

    shown = read_minari(written(tmp_path / "d", sees, acts, observations=seen, actions=np.array([1, 4])), "Walker")

    assert shown.spec.actions.discrete_branches == (4,)
    assert shown.discrete[:2, 0].tolist() == [0, 3]
    by_name = dict(zip([part.name for part in shown.spec.observations], shown.observations, strict=True))
    assert by_name["room"][:2].tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"rewards": None}, "episode_0 has no rewards"),
        ({"actions": np.array([[1.0], [3.0]])}, "episode_0: action 0 is 3 in step 1, outside of Box"),
        ({"actions": np.array([[1.0]])}, "episode_0 has 2 rewards and 1 actions"),
        ({"rewards": np.array([1.0, np.nan])}, "episode_0: rewards must be 2 finite numbers"),
        ({"observations": np.full((3, 2), np.nan)}, "episode_0.* not finite|episode_0.*nan"),
        ({"observations": np.zeros((2, 2))}, "episode_0: "),
        ({"acts": {"type": "Text"}}, "it has a space of type Text"),
    ],
    ids=["no rewards", "action", "actions", "nan reward", "nan", "observations", "text"],
)
def test_a_mistake_is_told_with_the_file_and_the_episode(
    tmp_path: Path, columns: dict[str, Any], sentence: str
) -> None:
    folder = written(tmp_path / "d", **columns)

    with pytest.raises(DemonstrationError, match=f"main_data.hdf5: {sentence}"):
        read_minari(folder, "Walker")
