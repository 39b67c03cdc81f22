"""What a network is built for, and what is refused with which reason."""

from itertools import product

import pytest

from ludus.collector.layout import ActorLayout, BodyLayout
from ludus.collector.spec_checks import ObservationKind, UnsupportedSpec
from ludus.collector.visual_encoders import MINIMUM_SIZES
from ludus.config.network import HiddenType, MemorySettings, NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.worker.rollouts import make_spec

VECTOR = ObservationSpec((4,))
DISCRETE = ActionSpec(discrete_branches=(2,))
GOAL = ObservationType.GOAL_SIGNAL
NONE, MOVES, VARIABLE = (
    DimensionProperty.NONE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.VARIABLE_SIZE,
)
ENTITIES = ObservationSpec((5, 3), dimension_properties=(VARIABLE, NONE))
CAMERA = ObservationSpec((3, 84, 84), "camera", dtype="uint8", dimension_properties=(NONE, MOVES, MOVES))


def test_sections_add_up_to_the_flat_size() -> None:
    layout = ActorLayout.of(
        make_spec(observations=(3, 2), continuous=2, branches=(3, 2)), NetworkSettings(hidden_units=8, normalize=True)
    )

    # normalizer 2 x 5; layers 8 x 5 + 8 and 8 x 8 + 8; head 7 x 8 + 7 for 2 means and 5 logits; log_sigma 2
    assert layout.flat_size == 10 + 48 + 72 + 63 + 2


@pytest.mark.parametrize(
    ("hidden_type", "hidden"),
    [
        # layers 8 x 5 + 8 and 8 x 8 + 8, and 2 x 8 for each norm
        ("layer_norm", 48 + 72 + 16 + 16),
        # embedding 8 x 5 + 8; two blocks of a norm, 32 x 8 + 32 and 8 x 32 + 8; the last norm
        ("simba", 48 + 2 * (16 + 288 + 264) + 16),
    ],
)
def test_layer_norms_and_residual_blocks_add_up_to_the_flat_size(hidden_type: HiddenType, hidden: int) -> None:
    layout = ActorLayout.of(
        make_spec(observations=(3, 2), branches=(3,)), NetworkSettings(hidden_units=8, hidden_type=hidden_type)
    )

    assert layout.flat_size == hidden + 3 * 8 + 3
    assert layout.dense
    assert not layout.plain, "derivatives by hand and stacked policies are of ordinary layers"


def test_layer_norms_in_layers_that_goals_make_are_refused_with_the_way_out() -> None:
    spec = make_spec(observations=(3, 2), goal=1, branches=(2,))

    with pytest.raises(UnsupportedSpec, match="goal_conditioning_type: none") as refused:
        ActorLayout.of(spec, NetworkSettings(hidden_type="simba"))

    assert refused.value.code == "hidden_type_unsupported"
    assert ActorLayout.of(spec, NetworkSettings(hidden_type="simba", goal_conditioning_type="none")).dense


def test_a_squashed_head_has_its_deviations_in_place_of_the_parameter() -> None:
    layout = ActorLayout.of(
        make_spec(observations=(3,), continuous=2, branches=(3,)),
        NetworkSettings(hidden_units=8, num_layers=1),
        head="squashed",
    )

    # layer 8 x 3 + 8; head 7 x 8 + 7 for 2 means, 2 log-sigmas and 3 logits
    assert layout.flat_size == 32 + 63
    assert layout.logits_start == 4


def test_no_hidden_layer_still_builds_one_as_in_ml_agents() -> None:
    assert ActorLayout.of(make_spec(continuous=1), NetworkSettings(num_layers=0)).body.num_layers == 1


@pytest.mark.parametrize(
    ("code", "observations", "actions"),
    [
        ("observations_missing", (), DISCRETE),
        ("observation_shape_unsupported", (ObservationSpec((3, 3)),), DISCRETE),
        ("observation_shape_unsupported", (ObservationSpec((3, 3), dimension_properties=(MOVES, MOVES)),), DISCRETE),
        ("observation_shape_unsupported", (ObservationSpec((3,), dimension_properties=(VARIABLE,)),), DISCRETE),
        ("observation_shape_unsupported", (ObservationSpec((2, 3, 4, 5)),), DISCRETE),
        ("observation_shape_unsupported", (ObservationSpec(()),), DISCRETE),
        (
            "observation_shape_unsupported",
            (ObservationSpec((84, 84, 3), dimension_properties=(MOVES, MOVES, NONE)),),
            DISCRETE,
        ),
        ("observation_dtype_unsupported", (ObservationSpec((4,), dtype="uint8"),), DISCRETE),
        ("goal_signal_unsupported", (VECTOR, ObservationSpec((5, 3), "", "float32", GOAL, (VARIABLE, NONE))), DISCRETE),
        ("actions_missing", (VECTOR,), ActionSpec()),
        ("actions_invalid", (VECTOR,), ActionSpec(discrete_branches=(2, 0))),
    ],
)
def test_unsupported_spec_is_refused_with_its_reason(
    code: str, observations: tuple[ObservationSpec, ...], actions: ActionSpec
) -> None:
    with pytest.raises(UnsupportedSpec) as refused:
        ActorLayout.of(BehaviorSpec("Walker", observations, actions), NetworkSettings())

    assert refused.value.code == code
    assert "Walker" in str(refused.value)


CONVOLUTIONAL = [encoder for encoder, minimum in MINIMUM_SIZES.items() if minimum > 1]


@pytest.mark.parametrize(("encoder", "dimension"), list(product(CONVOLUTIONAL, (1, 2))))
def test_a_picture_below_the_encoders_minimum_is_refused_with_both(encoder: str, dimension: int) -> None:
    minimum = MINIMUM_SIZES[encoder]
    shape = [3, 100, 100]
    shape[dimension] = minimum - 1
    small = BehaviorSpec("Walker", (VECTOR, ObservationSpec(tuple(shape), "camera")), DISCRETE)

    with pytest.raises(UnsupportedSpec) as refused:
        ActorLayout.of(small, NetworkSettings.model_validate({"vis_encode_type": encoder}))

    assert refused.value.code == "observation_too_small"
    for part in (encoder, str(minimum), str(tuple(shape)), "camera"):
        assert part in str(refused.value)


def test_kinds_follow_rank_and_properties() -> None:
    layout = BodyLayout.of([CAMERA, VECTOR, ENTITIES, ObservationSpec((1, 20, 20))], NetworkSettings())

    assert layout.kinds == (
        ObservationKind.VISUAL,
        ObservationKind.VECTOR,
        ObservationKind.ENTITIES,
        ObservationKind.VISUAL,
    )


def test_goals_condition_unless_told_otherwise() -> None:
    goal = BehaviorSpec("Walker", (VECTOR, ObservationSpec((2,), type=GOAL)), DISCRETE)

    assert ActorLayout.of(goal, NetworkSettings()).body.conditioned  # ML-Agents' default is `hyper`
    assert ActorLayout.of(goal, NetworkSettings(goal_conditioning_type="none")).plain
    assert not ActorLayout.of(BehaviorSpec("Walker", (VECTOR,), DISCRETE), NetworkSettings()).body.conditioned


@pytest.mark.parametrize(
    ("observations", "memory", "plain"),
    [
        ((VECTOR, VECTOR), None, True),
        ((VECTOR, ENTITIES), None, False),
        ((CAMERA,), None, False),
        ((VECTOR,), MemorySettings(memory_size=8), False),
    ],
)
def test_only_vectors_without_memory_are_plain(
    observations: tuple[ObservationSpec, ...], memory: MemorySettings | None, plain: bool
) -> None:
    assert ActorLayout.of(BehaviorSpec("Walker", observations, DISCRETE), NetworkSettings(memory=memory)).plain is plain


def test_nothing_is_normalised_where_there_are_no_vectors() -> None:
    assert not BodyLayout.of([CAMERA], NetworkSettings(normalize=True)).normalize


SENSORS = make_spec(observations=(3, 2, (3, 24, 24)), goal=1, branches=(2,))


@pytest.mark.parametrize(
    ("names", "code", "message"),
    [
        (
            ["vector 0", "state", "clock"],
            "privileged_observation_unknown",
            "names 'state', 'clock'; the game announces 'vector 0', 'vector 1', 'image 2'. Correct the names",
        ),
        (["image 2", "vector 1", "vector 0"], "privileged_observations_all", "leaves none for the policy"),
    ],
)
def test_privileged_observations_that_do_not_fit_the_game_are_refused(
    names: list[str], code: str, message: str
) -> None:
    with pytest.raises(UnsupportedSpec) as refused:
        ActorLayout.of(SENSORS, NetworkSettings(privileged_observations=names))

    assert refused.value.code == code
    assert message in str(refused.value)
    assert str(refused.value).startswith("behavior 'Walker'")


def test_a_game_whose_observations_have_no_names_is_told_so() -> None:
    spec = BehaviorSpec("A", (VECTOR, VECTOR), DISCRETE)

    with pytest.raises(UnsupportedSpec, match="names 'state'; the game announces no observation that has a name"):
        ActorLayout.of(spec, NetworkSettings(privileged_observations=["state"]))


def test_the_policy_has_the_layout_of_what_it_sees() -> None:
    unseen = NetworkSettings(privileged_observations=["vector 1", "image 2"], normalize=True)
    layout, plain = ActorLayout.of(SENSORS, unseen), make_spec(observations=(3,), branches=(2,))

    assert layout.flat_size == ActorLayout.of(plain, NetworkSettings(normalize=True)).flat_size
    assert layout.plain, "neither the picture nor the goal is the policy's"
    assert layout.body.seen == (0,)
    assert not layout.body.conditioned


def test_all_observations_of_one_name_are_privileged() -> None:
    spec = BehaviorSpec("A", (ObservationSpec((2,), "state"), VECTOR, ObservationSpec((5,), "state")), DISCRETE)

    assert ActorLayout.of(spec, NetworkSettings(privileged_observations=["state"])).body.seen == (1,)
