"""Policies of other runs as opponents: read from their checkpoints, drawn, served, told of, and kept."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import PPOConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from server.config.resolution import resolve
from tests.toys.brawl import Brawl
from tests.worker.selfplay.match_day import Recorder, train
from tests.worker.trainer.test_selfplay import BLUE, RED, section
from worker.collectors.acting import POLICIES
from worker.learning.build import Demonstrations, build_algorithm
from worker.selfplay.external import FIRST_KEY, ExternalOpponents, SnapshotPool
from worker.trainer import checkpoint
from worker.trainer.initialization import Sources
from worker.trainer.messages import Finished


def filled(window: int, count: int) -> SnapshotPool:
    pool = SnapshotPool(window)
    for step in range(count):
        pool.save(10 * step, np.full(3, step, np.float32))
    return pool


def test_the_newest_are_kept_under_numbers_that_count_on() -> None:
    pool = filled(3, 5)

    assert [(one.number, one.step, one.weights[0]) for one in pool.snapshots] == [(2, 20, 2), (3, 30, 3), (4, 40, 4)]


def test_a_pool_goes_on_from_its_state_and_a_smaller_one_keeps_the_newest() -> None:
    state = filled(3, 5).state_dict()
    same, smaller = SnapshotPool(3), SnapshotPool(1)
    for pool in (same, smaller):
        pool.load_state_dict(state)

    assert [one.number for one in same.snapshots] == [2, 3, 4]
    assert [one.number for one in smaller.snapshots] == [4]
    assert same.save(50, np.zeros(3, np.float32)).number == 5


CKPT, OTHER = "ckpt_" + "a" * 26, "ckpt_" + "b" * 26


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run of its own to its end; return the folder of its last checkpoint."""
    _, match_recorder = train(
        {"Brawler": section(max_steps=300)}, [Brawl({RED: 1, BLUE: 2})], tmp_path_factory.mktemp("one")
    )
    return match_recorder.folders[-1]


def play(
    folder: Path, opponents: list[str], checkpoints: Mapping[str, str], **overrides: Any
) -> tuple[Finished, Recorder]:
    """Train against opponents; return how it ended, and what the trainer told."""
    resume_from = overrides.pop("resume_from", None)
    self_play = {"opponents": opponents, "play_against_latest_model_ratio": 0.0, "window": 2, "swap_steps": 20}
    document = section(**{"max_steps": 600, **overrides, "self_play": {**self_play, **overrides.pop("self_play", {})}})
    return train(
        {"Brawler": document}, [Brawl({RED: 1, BLUE: 1})], folder, checkpoints=checkpoints, resume_from=resume_from
    )


def ghost_of(folder: str | Path) -> dict[str, Any]:
    state: dict[str, Any] = checkpoint.load(Path(folder))["Brawler"]["self_play"]["ghost"]
    return state


@pytest.mark.long
def test_a_random_player_is_an_opponent_that_does_anything_and_told_of_by_its_name(tmp_path: Path) -> None:
    _, match_recorder = play(tmp_path, ["random"], {}, max_steps=600)

    participants = [participant for match in match_recorder.matches for participant in match.participants[1:]]
    assert {participant.scripted for participant in participants} == {"random", None}
    rated = [match for match in match_recorder.matches if match.rated and match.participants[1].scripted == "random"]
    assert rated, "matches against it change ratings"
    (guest,) = ghost_of(match_recorder.folders[-1])["guests"]
    assert (guest["checkpoint"], guest["step"]) == (None, 0)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_random_player_has_no_preference(kind: str) -> None:
    actions = ActionSpec(continuous_size=2) if kind == "continuous" else ActionSpec(discrete_branches=(3, 2))
    spec = BehaviorSpec("A", (ObservationSpec((4,)),), actions)
    config = resolve({"behaviors": {"A": {"trainer_type": "ppo", "self_play": {}}}}).behaviors["A"]
    assert isinstance(config, PPOConfig)
    algorithm = build_algorithm(config, spec, torch.device("cpu"), 1, Demonstrations({}))
    guests = ExternalOpponents()

    (guest,) = guests.add(["random"], Sources({}), "A", algorithm.actor, "behaviors.A")
    policy = POLICIES.policy(spec, config.network_settings)
    policy.load(guest.weights)
    observations = [np.random.default_rng(1).standard_normal((4000, 4)).astype(np.float32)]
    drawn = policy.act(observations, None, None, np.random.default_rng(2))

    if kind == "continuous":
        assert drawn.continuous_sample.mean(0) == pytest.approx([0, 0], abs=0.1)
        assert drawn.continuous_sample.std(0) == pytest.approx([1, 1], abs=0.1)
    else:
        assert np.bincount(drawn.discrete[:, 0]) / 4000 == pytest.approx([1 / 3] * 3, abs=0.05)
        assert np.bincount(drawn.discrete[:, 1]) / 4000 == pytest.approx([1 / 2] * 2, abs=0.05)


@pytest.mark.long
def test_policies_of_other_runs_are_drawn_beside_the_own_snapshots_and_told_of_by_their_checkpoint(
    origin: Path, tmp_path: Path
) -> None:
    _, match_recorder = play(tmp_path, [CKPT, f"{CKPT}#2"], {CKPT: str(origin)}, max_steps=800)

    participants = Counter(
        (participant.checkpoint, participant.snapshot)
        for match in match_recorder.matches
        for participant in match.participants[1:]
    )
    assert {(CKPT, None), (CKPT, 2)} < participants.keys(), "both guests"
    assert any(name is None and number is not None for name, number in participants), "and snapshots of its own"
    told = {
        (participant.checkpoint, participant.snapshot): participant
        for match in match_recorder.matches
        for participant in match.participants[1:]
    }
    source = ghost_of(origin)
    steps = {one["number"]: one["step"] for one in source["pool"]["snapshots"]}
    assert (told[CKPT, None].behavior, told[CKPT, None].step) == ("Brawler", 300)
    assert told[CKPT, 2].step == steps[2]
    rated = [match for match in match_recorder.matches if match.rated and match.participants[1].checkpoint is not None]
    assert rated, "matches against guests change ratings"
    ghost = ghost_of(match_recorder.folders[-1])
    ratings = ghost["ratings"]["snapshots"]
    assert {str(FIRST_KEY), str(FIRST_KEY + 1)} < ratings.keys(), "guests are not forgotten with old snapshots"
    assert all(str(key) in ghost["payoffs"] for key in (FIRST_KEY, FIRST_KEY + 1)), "the selection knows how it fares"
    policy, snapshot = ghost["guests"]
    state = checkpoint.load(origin)["Brawler"]
    parts = [value for name, value in state["algorithm"]["model"].items() if name.startswith("actor.")]
    weights = np.concatenate([part.numpy().reshape(-1) for part in parts])
    assert sorted(policy["weights"].tolist()) == sorted(weights.tolist())
    (taken,) = [one for one in source["pool"]["snapshots"] if one["number"] == 2]
    assert (snapshot["weights"] == taken["weights"]).all()


@pytest.mark.long
def test_a_run_goes_on_against_the_same_guests_even_if_their_checkpoint_is_gone(origin: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(origin, copy)
    _, before = play(tmp_path / "before", [CKPT], {CKPT: str(copy)}, max_steps=320)
    saved = ghost_of(before.folders[-1])
    shutil.rmtree(copy)

    finished, after = play(tmp_path / "after", [CKPT], {}, max_steps=600, resume_from=str(before.folders[-1]))

    assert finished.outcome == "succeeded", finished.detail
    restored = ghost_of(after.folders[-1])
    assert [(one["number"], one["checkpoint"]) for one in restored["guests"]] == [(FIRST_KEY, CKPT)]
    assert (restored["guests"][0]["weights"] == saved["guests"][0]["weights"]).all()
    assert any(participant.checkpoint == CKPT for match in after.matches for participant in match.participants)


@pytest.mark.long
def test_guests_that_are_named_later_come_to_those_of_the_checkpoint(origin: Path, tmp_path: Path) -> None:
    _, before = play(tmp_path / "before", [CKPT], {CKPT: str(origin)}, max_steps=128)

    _, after = play(
        tmp_path / "after",
        [f"{OTHER}#2", CKPT],
        {OTHER: str(origin)},
        max_steps=256,
        resume_from=str(before.folders[-1]),
    )

    guests = ghost_of(after.folders[-1])["guests"]
    assert [(one["number"], one["checkpoint"], one["snapshot"]) for one in guests] == [
        (FIRST_KEY, CKPT, None),
        (FIRST_KEY + 1, OTHER, 2),
    ]


@pytest.mark.parametrize(
    ("opponent", "overrides", "reason"),
    [
        (CKPT, {"network_settings": {"hidden_units": 16, "num_layers": 1}}, "needed is 16x1"),
        (f"{CKPT}#77", {}, "it has no snapshot 77 of 'Brawler', but "),
        (OTHER, {}, f"the checkpoint {OTHER} was not handed to this trainer"),
    ],
    ids=["other-size", "no-such-snapshot", "not-there"],
)
def test_a_policy_that_can_not_play_fails_the_run_with_its_key_and_what_does_not_fit(
    origin: Path, tmp_path: Path, opponent: str, overrides: dict[str, Any], reason: str
) -> None:
    finished, match_recorder = play(tmp_path, [opponent], {CKPT: str(origin)}, **overrides)

    assert finished.detail is not None
    assert (finished.outcome, finished.reason) == ("failed", "invalid_config")
    assert finished.detail.startswith("behaviors.Brawler.self_play.opponents[0]: ")
    assert reason in finished.detail
    assert match_recorder.events["behavior_refused"].message == finished.detail
