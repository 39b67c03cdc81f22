"""Behavior specs as JSON, for the database and the API: names instead of the protocol's numbers."""

from collections.abc import Mapping
from typing import Any

from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType


def spec_to_json(spec: BehaviorSpec) -> dict[str, Any]:
    """Return a spec as plain values."""
    return {
        "name": spec.name,
        "observations": [
            {
                "name": observation.name,
                "shape": list(observation.shape),
                "dtype": observation.dtype,
                "type": observation.type.name.lower(),
                "dimension_properties": [each.name.lower() for each in observation.dimension_properties],
            }
            for observation in spec.observations
        ],
        "actions": {
            "continuous_size": spec.actions.continuous_size,
            "discrete_branches": list(spec.actions.discrete_branches),
        },
    }


def spec_from_json(values: Mapping[str, Any]) -> BehaviorSpec:
    """Return the spec that `spec_to_json` wrote."""
    return BehaviorSpec(
        values["name"],
        tuple(
            ObservationSpec(
                tuple(observation["shape"]),
                observation["name"],
                observation["dtype"],
                ObservationType[observation["type"].upper()],
                tuple(DimensionProperty[each.upper()] for each in observation["dimension_properties"]),
            )
            for observation in values["observations"]
        ),
        ActionSpec(values["actions"]["continuous_size"], tuple(values["actions"]["discrete_branches"])),
    )
