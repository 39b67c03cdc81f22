"""What a network is built for, and what is refused with which reason."""

import pytest

from ludus.spec import ActionSpec, BehaviorSpec, ObservationSpec, ObservationType
from tests.worker.rollouts import make_spec
from worker.networks.layout import ActorLayout, UnsupportedSpec


def test_sections_add_up_to_the_flat_size() -> None:
    layout = ActorLayout.of(
        make_spec(observations=(3, 2), continuous=2, branches=(3, 2)),
        {"hidden_units": 8, "num_layers": 2, "normalize": True},
    )

    # normalizer 2 x 5; layers 8 x 5 + 8 and 8 x 8 + 8; head 7 x 8 + 7 for 2 means and 5 logits; log_sigma 2
    assert layout.flat_size == 10 + 48 + 72 + 63 + 2


def test_no_hidden_layer_still_builds_one_as_in_ml_agents() -> None:
    assert ActorLayout.of(make_spec(continuous=1), {"num_layers": 0}).num_layers == 1


VECTOR = ObservationSpec((4,))
DISCRETE = ActionSpec(discrete_branches=(2,))


@pytest.mark.parametrize(
    ("code", "observations", "actions", "settings"),
    [
        ("observations_missing", (), DISCRETE, {}),
        ("observation_shape_unsupported", (ObservationSpec((3, 84, 84), "camera"),), DISCRETE, {}),
        ("observation_empty", (ObservationSpec((0,)),), DISCRETE, {}),
        ("observation_dtype_unsupported", (ObservationSpec((4,), dtype="uint8"),), DISCRETE, {}),
        ("goal_signal_unsupported", (ObservationSpec((4,), type=ObservationType.GOAL_SIGNAL),), DISCRETE, {}),
        ("actions_missing", (VECTOR,), ActionSpec(), {}),
        ("actions_invalid", (VECTOR,), ActionSpec(discrete_branches=(2, 0)), {}),
        ("memory_unsupported", (VECTOR,), DISCRETE, {"memory": {"memory_size": 128}}),
    ],
)
def test_unsupported_spec_is_refused_with_its_reason(
    code: str, observations: tuple[ObservationSpec, ...], actions: ActionSpec, settings: dict[str, object]
) -> None:
    with pytest.raises(UnsupportedSpec) as refused:
        ActorLayout.of(BehaviorSpec("Walker", observations, actions), settings)

    assert refused.value.code == code
    assert "Walker" in str(refused.value)


def test_goal_signals_are_ordinary_inputs_where_conditioning_is_off() -> None:
    goal = BehaviorSpec("Walker", (ObservationSpec((4,), type=ObservationType.GOAL_SIGNAL),), DISCRETE)

    assert ActorLayout.of(goal, {"goal_conditioning_type": "none"}).observation_size == 4
