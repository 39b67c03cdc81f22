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
from pydantic import ValidationError

from ludus.cli.exits import Exit
from ludus.config.behavior import TRAINERS
from ludus.config.run import RunConfig
from ludus.plugins import OWN, Kind, PluginError, added, installed, load_object
from server.config.resolution import resolve
from server.kit.errors import InvalidConfig
from server.runs.scheduling.demand import Demand, Offer, no_slot_serves
from tests.e2e.stack import LudusUp, Player, wait_for_step
from tests.e2e.test_edge import collecting

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


def test_trainers_beside_ml_agents_novelty_explorers_and_all_adapters_are_plug_ins() -> None:
    own = {kind: {name for name, plugin in installed(kind).items() if plugin.package == OWN} for kind in Kind}

    assert own == {
        Kind.TRAINERS: {"crossq", "dqn", "finetune", "offline", "td3", "tqc"},
        Kind.REWARDS: {"novelty"},
        Kind.ENCODERS: set(),
        Kind.EXPLORERS: {"epsilon_greedy", "gaussian_noise"},
        Kind.ADAPTERS: {"envpool", "godot", "gymnasium", "gymnasium-vec", "pettingzoo", "python"},
    }


def test_nothing_of_the_core_names_them() -> None:
    rooms = {ROOT / "ludus/config/plugins", ROOT / "worker/learning/plugins", ROOT / "ludus/adapters"}
    core = [
        path
        for package in ("ludus", "server", "worker")
        for path in (ROOT / package).rglob("*.py")
        if not rooms & {*path.parents} and path.name not in {"epsilon_greedy.py", "gaussian_noise.py"}
    ]
    trainers = "dqn|td3|tqc|crossq|rebrac|iql|finetune"
    modules = r"adapters[.](gymnasium|pettingzoo|assignment|python)"
    named = [
        str(path)
        for path in core
        if re.search(rf"(?i){trainers}|novelty|epsilon.?greedy|gaussian.?noise|{modules}", path.read_text())
    ]

    assert len(core) > 400
    assert named == []


@pytest.mark.long
def test_the_page_leads_from_an_empty_folder_to_a_reward_in_a_configuration(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (project,) = [text for language, text in blocks if language == "toml"]
    config, network = [text for language, text in blocks if language == "yaml"]
    keys, reward, encoder, layers, *_ = [text for language, text in blocks if language == "python"]
    source = tmp_path / "hunger"
    (source / "hunger").mkdir(parents=True)
    (source / "pyproject.toml").write_text(project)
    for name, text in {"__init__": "", "config": keys, "reward": reward}.items():
        (source / "hunger" / f"{name}.py").write_text(text)
    install(source, tmp_path / "site")
    package(tmp_path / "site", "page", "", encoders="tiles = tiles.config:TilesConfig")
    (tmp_path / "site" / "tiles").mkdir()
    for name, text in {"__init__": "", "config": encoder, "layers": layers}.items():
        (tmp_path / "site" / "tiles" / f"{name}.py").write_text(text)

    answer = in_a_process(
        f"""
import yaml
from server.config.resolution import resolve
from tests.worker.learning.test_build import CPU, NONE, make_spec
from worker.learning.build import build_algorithm
from worker.onnx.graph import acting_graph
section = resolve({config!r}).behaviors["CartPole"]
signals = build_algorithm(section, make_spec(branches=(2,)), CPU, 1, NONE).signals
pictures = resolve({{"behaviors": {{"CartPole": yaml.safe_load({network!r})}}}}).behaviors["CartPole"]
actor = build_algorithm(pictures, make_spec(observations=((3, 20, 20),), branches=(2,)), CPU, 1, NONE).actor
print(json.dumps([list(signals.names), section.reward_signals.hunger.cost, len(acting_graph(actor).model) > 0,
    sum(parameter.numel() for parameter in actor.body.encoder.visuals[0].layers[0].parameters())]))
""",
        tmp_path / "site",
    )

    assert answer == [["extrinsic", "hunger"], 0.1, True, 8 * (3 * 4 * 4 + 1)]


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
        ("1 / 0", "encoders", "odd = odd:Config", "ZeroDivisionError: division by zero"),
        ("from ludus.config.values import Section", "encoders", "odd = odd:Section", "is no EncoderConfig"),
        ("class Config: pass", "rewards", "odd = odd:Config", "is no RewardSignalConfig"),
        ("from ludus.config.behavior import PPOConfig", "trainers", "odd = odd:PPOConfig", "trainer_type is 'ppo'"),
        ("", "rewards", "so odd = odd:Config", "its name must be"),
    ],
    ids=[
        "module",
        "raises",
        "missing class",
        "encoder raises",
        "no encoder",
        "wrong class",
        "another name",
        "bad name",
    ],
)
def test_a_broken_plug_in_is_named_and_all_else_works(
    tmp_path: Path, module: str, group: str, line: str, words: str
) -> None:
    package(tmp_path, "odd", module, **{group: line})
    key = {
        "trainers": "'trainer_type': 'odd'",
        "rewards": "'reward_signals': {'extrinsic': {}, 'odd': {}}",
        "encoders": "'network_settings': {'vis_encode_type': 'odd'}",
    }[group]

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


def test_keys_of_a_plug_in_that_a_run_does_not_use_stop_no_process_without_it(tutorial: Path) -> None:
    """A worker may lack it, and runs that were stored outlive it."""
    stored = in_a_process(
        """
from server.config.resolution import resolve
print(json.dumps(resolve({"behaviors": {"A": {}}}).model_dump(mode="json")))
""",
        tutorial,
    )

    section = stored["behaviors"]["A"]
    assert (section["reward_signals"]["effort"], section["network_settings"]["tiles"]) == (None, None)
    plain = RunConfig.model_validate(stored).behaviors["A"]
    assert plain == resolve({"behaviors": {"A": {}}}).behaviors["A"]


def test_keys_of_a_plug_in_that_is_used_are_refused_without_it() -> None:
    with pytest.raises(ValidationError, match="effort"):
        RunConfig.model_validate({"behaviors": {"A": {"reward_signals": {"extrinsic": {}, "effort": {}}}}})


def test_keys_of_an_encoder_are_checked_like_all_others(tutorial: Path) -> None:
    problems = in_a_process(
        """
from server.config.resolution import resolve
from server.kit.errors import InvalidConfig
networks = {"A": {"vis_encode_type": "tile"}, "B": {"tiles": {"tile": 9}}, "C": {"tiles": {"tyle": 1}}}
try:
    resolve({"behaviors": {name: {"network_settings": network} for name, network in networks.items()}})
except InvalidConfig as error:
    print(json.dumps({problem.path: problem.message for problem in error.problems}))
""",
        tutorial,
    )

    assert {path.removeprefix("behaviors.") for path in problems} == {
        "A.network_settings.vis_encode_type",
        "B.network_settings.tiles.tile",
        "C.network_settings.tiles.tyle",
    }
    messages = "\n".join(problems.values())
    assert "or 'tiles', but is \"tile\"" in messages
    assert "must be at most 4, but is 9" in messages
    assert "did you mean `tile`?" in messages


@pytest.mark.long
def test_an_encoder_learns_acts_by_onnx_runtime_as_by_torch_and_demands_its_label(tutorial: Path) -> None:
    answer = in_a_process(
        """
import numpy as np
import torch
from ludus.collector.policy import NetworkPolicy
from ludus.collector.spec_checks import UnsupportedSpec
from server.config.resolution import resolve
from server.runs.scheduling.demand import Demand
from tests.worker.learning.test_build import CPU, NONE, make_spec
from worker.learning.build import build_algorithm
from worker.onnx.graph import acting_graph
network = {"vis_encode_type": "tiles", "tiles": {"channels": 8}, "hidden_units": 16}
config = resolve({"behaviors": {"A": {"network_settings": network}}})
section, spec = config.behaviors["A"], make_spec(observations=((3, 20, 20),), branches=(2,))
actor = build_algorithm(section, spec, CPU, 1, NONE).actor
pictures = np.random.default_rng(1).integers(0, 256, (5, 3, 20, 20), np.uint8)
policy = NetworkPolicy(spec, section.network_settings.portable, acting_graph(actor))
policy.load(actor.flatten())
by_onnx, _ = policy.forward([pictures], None)
by_torch, _ = actor(actor.encode([torch.from_numpy(pictures)]))
try:
    build_algorithm(section, make_spec(observations=((3, 8, 8),), branches=(2,)), CPU, 1, NONE)
except UnsupportedSpec as error:
    refusal = str(error)
print(json.dumps([float(np.abs(by_onnx - by_torch.detach().numpy()).max()), len(list(actor.body.encoder.parameters())),
    Demand.of(config.model_dump(mode="json")).text, section.network_settings.portable.vis_encode_type, refusal]))
""",
        tutorial,
    )

    difference, parameters, demand, portable, refusal = answer
    assert difference < 1e-5
    assert (parameters, demand, portable) == (6, "0;encoders.tiles", "fully_connected")
    assert "the visual encoder 'tiles' needs a height and width of at least 12" in refusal


def test_demands_name_the_encoders_of_all_networks(site: Path) -> None:
    package(site, "seen", "", encoders="\n".join(f"eye{number} = seen:Eye" for number in range(3)))
    signals = {"gail": [{"network_settings": {"vis_encode_type": "eye0"}}], "rnd": {"network_settings": None}}
    behavior = {"reward_signals": signals, "network_settings": {"vis_encode_type": "eye2"}}

    assert Demand.of({"behaviors": {"A": behavior}}).labels == {"encoders.eye0", "encoders.eye2"}


ENCODERS = """
from ludus.config.encoder import EncoderConfig
class Formless(EncoderConfig):
    implementation = "odd_layers:formless"
class Missing(EncoderConfig):
    implementation = "odd_layers:missing"
class Doubled(EncoderConfig):
    implementation = "odd_layers:doubled"
"""
LAYERS = """
from torch import nn
class Twice(nn.Module):
    def forward(self, x): return 2 * x
    def onnx(self, graph, inputs, name):
        return graph.node("Mul", [inputs, graph.constant("two", 2.0)], name)
def formless(config, shape, generator): return [nn.Hardswish()]
def doubled(config, shape, generator): return [Twice(), nn.MaxPool2d(2, padding=1), nn.Sigmoid()]
"""


@pytest.mark.long
def test_layers_of_an_encoder_have_an_onnx_form_or_bring_it(tmp_path: Path) -> None:
    names = ("Formless", "Missing", "Doubled")
    package(tmp_path, "odd", ENCODERS, encoders="\n".join(f"{name} = odd:{name}" for name in names))
    (tmp_path / "odd_layers.py").write_text(LAYERS)

    answers = in_a_process(
        f"""
import tempfile
from pathlib import Path
from ludus.plugins import PluginError
from server.config.resolution import resolve
from tests.worker.learning.test_build import CPU, NONE, make_spec
from worker.learning.build import build_algorithm
from worker.onnx.export import export_onnx
answers, spec = [], make_spec(observations=((3, 9, 9),), branches=(2,))
for name in {names!r}:
    config = resolve({{"behaviors": {{"A": {{"network_settings": {{"vis_encode_type": name}}}}}}}})
    try:
        actor = build_algorithm(config.behaviors["A"], spec, CPU, 1, NONE).actor
        export_onnx(actor, spec, Path(tempfile.mkdtemp()) / "policy.onnx")
        answers.append("exported")
    except PluginError as error:
        answers.append(str(error))
print(json.dumps(answers))
""",
        tmp_path,
    )

    formless, missing, doubled = answers
    assert formless.startswith("Hardswish() has no ONNX form: take another layer")
    assert "names odd_layers:missing, which cannot be used: AttributeError" in missing
    assert doubled == "exported"


def test_the_command_line_documents_keys_of_plug_ins(tutorial: Path) -> None:
    answer = in_a_process(
        """
from click.testing import CliRunner
from ludus.cli import ludus
queries = ("tiles", "a2c", "effort")
print(json.dumps([CliRunner().invoke(ludus, ["config", "reference", query]).output for query in queries]))
""",
        tutorial,
    )

    tiles, a2c, effort = answer
    assert "behaviors.NAME.network_settings.tiles\nEncoder for games drawn in tiles" in tiles
    assert "  tile: whole number, ≥ 1, ≤ 4, default 4\n      Width and height of a tile, in pixels.\n" in tiles
    assert "behaviors.NAME.hyperparameters of a2c\nAdvantage actor-critic" in a2c
    assert "  strength: number, default 0.01\n" in effort


CALM = """
from typing import ClassVar, Literal
from ludus.collector.epsilon_greedy import EPSILON_GREEDY
from ludus.config.plugins.dqn import DQNConfig
class CalmConfig(DQNConfig):
    head: ClassVar[str] = "calm"
    trainer_type: Literal["calm"] = "calm"
"""
"""DQN under another name, with an explorer of that name."""


@pytest.fixture(scope="module")
def up(tutorial: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LudusUp]:
    """A stack with the example and with the package `calm`."""
    site = tmp_path_factory.mktemp("calm")
    package(site, "calm", CALM, trainers="calm = calm:CalmConfig", explorers="calm = calm:EPSILON_GREEDY")
    path = os.pathsep.join([str(tutorial), str(site), str(ROOT)])
    up = LudusUp(tmp_path_factory.mktemp("home"), PYTHONPATH=path)
    yield up
    up.stop()


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.xdist_group("plugins")
def test_an_encoder_learns_through_an_edge_collector_that_lacks_it(up: LudusUp, tmp_path: Path) -> None:
    behavior = {
        "hyperparameters": {"batch_size": 64, "buffer_size": 256},
        "network_settings": {"hidden_units": 16, "vis_encode_type": "tiles"},
        "max_steps": 512,
    }
    places = {"grace_seconds": 60, "collectors": {"local": 0, "edge": 1}}
    with up.client() as client:
        run = client.runs.create({"behaviors": {"Lights": behavior}, "simulators": places})
        with collecting(up, run.id) as (address, process):
            player = Player(up, run.id, "--server", address, game=f"python:{ROOT}/tests/toys/lights.py:Lights")
            try:
                assert client.runs.wait(run.id, timeout=120).state == "SUCCEEDED"
            finally:
                player.kill()
            assert process.wait(timeout=20) == Exit.OK
        model = client.checkpoints.download(run.id, "latest", "Lights.onnx", tmp_path / "model.onnx")
        (attempt,) = client.runs.attempts(run.id)

    assert model.stat().st_size > 0
    assert "encoders.tiles of tutorial-plugin 1.0" in (attempt.fingerprint or {})["plugins"]


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.xdist_group("plugins")
def test_an_edge_collector_without_the_explorer_says_what_to_install_and_the_run_goes_on(up: LudusUp) -> None:
    learning = {"batch_size": 32, "buffer_size": 5000, "buffer_init_steps": 100, "steps_per_update": 10}
    behavior = {"trainer_type": "calm", "hyperparameters": learning, "max_steps": 1_000_000}
    with up.client() as client:
        run = client.runs.create({"behaviors": {"CartPole": behavior}})
        player = Player(up, run.id)
        try:
            before = wait_for_step(client, run, 200)
            with collecting(up, run.id) as (_, process):
                _, said = process.communicate(timeout=60)
            wait_for_step(client, run, before.step + 1000)
        finally:
            player.kill()
        events = [event.message for event in client.events.list(run.id)]
        attempts = client.runs.attempts(run.id)
        client.runs.cancel(run.id)
        client.runs.wait(run.id, timeout=60)

    sentence = "the explorer 'calm' is not installed here; install the plug-in that has it: pip install calm"
    assert process.returncode == Exit.REFUSED
    assert said.count(sentence) == 1
    assert "Traceback" not in said
    assert [event for event in events if sentence in event]
    assert len(attempts) == 1


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.xdist_group("plugins")
def test_the_example_learns_in_a_whole_stack_and_leaves_a_model(up: LudusUp, tmp_path: Path) -> None:
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

    assert attempt.fingerprint is not None
    assert {"trainers.a2c of tutorial-plugin 1.0", "rewards.effort of tutorial-plugin 1.0"} <= {
        *attempt.fingerprint["plugins"]
    }
    assert {"Policy/Effort Reward", "Policy/Effort Value Estimate"} <= keys
    assert (tmp_path / "model.onnx").stat().st_size > 0
