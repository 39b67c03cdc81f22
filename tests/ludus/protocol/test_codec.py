"""The codec round-trips everything that is legal and names everything that is not."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch, Aggregation, BehaviorBatch, DecisionBatch, StatValue, TerminalBatch
from ludus.protocol.codec import (
    array_to_tensor,
    decode_actions,
    decode_stats,
    decode_step,
    encode_actions,
    encode_step,
    samplers_from_messages,
    samplers_to_messages,
)
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec, file_name
from ludus.protocol.specs import WIRE, BehaviorLayout
from server.config.resolution import resolve
from server.kit.artifacts.store import check_path
from server.kit.errors import InvalidConfig
from tests.ludus.protocol.test_specs import HYBRID, specs

LAYOUTS = {"Hunter": BehaviorLayout(HYBRID)}


def decisions(count: int = 2) -> DecisionBatch:
    return DecisionBatch(
        agent_ids=np.arange(count, dtype=np.int32) + 7,
        rewards=np.linspace(-1, 1, count, dtype=np.float32),
        observations=(
            np.arange(count * 3, dtype=np.float32).reshape(count, 3),
            np.arange(count * 4, dtype=np.uint8).reshape(count, 1, 2, 2),
        ),
        action_masks=np.ones((count, 5), np.uint8),
        group_ids=np.ones(count, np.int32),
        group_rewards=np.zeros(count, np.float32),
    )


def terminals(count: int = 2) -> TerminalBatch:
    step = decisions(count)
    return TerminalBatch(
        step.agent_ids,
        step.rewards,
        step.observations,
        truncated=np.arange(count) % 2 == 0,
        group_ids=step.group_ids,
        group_rewards=step.group_rewards,
        outcomes=np.full(count, 3, np.uint8),
    )


def message() -> pb.Step:
    return encode_step(1, [BehaviorBatch("Hunter", decisions(), terminals())])


def through_the_wire(step: pb.Step) -> pb.Step:
    return pb.Step.FromString(step.SerializeToString())


@given(
    st.sampled_from([np.float32, np.uint8, np.int32]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5))
    ),
    st.booleans(),
)
def test_a_tensor_of_every_dtype_shape_and_memory_order_survives(array: np.ndarray, transpose: bool) -> None:
    source = array.T if transpose else array

    tensor = pb.Tensor.FromString(array_to_tensor(source).SerializeToString())

    assert (tensor.dtype, tuple(tensor.shape)) == (WIRE[source.dtype.name], source.shape)
    assert tensor.data == source.tobytes()


def test_a_big_endian_array_travels_as_little_endian() -> None:
    assert array_to_tensor(np.array([1, 2], ">i4")).data == bytes([1, 0, 0, 0, 2, 0, 0, 0])


def test_an_array_of_doubles_cannot_travel() -> None:
    with pytest.raises(TypeError, match="float64 cannot travel"):
        array_to_tensor(np.zeros(2))


@st.composite
def behavior_batches(draw: st.DrawFn) -> tuple[BehaviorSpec, BehaviorBatch]:
    spec = draw(specs())
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)

    def columns(count: int) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        ids = draw(hnp.arrays(np.int32, count, unique=True))
        rewards = draw(hnp.arrays(np.float32, count, elements=finite))
        observations = tuple(
            draw(hnp.arrays(np.uint8, (count, *o.shape)))
            if o.dtype == "uint8"
            else draw(hnp.arrays(np.float32, (count, *o.shape), elements=finite, fill=finite))
            for o in spec.observations
        )
        return ids, rewards, observations

    optional = st.booleans()
    decision = terminal = None
    if count := draw(st.integers(0, 3)):
        decision = DecisionBatch(
            *columns(count),
            np.ones((count, spec.actions.mask_size), np.uint8) if spec.actions.mask_size and draw(optional) else None,
            draw(hnp.arrays(np.int32, count, elements=st.integers(0, 9))) if draw(optional) else None,
            draw(hnp.arrays(np.float32, count, elements=finite)) if draw(optional) else None,
        )
    if (count := draw(st.integers(0, 3))) or decision is None:
        count = max(count, 1)
        terminal = TerminalBatch(
            *columns(count),
            draw(hnp.arrays(np.bool_, count)),
            None,
            draw(hnp.arrays(np.float32, count, elements=finite)) if draw(optional) else None,
            draw(hnp.arrays(np.uint8, count, elements=st.integers(0, 3))) if draw(optional) else None,
        )
    return spec, BehaviorBatch(spec.name, decision, terminal)


@given(behavior_batches())
def test_every_legal_step_survives(case: tuple[BehaviorSpec, BehaviorBatch]) -> None:
    spec, batch = case

    (result,) = decode_step(through_the_wire(encode_step(5, [batch])), {spec.name: BehaviorLayout(spec)})

    np.testing.assert_equal(result, batch)


def test_a_part_without_agents_is_left_out() -> None:
    step = pb.Step(step_id=1)
    part = step.behaviors.add(behavior="Hunter")
    part.decisions.SetInParent()
    part.terminals.SetInParent()

    assert decode_step(step, LAYOUTS) == []


def test_large_finite_values_are_finite() -> None:
    step = message()
    step.behaviors[0].decisions.observations[0].data = np.full((2, 3), 3e38, np.float32).tobytes()

    (batch,) = decode_step(step, LAYOUTS)

    assert batch.decisions is not None
    assert batch.decisions.observations[0].max() > 1e38


def test_infinity_in_a_large_observation_is_found() -> None:
    spec = BehaviorSpec("Big", (ObservationSpec((100, 100)),), ActionSpec(1))
    observations = np.zeros((2, 100, 100), np.float32)
    observations[1, 99, 99] = np.inf
    batch = DecisionBatch(np.array([4, 5], np.int32), np.zeros(2, np.float32), (observations,))

    with pytest.raises(ProtocolError, match="agent 5") as refusal:
        decode_step(encode_step(1, [BehaviorBatch("Big", batch, None)]), {"Big": BehaviorLayout(spec)})

    assert refusal.value.code is CloseCode.NOT_FINITE


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def ints(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


@pytest.mark.parametrize(
    ("part", "column", "value", "code"),
    [
        ("decisions", "agent_ids", bytes(7), "column_length"),
        ("decisions", "agent_ids", ints(7, 7), "duplicate_agent"),
        ("terminals", "agent_ids", ints(-1, -1), "duplicate_agent"),
        ("decisions", "agent_ids", b"", "column_length"),
        ("decisions", "rewards", floats(1), "column_length"),
        ("decisions", "rewards", floats(1, np.nan), "not_finite"),
        ("terminals", "rewards", floats(-np.inf, 0), "not_finite"),
        ("decisions", "action_masks", bytes(9), "column_length"),
        ("decisions", "action_masks", bytes([2] * 10), "action_mask"),
        ("decisions", "action_masks", bytes([1, 1, 1, 1, 1, 1, 1, 1, 0, 0]), "action_mask"),
        ("decisions", "group_ids", ints(1), "column_length"),
        ("decisions", "group_ids", ints(1, -1), "bad_value"),
        ("decisions", "group_rewards", floats(np.nan, 0), "not_finite"),
        ("terminals", "group_rewards", floats(0), "column_length"),
        ("terminals", "truncated", bytes([1]), "column_length"),
        ("terminals", "truncated", bytes([1, 2]), "bad_value"),
        ("terminals", "truncated", b"", "column_length"),
        ("terminals", "outcomes", bytes([0, 4]), "bad_value"),
        ("terminals", "outcomes", bytes([0]), "column_length"),
    ],
)
def test_a_malformed_column_is_named(part: str, column: str, value: bytes, code: str) -> None:
    step = message()
    setattr(getattr(step.behaviors[0], part), column, value)

    with pytest.raises(ProtocolError, match=r"behavior 'Hunter'") as refusal:
        decode_step(through_the_wire(step), LAYOUTS)

    assert refusal.value.code.value == code


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda d: d.ClearField("observations"), "observation_count"),
        (lambda d: d.observations.add(), "observation_count"),
        (lambda d: setattr(d.observations[0], "dtype", pb.DTYPE_INT32), "observation_dtype"),
        (lambda d: setattr(d.observations[0], "dtype", 0), "observation_dtype"),
        (lambda d: d.observations[0].shape.append(1), "observation_shape"),
        (lambda d: d.observations[0].ClearField("shape"), "observation_shape"),
        (lambda d: setattr(d.observations[0], "data", bytes(20)), "observation_shape"),
        (lambda d: setattr(d.observations[0], "data", floats(0, 0, 0, 0, np.nan, 0)), "not_finite"),
    ],
)
def test_a_malformed_observation_is_named(spoil: Callable[[pb.DecisionSteps], object], code: str) -> None:
    for part in ("decisions", "terminals"):
        step = message()
        spoil(getattr(step.behaviors[0], part))

        with pytest.raises(ProtocolError) as refusal:
            decode_step(through_the_wire(step), LAYOUTS)

        assert refusal.value.code.value == code


def test_the_agents_with_nan_are_named() -> None:
    step = message()
    step.behaviors[0].decisions.rewards = floats(np.nan, 0)

    with pytest.raises(ProtocolError, match=r"rewards holds NaN or infinity for agent 7$"):
        decode_step(step, LAYOUTS)


def test_a_step_of_an_unknown_behavior_lists_the_announced_ones() -> None:
    step = pb.Step(step_id=3)
    step.behaviors.add(behavior="Prey")

    with pytest.raises(ProtocolError, match=r"'Prey'.*announced: Hunter") as refusal:
        decode_step(step, LAYOUTS)

    assert refusal.value.code is CloseCode.UNKNOWN_BEHAVIOR


def test_two_entries_for_one_behavior_are_refused() -> None:
    step = message()
    step.behaviors.append(step.behaviors[0])

    with pytest.raises(ProtocolError) as refusal:
        decode_step(step, LAYOUTS)

    assert refusal.value.code is CloseCode.DUPLICATE_BEHAVIOR


def test_stats_survive() -> None:
    stats = [StatValue("Environment/Success", 0.5), StatValue("Score", 3.0, Aggregation.SUM)]

    assert decode_stats(through_the_wire(encode_step(1, [], stats))) == stats


def test_a_stat_without_an_aggregation_is_averaged() -> None:
    step = pb.Step(stats=[pb.Stat(key="Score", value=1)])

    assert decode_stats(step) == [StatValue("Score", 1.0, Aggregation.AVERAGE)]


@pytest.mark.parametrize(
    ("stat", "count", "code"),
    [
        (pb.Stat(key="", value=1), 1, "bad_stat"),
        (pb.Stat(key="a\tb", value=1), 1, "bad_stat"),
        (pb.Stat(key="a", value=1, aggregation=9), 1, "bad_stat"),
        (pb.Stat(key="a", value=float("inf")), 1, "not_finite"),
        (pb.Stat(key="a", value=1), 1001, "bad_stat"),
    ],
)
def test_a_malformed_stat_is_refused(stat: pb.Stat, count: int, code: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        decode_stats(pb.Step(stats=[stat] * count))

    assert refusal.value.code.value == code


@given(specs(), st.integers(1, 5), st.booleans())
def test_every_legal_answer_survives(spec: BehaviorSpec, count: int, name_agents: bool) -> None:
    batch = ActionBatch(
        spec.name,
        np.arange(count, dtype=np.int32) if name_agents else None,
        np.linspace(-1, 1, count * spec.actions.continuous_size, dtype=np.float32).reshape(count, -1)
        if spec.actions.continuous_size
        else np.zeros((count, 0), np.float32),
        np.ones((count, len(spec.actions.discrete_branches)), np.int32),
    )
    sent = pb.Actions.FromString(encode_actions(9, [batch]).SerializeToString())

    (result,) = decode_actions(sent, {spec.name: BehaviorLayout(spec)})

    assert sent.step_id == 9
    np.testing.assert_equal(result, batch)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (pb.BehaviorActions(behavior="Prey"), "unknown_behavior"),
        (pb.BehaviorActions(behavior="Hunter", continuous=floats(0, 0, 0)), "column_length"),
        (pb.BehaviorActions(behavior="Hunter", continuous=floats(0, 0)), "column_length"),
        (
            pb.BehaviorActions(behavior="Hunter", agent_ids=ints(1, 2), continuous=floats(0, 0), discrete=ints(0, 0)),
            "column_length",
        ),
    ],
)
def test_a_malformed_answer_is_refused(part: pb.BehaviorActions, code: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        decode_actions(pb.Actions(behaviors=[part]), LAYOUTS)

    assert refusal.value.code.value == code


def test_decoding_and_answering_12_agents_takes_a_small_part_of_a_message_time() -> None:
    """At 5,000 messages a second a message has 200 µs: the codec may take a quarter (measured: 11 µs)."""
    spec = BehaviorSpec("CartPole", (ObservationSpec((4,)),), ActionSpec(0, (2,)))
    layouts = {"CartPole": BehaviorLayout(spec)}
    batch = DecisionBatch(np.arange(12, dtype=np.int32), np.ones(12, np.float32), (np.ones((12, 4), np.float32),))
    raw = encode_step(1, [BehaviorBatch("CartPole", batch, None)]).SerializeToString()
    answer = ActionBatch("CartPole", None, np.zeros((12, 0), np.float32), np.zeros((12, 1), np.int32))

    best = min(_seconds(raw, layouts, answer, 200) for _ in range(20)) / 200

    assert best < 50e-6


def _seconds(raw: bytes, layouts: dict[str, BehaviorLayout], answer: ActionBatch, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        decode_step(pb.Step.FromString(raw), layouts)
        encode_actions(1, [answer]).SerializeToString()
    return time.perf_counter() - start


@pytest.mark.parametrize(
    "value",
    [
        Uniform(-1.5, 2.0, seed=2**31 - 1),
        Gaussian(1.0, -0.5, seed=-(2**31)),
        MultiRangeUniform(((0.0, 1.0), (3.0, 3.0)), seed=0),
    ],
)
def test_samplers_come_back_as_they_were(value: ParameterValue) -> None:
    messages = samplers_to_messages({"p": value})
    sent = {name: pb.Sampler.FromString(message.SerializeToString()) for name, message in messages.items()}

    assert samplers_from_messages(sent) == {"p": value}


def test_constants_have_no_sampler() -> None:
    assert samplers_to_messages({"p": Constant(1.0)}) == {}


@pytest.mark.parametrize(
    "message",
    [pb.Sampler(seed=1), pb.Sampler(seed=1, multi_range_uniform=pb.MultiRangeUniformDistribution(min_values=[1.0]))],
)
def test_a_distribution_that_cannot_be_read_is_left_out(message: pb.Sampler) -> None:
    assert samplers_from_messages({"p": message}) == {}


ANNOUNCED = st.text(min_size=1, max_size=40).filter(str.isprintable)


@pytest.mark.parametrize("name", ["3DBall", "My Behavior", "Jäger 1", "猫", "100%", "a.b", "a=b", "A-1_b"])
def test_a_file_has_the_behaviors_own_name(name: str) -> None:
    assert file_name(name) == name


@pytest.mark.parametrize(
    ("name", "file"), [("Team/Red", "Team=2FRed"), (".a", "=2Ea"), ("a.", "a=2E"), ("C:", "C=3A"), ("a=2Fb", "a=3D2Fb")]
)
def test_what_a_file_system_refuses_is_replaced(name: str, file: str) -> None:
    assert file_name(name) == file


@given(ANNOUNCED)
def test_every_announced_name_can_be_stored(name: str) -> None:
    assert check_path(f"{file_name(name)}.onnx")


@given(ANNOUNCED, ANNOUNCED)
def test_no_two_behaviors_share_a_file(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) is (one == other)


@given(ANNOUNCED)
def test_every_name_of_a_configuration_is_its_files(name: str) -> None:
    try:
        resolve({"behaviors": {name: {}}})
    except InvalidConfig:
        return
    assert file_name(name).replace("=3D", "=") == name or name.endswith(".")
