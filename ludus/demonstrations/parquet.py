"""Parquet files of transitions as demonstrations.

A row is a step, in the order in which it happened:

    observation...      numbers, or lists of them of one length; every column whose name begins so is an observation
    action              lists of numbers in [-1, 1] (continuous), or whole numbers or lists of them (branches, from 0)
    reward              a number
    terminated          true where the task ended with the step
    truncated           true where a limit cut the episode after it
    episode             changes where another episode begins
    next_observation... optional: what followed, named as the observations

Without `next_observation` it is unknown what followed the last step of an episode. That does not matter where the task
ended; else the last step's observation becomes the episode's final one, and its action and reward are left out.

pyarrow is imported when a file is read.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from ludus.demonstrations.demonstration import ACTION_TOLERANCE, Demonstration, DemonstrationError
from ludus.paths import AnyPath
from ludus.protocol.batches import Array
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec

COLUMNS: Final = ("action", "reward", "terminated", "truncated", "episode")
SEES: Final = "observation"


def read_parquet(path: AnyPath, behavior: str) -> Demonstration:
    """Read a file, or the files of a folder as one. Raise `DemonstrationError` with the column and the row."""
    path = Path(path)
    try:
        import pyarrow as pa  # noqa: PLC0415  # see above
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        raise DemonstrationError("reading Parquet needs pyarrow: pip install 'ludus[datasets]'", path) from None
    try:
        table = pq.read_table(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DemonstrationError(f"it is no Parquet file that can be read: {error}", path) from None
    try:
        return _demonstration(table, behavior)
    except DemonstrationError as error:
        raise DemonstrationError(error.problem, path) from None


def _demonstration(table: Any, behavior: str) -> Demonstration:
    seen = [name for name in table.column_names if name.startswith(SEES)]
    missing = [name for name in (*COLUMNS, *([] if seen else [SEES])) if name not in table.column_names]
    if missing:
        raise DemonstrationError(
            f"it has no column {', '.join(missing)}; its columns are {', '.join(table.column_names) or 'none'}"
        )
    following = [f"next_{name}" for name in seen]
    is_followed = all(name in table.column_names for name in following)
    observations = [_rows(table, name).astype(np.float32) for name in seen]
    actions = _rows(table, "action")
    is_continuous = actions.dtype.kind == "f"
    outside = np.argwhere(np.abs(actions) > 1 + ACTION_TOLERANCE if is_continuous else actions < 0)
    if len(outside):
        row, place = outside[0].tolist()
        remedy = "it must lie in [-1, 1]: divide by the largest" if is_continuous else "choices count from 0"
        raise DemonstrationError(f"column action holds {actions[row, place]:g} in row {row}; {remedy}")
    rewards, episodes = _rows(table, "reward")[:, 0], _rows(table, "episode", finite=False)[:, 0]
    terminated, truncated = (_rows(table, name)[:, 0].astype(np.bool_) for name in ("terminated", "truncated"))
    truncated &= ~terminated  # Gymnasium says both where a limit is reached with the end
    starts = np.flatnonzero(np.append(True, episodes[1:] != episodes[:-1]))
    ends = np.append(starts[1:], len(episodes)) - 1
    kept = np.ones(len(episodes), np.bool_)
    finals = [part[ends] for part in observations]
    if is_followed:
        finals = [_rows(table, name).astype(np.float32)[ends] for name in following]
    else:
        open_ends = ends[~terminated[ends]]
        single = np.intersect1d(open_ends, starts)
        if len(single):
            raise DemonstrationError(
                f"the episode of row {single[0]} has one step, and nothing says what followed; add next_observation, "
                "or leave the episode out"
            )
        truncated[open_ends - 1] = truncated[open_ends]
        kept[open_ends] = False
    branches = () if is_continuous else tuple(int(most) + 1 for most in actions.max(0))
    spec = BehaviorSpec(
        behavior,
        tuple(ObservationSpec((part.shape[1],), name) for name, part in zip(seen, observations, strict=True)),
        ActionSpec(actions.shape[1] if is_continuous else 0, branches),
    )
    lengths = np.add.reduceat(kept.astype(np.int64), starts)
    steps = int(lengths.sum())
    return Demonstration(
        spec=spec,
        observations=tuple(part[kept] for part in observations),
        continuous=actions[kept].astype(np.float32) if is_continuous else np.zeros((steps, 0), np.float32),
        discrete=np.zeros((steps, 0), np.int32) if is_continuous else actions[kept].astype(np.int32),
        rewards=rewards[kept].astype(np.float32),
        terminated=terminated[kept],
        truncated=truncated[kept],
        starts=np.cumsum(lengths) - lengths,
        final_observations=tuple(finals),
        from_start=np.ones(len(starts), np.bool_),
    )


def _rows(table: Any, name: str, *, finite: bool = True) -> Array:
    """Return a column as (n, width). Raise `DemonstrationError` for lists of several lengths, nulls, NaN and text."""
    values = table.column(name).combine_chunks()
    rows, width, kind = len(values), 1, str(values.type)
    if not rows:
        raise DemonstrationError("it has no rows; write at least one step")
    while str(values.type).startswith(("list", "large_list", "fixed_size_list")):
        _no_nulls(values, name, width)
        lengths = np.array([len(value) for value in values])
        if (lengths != lengths[0]).any():
            row = int(np.argmax(lengths != lengths[0]))
            raise DemonstrationError(
                f"column {name} has {lengths[row]} numbers in row {row // width}, and {lengths[0]} in the first row"
            )
        width *= int(lengths[0])
        values = values.flatten()
    _no_nulls(values, name, width)
    numbers: Array = values.to_numpy(zero_copy_only=False)
    if finite and numbers.dtype.kind not in "biuf":
        raise DemonstrationError(f"column {name} has the type {kind}, and not numbers")
    numbers = numbers.reshape(rows, -1)
    if finite and not np.isfinite(numbers).all():
        row, place = np.argwhere(~np.isfinite(numbers))[0].tolist()
        raise DemonstrationError(f"column {name} holds {numbers[row, place]} in row {row}; leave that episode out")
    return numbers


def _no_nulls(values: Any, name: str, width: int) -> None:
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise DemonstrationError(f"column {name} has no value in row {row // width}; leave that episode out")
