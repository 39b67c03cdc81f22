"""`ludus recommend` against a real server: what was measured for a configuration, or that nothing was."""

from pathlib import Path
from typing import Any

import yaml

from ludus.cli.exits import Exit
from ludus.config.recommendations import is_better, measurements
from tests.ludus.cli.conftest import Invoke, as_json

PPO = [row for row in measurements() if row["when"]["trainer_type"] == "ppo"]


def written(folder: Path, **behaviors: Any) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"behaviors": behaviors}))
    return str(path)


def test_it_names_every_key_that_was_measured_for_the_kind_of_task(cli: Invoke, tmp_path: Path) -> None:
    found = cli("recommend", written(tmp_path, Walker={"trainer_type": "ppo", "max_steps": 40_000}))

    assert found.exit_code == 0
    better = sum(is_better(row) for row in PPO)
    assert found.stdout.startswith(f"Walker (ppo): {better} of {len(PPO)} measured keys are better than what it has\n")
    for row in PPO:
        assert f"\n{row['key']}: " in found.stdout
        assert row["date"] in found.stdout
        assert all(task["task"] in found.stdout for task in row["tasks"])


def test_json_has_the_scores_of_every_seed(cli: Invoke, tmp_path: Path) -> None:
    path = written(tmp_path, Walker={"trainer_type": "ppo", "max_steps": 40_000})

    answer = as_json(cli("recommend", path, "--json"))["behaviors"]["Walker"]

    assert {row["key"] for row in answer["measured"]} == {row["key"] for row in PPO}
    chances = [row["probability"]["value"] for row in answer["measured"]]
    assert chances == sorted(chances, reverse=True)
    assert all(len(task["with"]) >= 3 for row in answer["measured"] for task in row["tasks"])


def test_it_says_where_nothing_was_measured_and_what_the_figures_are_for(cli: Invoke, tmp_path: Path) -> None:
    other = {"max_steps": 40_000, "reward_signals": {"extrinsic": {}, "rnd": {}}}

    found = cli("recommend", written(tmp_path, Long={"max_steps": 10**9}, Other=other, Team={"trainer_type": "poca"}))

    assert found.exit_code == 0
    first, second, third = found.stdout.splitlines()
    assert first.startswith("Long (ppo): nothing measured for this; figures are for max_steps from ")
    assert second == "Other (ppo): nothing measured for this; figures are for reward_signals of extrinsic alone"
    assert third == "Team (poca): nothing measured for this; there are no figures of poca"


def test_a_template_for_all_behaviors_is_a_section_too(cli: Invoke) -> None:
    found = cli("recommend", "-", input="default_settings: {max_steps: 40000}")

    assert found.stdout.startswith("default_settings (ppo): ")


def test_a_mistake_is_told_with_its_line(cli: Invoke, tmp_path: Path) -> None:
    found = cli("recommend", path := written(tmp_path, Walker={"max_step": 3}))

    assert found.exit_code == Exit.REFUSED
    assert f"{path}:3: behaviors.Walker.max_step: " in found.stderr
