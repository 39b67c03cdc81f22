"""Makers of demonstrations: plain functions with keyword overrides."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ludus.demonstrations import Demonstration
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

SIGHT = (
    DimensionProperty.NONE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
)


def vector(size: int = 2) -> ObservationSpec:
    return ObservationSpec((size,), f"vector {size}", dimension_properties=(DimensionProperty.NONE,))


def picture(channels: int = 3, height: int = 4, width: int = 5) -> ObservationSpec:
    return ObservationSpec((channels, height, width), "camera", "uint8", dimension_properties=SIGHT)


def make_spec(
    *observations: ObservationSpec, continuous: int = 0, branches: tuple[int, ...] = (), name: str = "Walker?team=0"
) -> BehaviorSpec:
    return BehaviorSpec(name, observations or (vector(),), ActionSpec(continuous, branches))


def make_demonstration(
    spec: BehaviorSpec | None = None,
    lengths: Sequence[int] = (3, 2),
    endings: str | None = None,
    seed: int = 0,
    **overrides: Any,
) -> Demonstration:
    """Random pieces. `endings` has a letter for each piece: e = the task ended, t = truncated, c = cut."""
    spec = spec or make_spec(branches=(3,))
    rng = np.random.default_rng(seed)
    steps, ends = sum(lengths), np.cumsum(lengths) - 1
    branches = spec.actions.discrete_branches
    letters = np.array(list(endings or "e" * len(lengths)))

    def seen(rows: int) -> tuple[np.ndarray, ...]:
        return tuple(
            rng.integers(0, 256, (rows, *part.shape), np.uint8)
            if part.dtype == "uint8"
            else rng.normal(size=(rows, *part.shape)).astype(np.float32)
            for part in spec.observations
        )

    terminated, truncated = np.zeros((2, steps), np.bool_)
    terminated[ends] = letters == "e"
    truncated[ends] = letters == "t"
    columns: dict[str, Any] = {
        "observations": seen(steps),
        "continuous": rng.uniform(-1, 1, (steps, spec.actions.continuous_size)).astype(np.float32),
        "discrete": rng.integers(0, np.array(branches, np.int32), (steps, len(branches)), np.int32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "starts": ends + 1 - np.array(lengths),
        "final_observations": seen(len(lengths)),
        "from_start": np.ones(len(lengths), np.bool_),
    }
    return Demonstration(spec, **{**columns, **overrides})


def assert_equal(one: Demonstration, other: Demonstration) -> None:
    """Compare everything but the spec."""
    for name, values in vars(one).items():
        if name == "spec":
            continue
        expected = getattr(other, name)
        pairs = zip(values, expected, strict=True) if isinstance(values, tuple) else [(values, expected)]
        for part, other_part in pairs:
            if part is None or other_part is None:
                assert part is other_part, name
            else:
                np.testing.assert_array_equal(part, other_part, err_msg=name)
                assert part.dtype == other_part.dtype, name
