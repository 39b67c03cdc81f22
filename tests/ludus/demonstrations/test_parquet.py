"""Parquet files as demonstrations: what is read, and sentences for what is wrong."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ludus.demonstrations import DemonstrationError
from ludus.demonstrations.parquet import read_parquet

STEPS: dict[str, list[Any]] = {
    "observation": [[0.0, 1.0], [0.1, 1.1], [0.2, 1.2], [5.0, 6.0], [5.1, 6.1], [5.2, 6.2]],
    "action": [[0.5], [-0.5], [1.0], [0.1], [0.2], [0.3]],
    "reward": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "terminated": [False, False, True, False, False, False],
    "truncated": [False, False, False, False, False, True],
    "episode": [7, 7, 7, 3, 3, 3],
}


def written(folder: Path, **columns: list[Any] | None) -> Path:
    """Write two episodes of three steps, the first one terminated, the second one truncated; None leaves out."""
    path = folder / "steps.parquet"
    pq.write_table(pa.table({name: part for name, part in {**STEPS, **columns}.items() if part is not None}), path)
    return path


def test_terminated_episodes_keep_all_steps_and_others_lose_the_one_whose_outcome_is_unknown(tmp_path: Path) -> None:
    shown = read_parquet(written(tmp_path), "Walker")

    assert shown.lengths.tolist() == [3, 2]
    assert shown.terminated.tolist() == [False, False, True, False, False]
    assert shown.truncated.tolist() == [False, False, False, False, True]
    assert shown.rewards.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert shown.final_observations[0][1].tolist() == pytest.approx([5.2, 6.2])
    assert (shown.spec.name, shown.spec.actions.continuous_size) == ("Walker", 1)


def test_what_followed_is_taken_from_its_column(tmp_path: Path) -> None:
    following = [[value + 0.1 for value in row] for row in STEPS["observation"]]

    shown = read_parquet(written(tmp_path, next_observation=following), "Walker")

    assert shown.lengths.tolist() == [3, 3]
    assert shown.final_observations[0].tolist() == [pytest.approx([0.3, 1.3]), pytest.approx([5.3, 6.3])]
    assert shown.truncated.tolist() == [False] * 5 + [True]


def test_whole_numbers_are_choices_of_branches(tmp_path: Path) -> None:
    shown = read_parquet(written(tmp_path, action=[[0, 2], [1, 0], [0, 1], [0, 0], [1, 1], [1, 1]]), "Walker")

    assert shown.spec.actions.discrete_branches == (2, 3)
    assert shown.discrete[0].tolist() == [0, 2]


def test_every_column_that_begins_with_observation_is_one(tmp_path: Path) -> None:
    shown = read_parquet(written(tmp_path, observation=None, observation_x=[1.0] * 6, observation_y=[[2, 3]] * 6), "W")

    assert [(part.name, part.shape) for part in shown.spec.observations] == [
        ("observation_x", (1,)),
        ("observation_y", (2,)),
    ]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"reward": None}, r"it has no column reward; its columns are observation, action"),
        ({"observation": None}, "it has no column observation"),
        (
            {"observation": [[0.0, 1.0], [0.1, float("nan")], *STEPS["observation"][2:]]},
            "column observation holds nan in row 1",
        ),
        ({"observation": [[0.0, 1.0]] * 5 + [[1.0]]}, "column observation has 1 numbers in row 5, and 2 in the first"),
        ({"reward": [1.0, None, 3.0, 4.0, 5.0, 6.0]}, "column reward has no value in row 1"),
        ({"reward": ["a"] * 6}, "column reward has the type string, and not numbers"),
        ({"action": [[0.5]] * 5 + [[1.5]]}, "column action holds 1.5 in row 5; it must lie in"),
        ({"action": [1, 2, -1, 0, 0, 0]}, "column action holds -1 in row 2; choices count from 0"),
        ({"episode": [1, 2, 2, 3, 3, 3]}, "the episode of row 0 has one step, and nothing says what followed"),
        ({"terminated": [False, True, True, False, False, False]}, "row 1 ends an episode, but is not a piece's last"),
        ({name: list[int]() for name in STEPS}, "it has no rows"),
    ],
    ids=[
        "no reward",
        "no observation",
        "nan",
        "ragged",
        "null",
        "text",
        "action",
        "choice",
        "one step",
        "ended inside",
        "empty",
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, columns: dict[str, Any], sentence: str) -> None:
    path = written(tmp_path, **columns)

    with pytest.raises(DemonstrationError, match=sentence) as caught:
        read_parquet(path, "Walker")

    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    (tmp_path / "steps.parquet").write_text("no")

    with pytest.raises(DemonstrationError, match="it is no Parquet file that can be read"):
        read_parquet(tmp_path / "steps.parquet", "Walker")
