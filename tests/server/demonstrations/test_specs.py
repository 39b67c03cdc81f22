"""Specs survive the database."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from server.demonstrations.refs import spec_from_json, spec_to_json

OBSERVATIONS = st.builds(
    ObservationSpec,
    shape=st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple),
    name=st.text(max_size=5),
    dtype=st.sampled_from(["float32", "uint8"]),
    type=st.sampled_from(ObservationType),
    dimension_properties=st.lists(st.sampled_from(DimensionProperty), max_size=3).map(tuple),
)
ACTIONS = st.builds(ActionSpec, st.integers(0, 9), st.lists(st.integers(1, 9), max_size=3).map(tuple))
SPECS = st.builds(BehaviorSpec, st.text(max_size=5), st.lists(OBSERVATIONS, max_size=3).map(tuple), ACTIONS)


@given(SPECS)
def test_a_spec_survives_json(spec: BehaviorSpec) -> None:
    stored = json.loads(json.dumps(spec_to_json(spec)))

    assert spec_from_json(stored) == spec
