"""ML-Agents' recordings: what each byte means, which action belongs to which state, and what damage is said to be."""

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.demonstrations import DemonstrationError, inspect, load, read, write
from ludus.demonstrations.mlagents import META_BYTES
from ludus.mlagents.pictures import encode_pictures
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import demonstration_pb2 as pb
from ludus.protocol.spec import ActionSpec, DimensionProperty, ObservationType
from tests.ludus.demonstrations.shown import assert_equal, make_demonstration, make_spec, picture, vector

REAL = Path(__file__).resolve().parents[2] / "data" / "pushbutton" / "PushButtonAgent_Demo.demo"


def varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def framed(message: Any) -> bytes:
    content = message.SerializeToString()
    return varint(len(content)) + content


def record(
    value: float,
    *,
    action: Sequence[int] = (0,),
    continuous: Sequence[float] = (),
    deprecated: Sequence[float] = (),
    reward: float = 0.0,
    done: bool = False,
    limit: bool = False,
    **info: Any,
) -> pb.AgentInfoActionPairProto:
    """A record whose observation is (value, -value). `action` is the one *before* it."""
    seen = agent.ObservationProto(
        shape=[2], float_data=agent.ObservationProto.FloatData(data=[value, -value]), dimension_properties=[1], name="v"
    )
    given = {"observations": [seen], **info}
    return pb.AgentInfoActionPairProto(
        agent_info=agent.AgentInfoProto(reward=reward, done=done, max_step_reached=limit, **given),
        action_info=agent.AgentActionProto(
            discrete_actions=action, continuous_actions=continuous, vector_actions_deprecated=deprecated
        ),
    )


def brain(branches: Sequence[int] = (3,), continuous: int = 0) -> agent.BrainParametersProto:
    return agent.BrainParametersProto(
        brain_name="Walker?team=0",
        action_spec=agent.ActionSpecProto(
            num_continuous_actions=continuous, num_discrete_actions=len(branches), discrete_branch_sizes=branches
        ),
    )


def recorded(
    records: Sequence[Any],
    *,
    parameters: agent.BrainParametersProto | None = None,
    steps: int | None = None,
    version: int = 1,
    tail: bytes | None = None,
) -> bytes:
    """A whole file, as Unity writes it: with a copy of the meta message, without its length, at the end."""
    meta = pb.DemonstrationMetaProto(
        api_version=version, demonstration_name="Walker", number_steps=len(records) if steps is None else steps
    )
    body = framed(parameters or brain()) + b"".join(map(framed, records))
    return framed(meta).ljust(META_BYTES, b"\0") + body + (meta.SerializeToString() if tail is None else tail)


EPISODES = [
    record(0),
    record(1, action=[1], reward=0.5),
    record(2, action=[2], reward=1.5, done=True),
    record(10, action=[0]),
    record(11, action=[2], reward=3),
    record(12, action=[1], reward=4),
    record(13, action=[1], reward=5, done=True, limit=True),
]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def written(content: bytes) -> Path:
        path = tmp_path / "shown.demo"
        path.write_bytes(content)
        return path

    return written


File = Callable[[bytes], Path]


class TestPairing:
    def test_a_state_has_the_action_that_the_next_record_holds(self, file: File) -> None:
        shown = read(file(recorded(EPISODES)))

        assert shown.observations[0].tolist() == [[0, 0], [1, -1], [10, -10], [11, -11], [12, -12]]
        assert shown.discrete[:, 0].tolist() == [1, 2, 2, 1, 1]
        assert shown.rewards.tolist() == [0.5, 1.5, 3, 4, 5]

    def test_the_terminal_record_is_the_final_observation_and_no_row(self, file: File) -> None:
        shown = read(file(recorded(EPISODES)))

        assert shown.starts.tolist() == [0, 2]
        assert shown.final_observations[0].tolist() == [[2, -2], [13, -13]]
        assert shown.terminated.tolist() == [False, True, False, False, False]
        assert shown.truncated.tolist() == [False, False, False, False, True]

    def test_legacy_pairing_is_that_of_the_old_loader(self, file: File) -> None:
        shown = read(file(recorded(EPISODES)), legacy_pairing=True)

        # Every record but the last one, with its own action and the next one's reward.
        assert shown.observations[0][:, 0].tolist() == [0, 1, 2, 10, 11, 12]
        assert shown.discrete[:, 0].tolist() == [0, 1, 2, 0, 2, 1]
        assert shown.rewards.tolist() == [0.5, 1.5, 0, 3, 4, 5]
        # The terminal record begins the piece that follows.
        assert shown.starts.tolist() == [0, 2]
        assert shown.terminated.tolist() == [False, True, False, False, False, False]

    def test_an_episode_that_the_file_cuts_ends_with_what_was_seen_last(self, file: File) -> None:
        shown = read(file(recorded(EPISODES[:-1])))

        assert shown.final_observations[0].tolist() == [[2, -2], [12, -12]]
        assert shown.complete.tolist() == [True, False]
        assert not shown.terminated[-1]
        assert not shown.truncated[-1]

    def test_an_episode_that_ends_at_once_has_no_step(self, file: File) -> None:
        shown = read(file(recorded([record(5, done=True), *EPISODES])))

        assert shown.steps == 5
        assert shown.starts.tolist() == [0, 2]


class TestRealFile:
    def test_it_is_read_as_unity_wrote_it(self) -> None:
        shown = read(REAL)

        # 4,914 records, of which 54 ended an episode and the last one is followed by none.
        assert shown.steps == 4914 - 54 - 1
        assert shown.spec.name == "PushButton?team=0"
        assert shown.spec.actions == ActionSpec(0, (3, 3, 2))
        assert [observation.shape for observation in shown.spec.observations] == [(4,)]
        found = inspect(shown)
        assert (found.episodes, found.fragments) == (54, 1)
        assert found.discrete == ((1780, 1232, 1847), (1824, 1296, 1739), (4548, 311))
        # Unity counts one episode more, and its mean reward over them is 34.945.
        assert shown.rewards.sum() / 55 == pytest.approx(34.945, abs=1e-3)

    def test_the_position_moves_as_the_actions_say(self) -> None:
        shown = read(REAL)

        moved = self.right_moves(shown)

        inside = ~(shown.terminated | shown.truncated)
        assert (moved[inside].sum(), inside.sum()) == (4805, 4805)
        assert moved.all()

    def test_with_legacy_pairing_it_does_not(self) -> None:
        shown = read(REAL, legacy_pairing=True)
        inside = np.ones(shown.steps, bool)
        inside[shown.starts] = False  # the terminal record of the episode before
        inside[shown.ends] = False

        assert 0 < (~self.right_moves(shown)[inside]).sum() <= 754

    @staticmethod
    def right_moves(shown: Any) -> np.ndarray:
        """The first two branches move along the first two axes: 0 back, 1 not, 2 on."""
        change = shown.next_observations(np.arange(shown.steps))[0][:, :2] - shown.observations[0][:, :2]
        return (np.sign(change.round(4)) == shown.discrete[:, :2] - 1).all(1)

    @pytest.mark.long
    def test_it_survives_both_formats(self, tmp_path: Path) -> None:
        shown = read(REAL)

        for name in ("again.npz", "again.demo"):
            write(shown.pick(range(54)), tmp_path / name)
            assert_equal(read(tmp_path / name), shown.pick(range(54)))


class TestMeta:
    def test_what_follows_the_last_record_is_not_looked_at(self, file: File) -> None:
        assert_equal(read(file(recorded(EPISODES))), read(file(recorded(EPISODES, tail=b""))))

    def test_a_recording_that_was_never_closed_is_read_to_its_end(self, file: File) -> None:
        shown = read(file(recorded(EPISODES, steps=0, tail=b"")))

        assert shown.steps == 5

    def test_half_a_record_at_its_end_is_dropped(self, file: File) -> None:
        half = framed(EPISODES[-1])[:-7]

        shown = read(file(recorded(EPISODES[:-1], steps=0, tail=half)))

        assert_equal(shown, read(file(recorded(EPISODES[:-1]))))

    def test_an_unknown_version_is_refused(self, file: File) -> None:
        path = file(recorded(EPISODES, version=2))

        with pytest.raises(DemonstrationError, match=r"shown.demo, byte 0: .*unknown version 2"):
            read(path)


class TestActions:
    def test_old_files_have_all_actions_in_one_deprecated_field(self, file: File) -> None:
        old = agent.BrainParametersProto(brain_name="Old", vector_action_size_deprecated=[3, 2])
        records = [
            record(0, action=()),
            record(1, action=(), deprecated=[2, 1]),
            record(2, action=(), deprecated=[0, 1]),
        ]

        shown = read(file(recorded(records, parameters=old, version=0)))

        assert shown.spec.actions == ActionSpec(0, (3, 2))
        assert shown.discrete.tolist() == [[2, 1], [0, 1]]

    def test_old_continuous_ones_too(self, file: File) -> None:
        old = agent.BrainParametersProto(
            brain_name="Old", vector_action_size_deprecated=[2], vector_action_space_type_deprecated=agent.continuous
        )
        records = [record(0, action=()), record(1, action=(), deprecated=[0.5, -0.25])]

        shown = read(file(recorded(records, parameters=old)))

        assert shown.spec.actions == ActionSpec(2)
        assert shown.continuous.tolist() == [[0.5, -0.25]]

    def test_continuous_actions_that_no_policy_can_produce_are_clipped(self, file: File) -> None:
        records = [
            record(0, action=()),
            record(1, action=(), continuous=[1.5]),
            record(2, action=(), continuous=[-0.5]),
        ]

        shown = read(file(recorded(records, parameters=brain((), 1))))

        assert shown.continuous[:, 0].tolist() == [1.0, -0.5]

    def test_masks_are_turned_around_and_stay_with_their_state(self, file: File) -> None:
        records = [record(0), record(1, action=[1], action_mask=[False, False, True]), record(2, action=[0])]

        shown = read(file(recorded(records)))

        assert shown.action_masks is not None
        assert shown.action_masks.tolist() == [[1, 1, 1], [1, 1, 0]]

    def test_groups_are_kept(self, file: File) -> None:
        records = [record(0, group_id=4), record(1, group_id=4, group_reward=2.5), record(2, group_id=4)]

        shown = read(file(recorded(records)))

        assert shown.group_ids is not None
        assert shown.group_rewards is not None
        assert (shown.group_ids.tolist(), shown.group_rewards.tolist()) == ([4, 4], [2.5, 0.0])


def seen(*values: float, shape: Sequence[int] | None = None) -> agent.ObservationProto:
    """A vector."""
    return agent.ObservationProto(
        shape=[len(values)] if shape is None else shape, float_data={"data": values}, dimension_properties=[1]
    )


class TestWhatMlAgentsReads:
    """As ML-Agents 1.1.0 reads it: docs/unity-protocol.md."""

    def test_a_sensor_of_no_numbers(self, file: File, tmp_path: Path) -> None:
        """Of agents that see by cameras alone."""
        records = [record(0, done=value == 2.0, observations=[seen(), seen(value)]) for value in (1.0, 2.0)]

        shown = read(file(recorded(records)))
        write(shown, tmp_path / "again.demo")
        write(shown, tmp_path / "again.npz")

        assert [spec.shape for spec in shown.spec.observations] == [(0,), (1,)]
        assert [column.shape for column in shown.observations] == [(1, 0), (1, 1)]
        for again in ("again.demo", "again.npz"):
            assert_equal(read(tmp_path / again), shown)

    def test_surplus_observations(self, file: File) -> None:
        records = [record(0, observations=each) for each in ([seen(1.0)], [seen(2.0), seen(3.0)])]

        shown = read(file(recorded(records)))

        assert [column.tolist() for column in shown.final_observations] == [[[2.0]]]

    def test_a_shape_that_differs_with_as_many_numbers(self, file: File) -> None:
        records = [record(0, observations=[seen(1.0, 2.0, shape=shape)]) for shape in ([2], [1, 2])]

        assert read(file(recorded(records))).final_observations[0].tolist() == [[1.0, 2.0]]

    def test_actions_of_a_kind_that_the_behavior_does_not_have(self, file: File) -> None:
        records = [record(0), record(1, action=[2], continuous=[0.5])]

        shown = read(file(recorded(records)))

        assert (shown.continuous.shape, shown.discrete.tolist()) == ((1, 0), [[2]])

    def test_pictures_that_are_compressed_in_some_records_only(self, file: File) -> None:
        pixels = np.random.default_rng(1).integers(0, 256, (3, 4, 5), np.uint8)
        head = {"shape": pixels.shape, "dimension_properties": [1, 2, 2]}
        compressed = agent.ObservationProto(**head, compression_type=agent.PNG, compressed_data=encode_pictures(pixels))
        plain = agent.ObservationProto(**head, float_data={"data": (pixels / 255).reshape(-1).tolist()})

        shown = read(file(recorded([record(0, observations=[each]) for each in (compressed, plain)])))

        np.testing.assert_array_equal(shown.observations[0][0], pixels)
        np.testing.assert_array_equal(shown.final_observations[0][0], pixels)


class TestPictures:
    @pytest.mark.parametrize("channels", [1, 3, 5])
    def test_they_are_kept_as_bytes(self, channels: int, tmp_path: Path) -> None:
        shown = make_demonstration(make_spec(picture(channels), vector(), branches=(2,)))

        write(shown, tmp_path / "shown.demo")

        assert_equal(read(tmp_path / "shown.demo"), shown)
        assert read(tmp_path / "shown.demo").spec == shown.spec

    def test_pictures_of_old_packages_too(self, file: File) -> None:
        pixels = np.random.default_rng(1).integers(0, 256, (3, 4, 5), np.uint8)
        seen = agent.ObservationProto(
            shape=[4, 5, 3],
            compression_type=agent.PNG,
            compressed_data=encode_pictures(pixels),
            dimension_properties=[2, 2, 1],
        )

        shown = read(file(recorded([record(0, observations=[seen])] * 2)))

        assert shown.spec.observations[0].shape == (3, 4, 5)
        np.testing.assert_array_equal(shown.observations[0][0], pixels)

    def test_channels_that_come_last_are_put_first(self, file: File) -> None:
        pixels = np.arange(24, dtype=np.float32).reshape(4, 3, 2) / 24  # height, width, channels
        seen = agent.ObservationProto(
            shape=pixels.shape,
            float_data=agent.ObservationProto.FloatData(data=pixels.reshape(-1).tolist()),
            dimension_properties=[2, 2, 1],
            observation_type=agent.GOAL_SIGNAL,
        )

        shown = read(file(recorded([record(0, observations=[seen])] * 2)))

        (spec,) = shown.spec.observations
        assert spec.shape == (2, 4, 3)
        assert spec.dimension_properties == tuple(map(DimensionProperty, (1, 2, 2)))
        assert spec.type is ObservationType.GOAL_SIGNAL
        np.testing.assert_array_equal(shown.observations[0][0], pixels.transpose(2, 0, 1))


class TestDamage:
    def test_every_prefix_of_a_file_says_what_is_missing_and_where(self, file: File) -> None:
        content = recorded(EPISODES, tail=b"")

        for keep in range(len(content)):
            with pytest.raises(DemonstrationError, match=r"shown\.demo(, byte \d+)?: .") as raised:
                read(path := file(content[:keep]))
            assert raised.value.path == path
            assert raised.value.position is not None
            assert raised.value.position <= keep

    def test_flipped_bytes_never_raise_anything_else(self, file: File) -> None:
        content = recorded(EPISODES)
        rng = np.random.default_rng(1)
        refused = 0
        for _ in range(400):
            damaged = bytearray(content)
            damaged[rng.integers(len(damaged))] = rng.integers(256)
            try:
                read(file(bytes(damaged)))
            except DemonstrationError:
                refused += 1

        assert refused > 50

    def test_a_length_is_believed_only_as_far_as_the_file_goes(self, file: File) -> None:
        bomb = recorded(EPISODES, tail=b"")[:-10] + varint(2**31 - 1) + b"x"

        with pytest.raises(DemonstrationError, match="cut short"):
            read(file(bomb))

    def test_a_count_of_records_is_believed_only_as_far_as_the_file_goes(self, file: File) -> None:
        with pytest.raises(DemonstrationError, match="its head counts 2147483647 records, 7 are whole"):
            read(file(recorded(EPISODES, steps=2**31 - 1, tail=b"")))

    def test_what_decodes_to_more_than_is_allowed_is_refused(self, file: File) -> None:
        path = file(recorded(EPISODES))

        with pytest.raises(DemonstrationError, match="record 2: the file decodes to more bytes than are allowed"):
            read(path, max_bytes=2000)

    @pytest.mark.long
    def test_many_small_records_take_no_more_memory_than_is_allowed(self, file: File) -> None:
        allowed = 4 << 20
        small = framed(record(0.0))
        path = file(recorded([record(0.0)], steps=0, tail=small * 40_000))
        assert path.stat().st_size < allowed

        tracemalloc.start()
        try:
            with pytest.raises(DemonstrationError, match="more bytes than are allowed"):
                read(path, max_bytes=allowed)
            taken = tracemalloc.get_traced_memory()[1] - path.stat().st_size
        finally:
            tracemalloc.stop()

        assert allowed / 2 < taken < allowed * 1.5

    def test_masks_count_too(self, file: File) -> None:
        """One mask makes a row of every choice for every record."""
        records = [record(0), record(1, action_mask=[True, *[False] * 99_999]), *[record(2)] * 50]
        path = file(recorded(records, parameters=brain((100_000,))))

        assert read(path).steps == 51
        with pytest.raises(DemonstrationError, match="more bytes than are allowed"):
            read(path, max_bytes=1_000_000)

    def test_a_giant_message_is_not_decoded(self, file: File) -> None:
        giant = varint(1 << 26) + bytes(1 << 26)

        with pytest.raises(DemonstrationError, match=r"record 1 has 67,108,864 bytes; no more than 33,554,432"):
            read(file(recorded([record(0)], steps=2, tail=giant)))

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (record(np.nan), r"record 1: observation 0 \('v'\): it is not finite"),
            (record(1, reward=np.inf), "record 1: its reward is inf"),
            (record(1, group_reward=np.nan), "record 1: its group reward is nan"),
            (record(1, action=[3]), "record 1: branch 0 has choice 3; it has the choices 0 to 2"),
            (record(1, action=[-1]), "record 1: branch 0 has choice -1"),
            (record(1, action=[1, 1]), "record 1: it has 0 continuous and 2 discrete actions, .* say 0 and 1"),
            (record(1, observations=[]), "record 1: it has 0 observations, the first record has 1"),
            (
                record(1, observations=[agent.ObservationProto(shape=[3])]),
                r"record 1: observation 0 \('v'\): it has shape \(3,\), the first time it had \(2,\)",
            ),
            (
                record(1, observations=[agent.ObservationProto(shape=[2], float_data={"data": [1.0]})]),
                r"it has 1 numbers, its shape \(2,\) needs 2",
            ),
            (
                record(1, observations=[agent.ObservationProto(shape=[2])]),
                r"it has 0 numbers, its shape \(2,\) needs 2",
            ),
        ],
    )
    def test_a_wrong_record_is_named_with_its_place(self, wrong: Any, message: str, file: File) -> None:
        path = file(recorded([record(0), wrong, record(2)]))

        with pytest.raises(DemonstrationError, match=message) as raised:
            read(path)

        assert raised.value.position is not None
        assert raised.value.position > META_BYTES

    @pytest.mark.parametrize("shape", [[2**30, 2**30], [-2], [], [1, 1, 1, 1, 1, 2]])
    def test_an_impossible_shape_is_refused(self, shape: list[int], file: File) -> None:
        seen = agent.ObservationProto(shape=shape, float_data={"data": [1.0, 2.0]})

        with pytest.raises(DemonstrationError, match=r"record 0: .*"):
            read(file(recorded([record(0, observations=[seen])] * 2)))

    @pytest.mark.parametrize("records", [[], [record(0)], [record(0, done=True)] * 3])
    def test_a_file_without_a_step_is_refused(self, records: list[Any], file: File) -> None:
        with pytest.raises(DemonstrationError, match="record at least one step"):
            read(file(recorded(records, tail=b"")))

    @pytest.mark.parametrize("content", [b"", b"hello, world\n" * 20, bytes(400), b"\xff" * 400])
    def test_what_is_no_recording_is_refused(self, content: bytes, file: File) -> None:
        with pytest.raises(DemonstrationError):
            read(file(content))


class TestFolders:
    def test_a_folder_is_read_in_the_order_of_its_names(self, tmp_path: Path) -> None:
        for name, seed in (("b.demo", 2), ("a.npz", 1)):
            write(make_demonstration(seed=seed), tmp_path / name)
        (tmp_path / "notes.txt").write_text("no demonstration")

        first, second = load(tmp_path)

        assert_equal(first, make_demonstration(seed=1))
        assert second.rewards.tolist() == make_demonstration(seed=2).rewards.tolist()

    def test_an_empty_folder_and_a_missing_file_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DemonstrationError, match=r"no \.demo or \.npz file in this folder"):
            load(tmp_path)
        with pytest.raises(DemonstrationError, match=r"gone\.demo: it cannot be read: No such file"):
            load(tmp_path / "gone.demo")


class TestWriting:
    def test_what_is_written_has_the_layout_of_unity(self, tmp_path: Path) -> None:
        shown = make_demonstration(make_spec(vector(), branches=(3,)), lengths=(3, 2), endings="et")

        write(shown, tmp_path / "shown.demo")

        content = (tmp_path / "shown.demo").read_bytes()
        meta = pb.DemonstrationMetaProto.FromString(content[1 : 1 + content[0]])
        assert (meta.api_version, meta.number_steps, meta.number_episodes) == (1, 7, 3)
        assert meta.mean_reward == pytest.approx(shown.rewards.sum() / 3)
        parameters = agent.BrainParametersProto.FromString(content[34 : 34 + content[33]])
        assert parameters.brain_name == "Walker?team=0"
        assert_equal(read(tmp_path / "shown.demo"), shown)

    def test_a_piece_that_was_cut_is_written_as_truncated(self, tmp_path: Path) -> None:
        write(make_demonstration(endings="cc"), tmp_path / "shown.demo")

        assert read(tmp_path / "shown.demo").truncated.sum() == 2

    def test_masks_groups_and_hybrid_actions_survive(self, tmp_path: Path) -> None:
        spec = make_spec(vector(3), continuous=2, branches=(3, 2))
        masks = np.ones((5, 5), np.uint8)
        masks[:, 1] = 0
        shown = make_demonstration(
            spec, action_masks=masks, group_ids=np.full(5, 7, np.int32), group_rewards=np.arange(5, dtype=np.float32)
        )

        write(shown, tmp_path / "shown.demo")

        assert_equal(read(tmp_path / "shown.demo"), shown)
