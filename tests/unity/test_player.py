"""The player says what a Unity build says, in a build's order, and does wrong what it is told to do wrong."""

import io
import json
import struct
import subprocess
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from PIL import Image

from ludus.protocol.mlagents import agent_pb2, unity_pb2
from ludus.protocol.options import SESSION_ID_METADATA
from tests.unity.builds import write_build
from tests.unity.cases import CASES
from tests.unity.descriptions import CAPABILITIES, PACKAGES, Behavior, Fault, Package, Sensor, Trouble, without_graphics
from tests.unity.player import Player, Summary, compatible
from tests.unity.sensors import encode
from tests.unity.side_channels import AGGREGATIONS, ENGINE, FLOATS, PARAMETERS, STATS, frames
from tests.unity.trainer import Trainer
from tests.unity.transcripts import check_transcript
from tests.waiting import eventually

RAW = UUID("7d3f0a52-6a3c-4d9c-9a4e-0f1f2a7f4b11")
SIGNAL = 6
"""Size of a cue of two continuous actions and branches of three and one."""
KNOWING = Behavior("Knowing?team=0", continuous=2, branches=(3, 1), sensors=(Sensor(shape=(SIGNAL,)),))


def nothing(name: str, info: agent_pb2.AgentInfoProto) -> tuple[list[float], list[int]]:
    """For behaviors with two continuous actions."""
    return [0.0, 0.0], []


def right(name: str, info: agent_pb2.AgentInfoProto) -> tuple[list[float], list[int]]:
    """Do what the cue of `KNOWING` says."""
    cue = list(info.observations[0].float_data.data)
    return cue[:2], [int(np.argmax(cue[2:5])), 0]


def allowed(*branches: int) -> Any:
    """Choose the first allowed choice of each branch."""

    def policy(name: str, info: agent_pb2.AgentInfoProto) -> tuple[list[float], list[int]]:
        mask = list(info.action_mask) or [False] * sum(branches)
        starts = np.cumsum([0, *branches[:-1]])
        return [], [mask[start : start + size].index(False) for start, size in zip(starts, branches, strict=True)]

    return policy


def play(trainer: Trainer, *behaviors: Behavior, steps: int = 30, **options: Any) -> Summary:
    """Play against a trainer that was entered, and hold both to the rules."""
    player = Player(trainer.port, behaviors, record=True, timeout=20, **options)

    summary = player.play(steps)

    assert check_transcript(player.transcript) == []
    return summary


def listed(trainer: Trainer, name: str) -> list[list[agent_pb2.AgentInfoProto]]:
    """Return the infos of one behavior, message by message."""
    return [list(message.unity_output.rl_output.agentInfos[name].value) for message in trainer.sent()[:-1]]


# --- the handshake ---


def test_the_handshake_introduces_the_package_and_the_second_call_is_empty() -> None:
    with Trainer(nothing, seed=42) as trainer:
        summary = play(trainer, Behavior(continuous=2), steps=1)
        hello, second, first = (message for direction, message in trainer.transcript[:6] if direction == "sent")

    introduction = hello.unity_output.rl_initialization_output
    assert (introduction.name, introduction.communication_version) == ("AcademySingleton", "1.5.0")
    assert introduction.package_version == "3.0.0"
    assert all(getattr(introduction.capabilities, name) for name in CAPABILITIES)
    assert second == unity_pb2.UnityMessageProto(header=unity_pb2.HeaderProto(status=200))
    assert [brain.brain_name for brain in first.unity_output.rl_initialization_output.brain_parameters] == [
        "Learner?team=0"
    ]
    assert (summary.seed, summary.num_areas, summary.trainer_version) == (42, 1, "1.1.0")


def test_a_player_of_another_major_version_does_not_play() -> None:
    with Trainer(nothing, communication="2.0.0") as trainer:
        summary = Player(trainer.port, [Behavior(continuous=2)]).play(5)

    assert (summary.ending, summary.messages, summary.steps) == ("inference", 2, 0)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [("1.5.0", "1.0.0", True), ("1.5.0", "2.5.0", False), ("0.2.0", "0.2.9", True), ("0.2.0", "0.3.0", False)],
)
def test_versions_fit_if_the_major_ones_do_and_before_the_first_if_the_minor_ones_do(
    ours: str, theirs: str, expected: bool
) -> None:
    assert compatible(ours, theirs) is expected


def test_nobody_listens_is_inference() -> None:
    assert Player(1, [Behavior(continuous=2)], patience=0.2).play(5).ending == "inference"


@pytest.mark.parametrize(("proxy", "ending"), [(True, "inference"), (False, "left")])
def test_proxy_variables_are_obeyed_on_request(proxy: bool, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for variable in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)

    with Trainer(nothing) as trainer:
        player = Player(trainer.port, [Behavior(continuous=2)], proxy=proxy, patience=0.2)

        assert player.play(3).ending == ending


def test_the_same_seed_is_the_same_game() -> None:
    def transcript(seed: int) -> list[bytes]:
        with Trainer(nothing, seed=seed) as trainer:
            play(trainer, Behavior(continuous=2, agents=3, jitter=4))
            return [message.SerializeToString(deterministic=True) for message in trainer.sent()]

    assert transcript(1) == transcript(1)
    assert transcript(1) != transcript(2)


# --- episodes ---


def test_an_agent_ends_and_begins_again_in_one_list_terminal_first() -> None:
    with Trainer(nothing) as trainer:
        play(trainer, Behavior(continuous=2, agents=2, episode_length=3), steps=7)
        messages = [[(info.id, info.done) for info in infos] for infos in listed(trainer, "Learner?team=0")]

    asks, ends_and_asks = [(0, False), (1, False)], [(0, True), (1, True), (0, False), (1, False)]
    assert messages == [asks, asks, asks, ends_and_asks, asks, asks, ends_and_asks]


def test_only_max_step_says_that_it_cut_the_episode() -> None:
    with Trainer(nothing) as trainer:
        play(
            trainer,
            Behavior("Cut", continuous=2, max_step=4, episode_length=9),
            Behavior("Ended", continuous=2, max_step=9, episode_length=4),
            Behavior("Both", continuous=2, max_step=4, episode_length=4),
        )
        cut = {
            name: {info.max_step_reached for infos in listed(trainer, name) for info in infos if info.done}
            for name in ("Cut", "Ended", "Both")
        }

    assert cut == {"Cut": {True}, "Ended": {False}, "Both": {False}}


def test_an_agent_that_is_disabled_is_followed_by_one_with_a_new_id() -> None:
    behavior = Behavior(continuous=2, episode_length=3, episodes_per_life=2, absence=2)
    with Trainer(nothing) as trainer:
        play(trainer, behavior, steps=19)
        infos = [info for message in listed(trainer, "Learner?team=0") for info in message]

    assert [info.id for info in infos if info.done] == [0, 0, 1, 1]
    assert [first.id for first, second in pairwise(infos) if first.id != second.id] == [0, 1]


def test_a_known_behavior_without_agents_keeps_its_empty_entry() -> None:
    short = Behavior("Short", continuous=2, episode_length=2, episodes_per_life=1, absence=5)
    with Trainer(nothing) as trainer:
        play(trainer, Behavior(continuous=2), short, steps=7)
        lengths = [len(infos) for infos in listed(trainer, "Short")]
        entries = [set(message.unity_output.rl_output.agentInfos) for message in trainer.sent()[:-1]]

    assert lengths == [1, 1, 1, 0, 0, 0, 0]
    assert entries == [{"Short", "Learner?team=0"}] * 7


def test_a_late_behavior_is_announced_once_with_its_first_agents() -> None:
    with Trainer(nothing) as trainer:
        play(trainer, Behavior(continuous=2), Behavior("Late?team=1", continuous=2, appears_at=4), steps=8)
        announced = [
            [brain.brain_name for brain in message.unity_output.rl_initialization_output.brain_parameters]
            for message in trainer.sent()[:-1]
        ]

    assert announced == [["Learner?team=0"], [], [], [], ["Late?team=1"], [], [], []]


def test_agents_that_decide_every_kth_step_ask_in_different_messages() -> None:
    behavior = Behavior(continuous=2, agents=4, decision_period=3, staggered=True, episode_length=0)
    with Trainer(nothing) as trainer:
        play(trainer, behavior, steps=6)
        asked = [[info.id for info in infos] for infos in listed(trainer, "Learner?team=0")]

    assert asked == [[0, 3], [1], [2], [0, 3], [1], [2]]


def test_steps_at_which_nobody_asks_and_nobody_ends_send_nothing() -> None:
    with Trainer(nothing) as trainer:
        play(trainer, Behavior(continuous=2, decision_period=5, episode_length=7), steps=15)
        sent = [[info.done for info in infos] for infos in listed(trainer, "Learner?team=0")]

    # decisions at the steps 0, 5, 10; the episode ends at the end of step 6, its end goes out at step 7
    assert sent == [[False], [False], [True], [False], [True]]


def test_rewards_are_what_was_earned_since_the_last_info() -> None:
    learner = Behavior("Knowing?team=0", 1, 2, (3, 1), KNOWING.sensors, decision_period=5, episode_length=0)
    with Trainer(right) as trainer:
        summary = play(trainer, learner, steps=16)
        rewards = [infos[0].reward for infos in listed(trainer, "Knowing?team=0")]

    # everything is right at each of five steps, and each earns a fifth
    assert rewards == pytest.approx([0, 1, 1, 1])
    assert summary.last_scores == {"Knowing?team=0": 1.0}


def test_zeros_earn_half_of_what_continuous_actions_can() -> None:
    with Trainer(nothing) as trainer:
        play(trainer, Behavior(continuous=2, episode_length=0), steps=3)

        assert [infos[0].reward for infos in listed(trainer, "Learner?team=0")] == [0, 0.5, 0.5]


# --- groups ---


def test_groups_begin_and_end_together_and_earn_as_a_group() -> None:
    behavior = Behavior("Team", agents=4, continuous=2, group_size=2, episode_length=5)
    with Trainer(nothing) as trainer:
        play(trainer, behavior, steps=12)
        infos = [info for message in listed(trainer, "Team") for info in message]
        ends = [[info.id for info in message if info.done] for message in listed(trainer, "Team")]

    assert {(info.id, info.group_id) for info in infos} == {(0, 1), (1, 1), (2, 2), (3, 2)}
    assert {info.reward for info in infos} == {0.0}
    assert {info.group_reward for info in infos if info.done} == {0.5}
    assert [ended for ended in ends if ended] == [[0, 1, 2, 3]] * 2


def test_a_member_that_dies_comes_back_with_a_new_id_when_its_group_begins_anew() -> None:
    behavior = Behavior("Team", agents=3, continuous=2, group_size=3, episode_length=6, casualties=True)
    with Trainer(nothing) as trainer:
        play(trainer, behavior, steps=8)
        messages = [
            (sorted(info.id for info in message if info.done), sorted(info.id for info in message if not info.done))
            for message in listed(trainer, "Team")
        ]

    assert messages == [
        *[([], [0, 1, 2])] * 3,
        ([0], [1, 2]),
        *[([], [1, 2])] * 2,
        ([1, 2], [1, 2, 3]),
        ([], [1, 2, 3]),
    ]


# --- actions ---


def test_a_mask_is_empty_until_it_is_used_and_complete_from_then_on() -> None:
    behavior = Behavior(branches=(3, 2), masked=True, episode_length=0)
    with Trainer(allowed(3, 2)) as trainer:
        summary = play(trainer, behavior, steps=5)
        masks = [list(infos[0].action_mask) for infos in listed(trainer, "Learner?team=0")]

    assert [len(mask) for mask in masks] == [0, 5, 5, 5, 5]
    assert [sum(mask[:3]) for mask in masks[1:]] == [1, 0, 1, 0]
    assert [sum(mask[3:]) for mask in masks[1:]] == [1, 0, 1, 0]
    assert summary.forbidden_choices == 0


def test_choices_that_the_mask_forbids_are_counted() -> None:
    def stubborn(name: str, info: agent_pb2.AgentInfoProto) -> tuple[list[float], list[int]]:
        return [], [list(info.action_mask).index(True) if any(info.action_mask) else 0]

    with Trainer(stubborn) as trainer:
        player = Player(trainer.port, [Behavior(branches=(3,), masked=True)], record=True)

        assert player.play(6).forbidden_choices == 3
        assert sum("which its mask forbids" in problem for problem in check_transcript(player.transcript)) == 3


def test_fewer_actions_than_agents_break_the_game_as_in_unity() -> None:
    with Trainer(nothing, too_few=True) as trainer:
        player = Player(trainer.port, [Behavior(continuous=2, agents=3)])
        with pytest.raises(IndexError, match="3 agents asked, 2 actions came"):
            player.play(3)


def test_a_behavior_without_actions_does_nothing() -> None:
    with Trainer(right, without_actions={4}) as trainer:
        player = Player(trainer.port, [KNOWING])
        player.play(4)
        rewards = [infos[0].reward for infos in listed(trainer, "Knowing?team=0")]

    assert rewards[1] == 1.0
    assert rewards[2] < 1.0  # zeros, and choice 0, are half right at best
    assert rewards[3] == 1.0


@pytest.mark.parametrize(
    ("behavior", "sizes", "kind"),
    [
        (Behavior("Old", continuous=2), [2], agent_pb2.continuous),
        (Behavior("Old", branches=(3, 2)), [3, 2], agent_pb2.discrete),
    ],
)
def test_an_old_package_announces_and_obeys_the_deprecated_fields_alone(
    behavior: Behavior, sizes: list[int], kind: int
) -> None:
    def policy(name: str, info: agent_pb2.AgentInfoProto) -> tuple[list[float], list[int]]:
        return ([1.0, -1.0], []) if behavior.continuous else ([], [2, 1])

    with Trainer(policy) as trainer:
        play(trainer, behavior, steps=40, package=PACKAGES["1.0.8"])
        (parameters,) = trainer.sent()[0].unity_output.rl_initialization_output.brain_parameters
        infos = [info for message in listed(trainer, "Old") for info in message]

    assert list(parameters.vector_action_size_deprecated) == sizes
    assert parameters.vector_action_space_type_deprecated == kind
    assert not parameters.HasField("action_spec")
    assert not infos[0].observations[0].dimension_properties
    assert len({info.reward for info in infos}) > 1  # what it does counts


# --- observations ---


def test_every_kind_of_sensor_says_its_shape_in_the_order_of_names() -> None:
    sensors = (
        Sensor("vector", shape=(3,)),
        Sensor("goal", shape=(2,), goal=True),
        Sensor("entities", "buffer", (4, 2)),
        Sensor("camera", "visual", (3, 5, 4)),
    )
    with Trainer(nothing) as trainer:
        play(trainer, Behavior(continuous=2, sensors=sensors), steps=1)
        observations = list(listed(trainer, "Learner?team=0")[0][0].observations)

    assert [(seen.name, list(seen.shape), list(seen.dimension_properties)) for seen in observations] == [
        ("camera", [3, 5, 4], [1, 2, 2]),
        ("entities", [4, 2], [4, 1]),
        ("goal", [2], [1]),
        ("vector", [3], [1]),
    ]
    assert [seen.observation_type for seen in observations] == [0, 0, agent_pb2.GOAL_SIGNAL, 0]


def test_packages_up_to_2_3_put_the_channels_last() -> None:
    values = (np.arange(12).reshape(2, 3, 2) / 255).astype(np.float32)
    sensor = Sensor("camera", "visual", values.shape)

    new = encode(sensor, values, Package(), CAPABILITIES)
    old = encode(sensor, values, PACKAGES["2.3.0-exp.3"], CAPABILITIES)

    assert (list(new.shape), list(new.dimension_properties)) == ([2, 3, 2], [1, 2, 2])
    assert (list(old.shape), list(old.dimension_properties)) == ([3, 2, 2], [2, 2, 1])
    assert np.array_equal(np.reshape(new.float_data.data, (2, 3, 2)), values)
    assert np.array_equal(np.reshape(old.float_data.data, (3, 2, 2)).transpose(2, 0, 1), values)


@pytest.mark.parametrize(
    ("channels", "mapping", "decoded"),
    [
        (3, (), [0, 1, 2]),
        (1, (), [0, 0, 0]),
        (1, (0, 0, 0), [0, 0, 0]),
        (2, (0, 0, 0, 1, 1, 1), [0, 0, 0, 1, 1, 1]),
        (4, (0, 1, 2, 3, -1, -1), [0, 1, 2, 3, None, None]),
        (7, (), [0, 1, 2, 3, 4, 5, 6, None, None]),
    ],
)
def test_images_are_pngs_of_three_channels_each(
    channels: int, mapping: tuple[int, ...], decoded: list[int | None]
) -> None:
    values = (np.random.default_rng(0).integers(0, 256, (channels, 5, 4)) / 255).astype(np.float32)

    said = encode(Sensor("camera", "png", values.shape, mapping), values, Package(), CAPABILITIES)

    files = [b"\x89PNG" + part for part in said.compressed_data.split(b"\x89PNG")[1:]]
    pictures = [np.asarray(Image.open(io.BytesIO(file))).transpose(2, 0, 1) for file in files]  # Pillow's decoder
    expected = [np.zeros((5, 4)) if channel is None else values[channel] * 255 for channel in decoded]
    assert np.array_equal(np.concatenate(pictures), np.rint(expected))
    assert (said.compression_type, tuple(said.compressed_channel_mapping)) == (agent_pb2.PNG, mapping)


@pytest.mark.parametrize(
    ("sensor", "missing", "compressed"),
    [
        (Sensor("camera", "png", (4, 3, 3)), "concatenatedPngObservations", False),
        (Sensor("camera", "png", (3, 3, 3)), "concatenatedPngObservations", True),
        (Sensor("camera", "png", (1, 3, 3), (0, 0, 0)), "compressedChannelMapping", False),
        (Sensor("camera", "png", (3, 3, 3), (0, 1, 2)), "compressedChannelMapping", True),
    ],
)
def test_images_that_the_trainer_cannot_decode_are_sent_uncompressed(
    sensor: Sensor, missing: str, compressed: bool
) -> None:
    said = encode(sensor, np.zeros(sensor.shape, np.float32), Package(), CAPABILITIES.keys() - {missing})

    assert (said.compression_type == agent_pb2.PNG) is compressed


def test_cameras_are_black_without_graphics() -> None:
    behavior = Behavior(continuous=2, sensors=(Sensor("camera", "visual", (1, 2, 2)), Sensor("vector", shape=(2,))))
    with Trainer(nothing) as trainer:
        play(trainer, without_graphics(behavior), steps=1)
        camera, vector = listed(trainer, "Learner?team=0")[0][0].observations

    assert set(camera.float_data.data) == {0.0}
    assert set(vector.float_data.data) <= {-1.0, 1.0}


# --- side channels ---


def test_the_player_keeps_what_the_trainer_says_and_answers_raw_bytes() -> None:
    def frame(channel: UUID, payload: bytes) -> bytes:
        return channel.bytes_le + struct.pack("<i", len(payload)) + payload

    before = b"".join(
        (
            frame(PARAMETERS, bytes.fromhex("04000000 73697a65 00000000 0000c03f")),
            frame(PARAMETERS, bytes.fromhex("01000000 67 01000000 01000000 00000000 0000803f 00000040")),
            *(
                frame(ENGINE, bytes.fromhex(text))
                for text in ("000000005400000054000000", "0100000005000000", "020000000000a041")
            ),
            *(frame(ENGINE, bytes.fromhex(text)) for text in ("03000000ffffffff", "040000003c000000")),
        )
    )
    later = frame(RAW, b"ping") + frame(FLOATS, struct.pack("<i", 1) + b"f" + struct.pack("<f", 0.5))
    with Trainer(nothing, side_channels={2: before, 4: later}) as trainer:
        summary = play(trainer, Behavior(continuous=2), steps=5, raw=[RAW])
        answers = [frames(message.unity_output.rl_output.side_channel) for message in trainer.sent()]

    assert summary.parameters == {"size": ["constant", 1.5], "g": ["uniform", 1, 1.0, 2.0]}
    assert summary.engine == {
        "width": 84,
        "height": 84,
        "quality_level": 5,
        "time_scale": 20.0,
        "target_frame_rate": -1,
        "capture_frame_rate": 60,
    }
    assert (summary.floats, summary.raw) == ({"f": 0.5}, [(str(RAW), b"ping".hex())])
    assert answers[:4] == [[], [], [(RAW, b"echo:ping")], []]


def test_stats_of_all_four_aggregations_go_with_every_message() -> None:
    with Trainer(nothing) as trainer:
        play(trainer, Behavior(continuous=2), steps=2, stats=True)
        said = [frames(message.unity_output.rl_output.side_channel) for message in trainer.sent()[:-1]]

    for number, message in enumerate(said):
        assert message == [
            (STATS, struct.pack("<i", len(key)) + key + struct.pack("<fi", number + 2, aggregation))
            for aggregation, key in enumerate(f"Player/{name}".encode() for name in AGGREGATIONS)
        ]


# --- commands, endings ---


def test_reset_begins_all_episodes_anew_without_ends_and_with_the_same_ids() -> None:
    behavior = Behavior(continuous=2, agents=2, episode_length=4)
    with Trainer(nothing, resets={5}) as trainer:
        summary = play(trainer, behavior, steps=8)
        messages = [[(info.id, info.done) for info in infos] for infos in listed(trainer, "Learner?team=0")]

    asks = [(0, False), (1, False)]
    # RESET answers the third message; what agents do in that step is before the four that the episode counts
    assert messages[:7] == [asks] * 7
    assert messages[7] == [(0, True), (1, True), *asks]
    assert (summary.resets, summary.episodes) == (1, {"Learner?team=0": 2})


def test_the_trainer_ends_it_with_status_400() -> None:
    with Trainer(nothing, ends_at=6) as trainer:
        summary = play(trainer, Behavior(continuous=2))

    assert (summary.ending, summary.messages) == ("ended", 6)


def test_the_player_leaves_with_status_400() -> None:
    with Trainer(nothing) as trainer:
        summary = play(trainer, Behavior(continuous=2), steps=3)

    assert (summary.ending, trainer.sent()[-1].header.status) == ("left", 400)


def test_another_thread_can_let_it_leave() -> None:
    with Trainer(nothing) as trainer:
        player = Player(trainer.port, [Behavior(continuous=2)], pace=0.001)
        threading.Timer(0.2, player.leave).start()

        assert player.play().ending == "left"


def test_a_player_whose_call_is_held_can_vanish() -> None:
    with Trainer(nothing, holds_at=2) as trainer:
        player = Player(trainer.port, [Behavior(continuous=2)])
        thread = threading.Thread(target=player.play)
        thread.start()
        trainer.holding.wait(10)
        player.vanish()
        thread.join(10)

    assert not thread.is_alive()
    assert player.summary.ending == "vanished"


# --- misbehavior ---


def troubled(fault: Fault, at: int = 4, **details: Any) -> tuple[Summary, list[unity_pb2.UnityMessageProto], list[str]]:
    """Play with a fault; return the summary, what the trainer got and what is wrong with it."""
    with Trainer(nothing) as trainer:
        player = Player(trainer.port, [Behavior(continuous=2)], trouble=Trouble(fault, at, **details), record=True)
        if fault == "hang":
            threading.Timer(0.3, player.vanish).start()
        summary = player.play(5)
        transcript = trainer.transcript
    return summary, [message for direction, message in transcript if direction == "sent"], check_transcript(transcript)


def test_the_second_call_can_be_missing() -> None:
    summary, messages, _ = troubled("hang", at=2)

    assert len(messages) == 1
    assert summary.ending == "vanished"


def test_it_can_hang() -> None:
    summary, messages, _ = troubled("hang")

    assert len(messages) == 3
    assert summary.ending == "vanished"


def test_it_can_pause_and_go_on() -> None:
    summary, messages, problems = troubled("pause", seconds=0.3)

    assert (summary.ending, len(messages), problems) == ("left", 8, [])
    assert summary.seconds > 0.3


def test_it_can_vanish() -> None:
    summary, messages, _ = troubled("vanish")

    assert (summary.ending, len(messages)) == ("vanished", 3)


def test_it_can_send_garbage() -> None:
    summary, messages, _ = troubled("garbage")

    assert summary.ending == "internal"  # what gRPC's Python server says of bytes that are no message
    assert len(messages) == 3


@pytest.mark.parametrize(
    ("fault", "at", "problem"),
    [
        ("empty", 4, "message 4: nobody asks and nobody ends"),
        ("not_announced", 3, "message 3: Learner?team=0 has agents and was not announced"),
        ("not_training", 3, "message 3: Learner?team=0 is announced, but not for training"),
        ("nan_reward", 4, "message 4: Learner?team=0, agent 0: its rewards are nan and 0.0"),
        (
            "wrong_shape",
            4,
            "message 4: Learner?team=0, agent 0: its observations have shapes [[9]], announced were [[8]]",
        ),
    ],
)
def test_it_can_break_the_rules(fault: Fault, at: int, problem: str) -> None:
    _, _, problems = troubled(fault, at)

    assert problem in problems


def test_it_can_send_observations_that_are_not_numbers() -> None:
    _, messages, _ = troubled("nan_observation")

    (info,) = messages[3].unity_output.rl_output.agentInfos["Learner?team=0"].value
    assert np.isnan(info.observations[0].float_data.data[0])


def test_it_can_send_too_much() -> None:
    summary, messages, _ = troubled("oversized", size=5 << 20)  # gRPC's limit is 4 MiB

    assert (summary.ending, len(messages)) == ("resource_exhausted", 3)


def test_a_player_without_agents_says_nothing_after_the_handshake() -> None:
    with Trainer(nothing) as trainer:
        summary = Player(trainer.port, []).play(seconds=0.2)

        assert (summary.ending, summary.messages) == ("left", 3)  # the third is its goodbye
        assert trainer.sent()[0].header.status == 400


# --- several players ---


@pytest.mark.parametrize(("own_connection", "connections"), [(True, 4), (False, 1)])
def test_players_of_one_process_share_a_connection_or_do_not(own_connection: bool, connections: int) -> None:
    with Trainer(nothing) as trainer:
        players = [
            Player(
                trainer.port,
                [Behavior(continuous=2)],
                own_connection=own_connection,
                metadata=[(SESSION_ID_METADATA, f"player-{index}")],
                pace=0.005,
            )
            for index in range(4)
        ]
        threads = [threading.Thread(target=player.play, args=(60,)) for player in players]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    assert [player.summary.ending for player in players] == ["left"] * 4
    assert len(trainer.peers) == connections
    assert {name: check_transcript(talk.transcript) for name, talk in trainer.conversations.items()} == {
        f"player-{index}": [] for index in range(4)
    }


# --- as a process ---


def test_a_build_is_an_executable_that_takes_unitys_arguments(tmp_path: Path) -> None:
    behaviors = json.dumps([{"name": "Knowing?team=0", "continuous": 2, "sensors": [{"shape": [4]}]}])
    build = write_build(tmp_path / "Game.x86_64", "--behaviors", behaviors, "--steps", "5")
    log = tmp_path / "Player-0.log"
    with Trainer(nothing) as trainer:
        port = str(trainer.port)
        command = [str(build), "-nographics", "-batchmode", "--mlagents-port", port, "-logFile", str(log), "--mine"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)

    summary = json.loads(finished.stdout)
    assert (summary["ending"], summary["steps"]) == ("left", 5)
    assert "--mine" in log.read_text()


def test_a_build_without_a_port_dials_nobody_and_lives(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    process = subprocess.Popen([write_build(tmp_path / "Game"), "-logFile", log])
    try:
        eventually(lambda: log.exists() and "playing alone" in log.read_text(), "it plays alone")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", CASES)
def test_the_player_keeps_the_rules_in_every_case(name: str) -> None:
    case = CASES[name]
    specs = {behavior.name: behavior for behavior in case.behaviors}

    def policy(behavior: str, info: agent_pb2.AgentInfoProto) -> tuple[list[float], list[int]]:
        branches = specs[behavior].branches
        return [0.5] * specs[behavior].continuous, allowed(*branches)(behavior, info)[1] if branches else []

    with Trainer(policy, resets={12}) as trainer:
        summary = play(trainer, *case.behaviors, steps=min(case.steps, 200), package=case.package, stats=case.stats)

    assert all(summary.episodes.values())
