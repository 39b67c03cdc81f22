"""Plug-ins of other packages: installed, not installed, broken, or missing on a worker."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.config.behavior import TRAINERS
from ludus.plugins import OWN, Kind, PluginError, added, installed, load_object
from server.config.resolution import resolve
from server.kit.errors import InvalidConfig
from server.runs.scheduling.demand import Demand, Offer, no_slot_serves
from tests.e2e.stack import LudusUp, Player

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
CONFIG = (EXAMPLE / "config.yaml").read_text()


def install(source: Path, folder: Path) -> None:
    """Install a package by pip, without the network."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, source], check=True)


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed by pip into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    install(EXAMPLE, folder)
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages of this process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()


def in_a_process(code: str, *folders: Path) -> Any:
    """Return what a process that also has the packages of these folders prints, as JSON."""
    path = os.pathsep.join(map(str, (*folders, ROOT)))
    finished = subprocess.run(
        [sys.executable, "-c", f"import json\n{code}"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def package(site: Path, name: str, module: str, **entry_points: str) -> None:
    """Install a package of one module, as pip leaves it behind."""
    (site / f"{name}.py").write_text(module)
    metadata = site / f"{name}-2.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    groups = (f"[ludus.{group}]\n{line}\n" for group, line in entry_points.items())
    (metadata / "entry_points.txt").write_text("\n".join(groups))


def test_dqn_novelty_its_explorer_and_all_adapters_are_plug_ins() -> None:
    own = {kind: {name for name, plugin in installed(kind).items() if plugin.package == OWN} for kind in Kind}

    assert own == {
        Kind.TRAINERS: {"dqn"},
        Kind.REWARDS: {"novelty"},
        Kind.EXPLORERS: {"epsilon_greedy"},
        Kind.ADAPTERS: {"gymnasium", "pettingzoo", "python"},
    }


def test_nothing_of_the_core_names_them() -> None:
    rooms = {ROOT / "ludus/config/plugins", ROOT / "worker/learning/plugins", ROOT / "ludus/adapters"}
    core = [
        path
        for package in ("ludus", "server", "worker")
        for path in (ROOT / package).rglob("*.py")
        if not rooms & {*path.parents} and path.name != "epsilon_greedy.py"
    ]
    modules = r"adapters[.](gymnasium|pettingzoo|assignment|python)"
    named = [str(path) for path in core if re.search(rf"(?i)dqn|novelty|epsilon.?greedy|{modules}", path.read_text())]

    assert len(core) > 400
    assert named == []


def test_the_page_leads_from_an_empty_folder_to_a_reward_in_a_configuration(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (project,) = [text for language, text in blocks if language == "toml"]
    (config,) = [text for language, text in blocks if language == "yaml"]
    keys, reward, *_ = [text for language, text in blocks if language == "python"]
    source = tmp_path / "hunger"
    (source / "hunger").mkdir(parents=True)
    (source / "pyproject.toml").write_text(project)
    for name, text in {"__init__": "", "config": keys, "reward": reward}.items():
        (source / "hunger" / f"{name}.py").write_text(text)
    install(source, tmp_path / "site")

    answer = in_a_process(
        f"""
from server.config.resolution import resolve
from tests.worker.learning.test_build import CPU, NONE, make_spec
from worker.learning.build import build_algorithm
section = resolve({config!r}).behaviors["CartPole"]
signals = build_algorithm(section, make_spec(branches=(2,)), CPU, 1, NONE).signals
print(json.dumps([list(signals.names), section.reward_signals.hunger.cost]))
""",
        tmp_path / "site",
    )

    assert answer == [["extrinsic", "hunger"], 0.1]


def test_an_implementation_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(PluginError, match=r"names no_such_package:Reward, .*ModuleNotFoundError"):
        load_object("no_such_package:Reward")


def test_without_the_package_a_configuration_that_names_it_is_refused() -> None:
    with pytest.raises(InvalidConfig) as caught:
        resolve(CONFIG)

    problems = {problem.path: problem.message for problem in caught.value.problems}
    assert "must be 'ppo', 'sac'" in problems["behaviors.Pendulum.trainer_type"]
    assert "effort" in problems["behaviors.Pendulum.reward_signals.effort"]


def test_the_example_is_resolved_built_and_demands_workers_that_have_it(tutorial: Path) -> None:
    answer = in_a_process(
        f"""
from ludus.plugins import broken
from server.config.resolution import resolve
from server.config.rules import warnings_of
from server.runs.scheduling.demand import Demand
from tests.worker.learning.test_build import CPU, NONE, make_spec
from worker.learning.build import build_algorithm
config = resolve({CONFIG!r})
section = config.behaviors["Pendulum"]
algorithm = build_algorithm(section, make_spec(continuous=1), CPU, 1, NONE)
print(json.dumps([type(algorithm).__name__, list(algorithm.signals.names), algorithm._by_hand,
    section.hyperparameters.num_epoch, Demand.of(config.model_dump(mode="json")).text,
    len(broken()), len(list(warnings_of(config)))]))
""",
        tutorial,
    )

    assert answer == ["A2C", ["extrinsic", "effort"], False, 1, "0;rewards.effort,trainers.a2c", 0, 0]


def test_a_worker_without_the_plug_in_is_not_given_the_run_and_the_run_says_what_is_missing() -> None:
    demand = Demand(labels=frozenset({"rewards.effort", "trainers.a2c"}))
    reason = no_slot_serves(demand, {Offer(0, frozenset({"trainers.a2c"})): 2})

    assert reason is not None
    assert "none has the label rewards.effort" in reason
    assert no_slot_serves(demand, {Offer(0, frozenset({"trainers.a2c", "rewards.effort"})): 1}) is None


def test_a_label_that_is_missing_and_a_plug_in_is_said_to_be_one(site: Path) -> None:
    package(site, "calm", "", rewards="calm = calm:Nothing")

    reason = no_slot_serves(Demand(labels=frozenset({"rewards.calm"})), {Offer(0): 1})

    assert "none has the label rewards.calm; these are plug-ins: rewards.calm (install calm there)" in str(reason)


def test_a_run_that_names_more_plug_ins_than_a_demand_has_labels_is_refused(site: Path) -> None:
    package(site, "many", "", rewards="\n".join(f"signal{number} = many:Signal" for number in range(9)))
    signals = {f"signal{number}": {} for number in range(9)}

    with pytest.raises(InvalidConfig, match="with its plug-ins the run demands 9 labels"):
        Demand.of({"behaviors": {"A": {"trainer_type": "ppo", "reward_signals": signals}}})


def test_versions_are_those_of_the_packages(site: Path) -> None:
    package(site, "calm", "", rewards="calm = calm:Nothing")

    assert [(plugin.label, plugin.package, plugin.version) for plugin in added()] == [("rewards.calm", "calm", "2.5")]


@pytest.mark.parametrize(
    ("module", "group", "line", "words"),
    [
        ("import a_module_that_is_not_there", "trainers", "odd = odd:Config", "ModuleNotFoundError"),
        ("1 / 0", "rewards", "odd = odd:Config", "ZeroDivisionError: division by zero"),
        ("", "trainers", "odd = odd:Config", "AttributeError"),
        ("class Config: pass", "rewards", "odd = odd:Config", "is no RewardSignalConfig"),
        ("from ludus.config.behavior import PPOConfig", "trainers", "odd = odd:PPOConfig", "trainer_type is 'ppo'"),
        ("", "rewards", "so odd = odd:Config", "its name must be"),
    ],
    ids=["missing module", "raises", "missing class", "wrong class", "another name", "bad name"],
)
def test_a_broken_plug_in_is_named_and_all_else_works(
    tmp_path: Path, module: str, group: str, line: str, words: str
) -> None:
    package(tmp_path, "odd", module, **{group: line})
    key = "'trainer_type': 'odd'" if group == "trainers" else "'reward_signals': {'extrinsic': {}, 'odd': {}}"

    reason, trainer, refusal = in_a_process(
        f"""
from server.config.resolution import resolve
from server.kit.errors import InvalidConfig
from ludus.plugins import broken
plain = resolve({{"behaviors": {{"A": {{"trainer_type": "dqn"}}}}}})
try:
    resolve({{"behaviors": {{"A": {{{key}}}}}}})
except InvalidConfig as error:
    refusal = error.problems[0].message
print(json.dumps([[str(problem) for problem in broken()], plain.behaviors["A"].trainer_type, refusal]))
""",
        tmp_path,
    )

    assert trainer == "dqn"
    (reason,) = reason
    assert "of odd 2.5" in reason
    assert words in reason
    assert line.startswith("so odd") or words in refusal


def test_a_package_does_not_replace_what_ludus_has(tmp_path: Path) -> None:
    package(tmp_path, "thief", "1 / 0", trainers="dqn = thief:DQN\nppo = thief:PPO")

    names = in_a_process(
        "from ludus.config.behavior import TRAINERS\n"
        "print(json.dumps({name: trainer.__module__ for name, trainer in TRAINERS.items()}))",
        tmp_path,
    )

    assert names == {name: trainer.__module__ for name, trainer in TRAINERS.items()}


@pytest.mark.long
@pytest.mark.e2e
def test_the_example_learns_in_a_whole_stack_and_leaves_a_model(tutorial: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(tutorial), str(ROOT)])
    up = LudusUp(tmp_path / "home", PYTHONPATH=path)
    try:
        with up.client() as client:
            run = client.runs.create(CONFIG.replace("20000", "2000").replace("summary_freq: 2000", "summary_freq: 500"))
            player = Player(up, run.id, game="gymnasium:Pendulum-v1")
            try:
                assert client.runs.wait(run.id, timeout=120).state == "SUCCEEDED"
            finally:
                player.kill()
            (attempt,) = client.runs.attempts(run.id)
            keys = {metric.key for metric in client.metrics.list(run.id)}
            client.checkpoints.download(run.id, "latest", "Pendulum.onnx", tmp_path / "model.onnx")
    finally:
        up.stop()

    assert attempt.fingerprint is not None
    assert attempt.fingerprint["plugins"] == [
        "trainers.a2c of tutorial-plugin 1.0",
        "rewards.effort of tutorial-plugin 1.0",
    ]
    assert {"Policy/Effort Reward", "Policy/Effort Value Estimate"} <= keys
    assert (tmp_path / "model.onnx").stat().st_size > 0
