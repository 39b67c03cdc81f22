"""Rows of received batches: those of several messages side by side, and some of them alone."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ludus.protocol.batches import Array, Bytes, DecisionBatch, Outcome, TerminalBatch

Ticks = int | npt.NDArray[np.int64]
"""The number of the message that each row came with, or of the one message."""


def join_ticks(counts: Sequence[tuple[int, int]]) -> Ticks:
    """Return the tick of each row, given (tick, rows) of each message in order."""
    if len(counts) == 1:
        return counts[0][0]
    return np.repeat(*np.array(counts, np.int64).T)


def join_observations(columns: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Concatenate each observation."""
    return tuple([np.concatenate(values) for values in zip(*columns, strict=True)])


def join_masks(masks: Sequence[tuple[Bytes | None, int]]) -> Bytes | None:
    """Concatenate (mask, rows); None where no action is masked."""
    if all(mask is None for mask, _ in masks):
        return None
    width = next(mask.shape[1] for mask, _ in masks if mask is not None)
    return np.concatenate([np.ones((rows, width), np.uint8) if mask is None else mask for mask, rows in masks])


def join_decisions(
    batches: Sequence[DecisionBatch], observations: tuple[Array, ...], masks: Bytes | None
) -> DecisionBatch:
    """Concatenate decision steps, whose observations and masks are joined already."""
    ids = [batch.agent_ids for batch in batches]
    return DecisionBatch(
        np.concatenate(ids),
        np.concatenate([batch.rewards for batch in batches]),
        observations,
        masks,
        _join_optional([batch.group_ids for batch in batches], ids),
        _join_optional([batch.group_rewards for batch in batches], ids),
    )


def join_terminals(batches: Sequence[TerminalBatch]) -> TerminalBatch:
    """Concatenate terminal steps."""
    ids = [batch.agent_ids for batch in batches]
    return TerminalBatch(
        np.concatenate(ids),
        np.concatenate([batch.rewards for batch in batches]),
        join_observations([batch.observations for batch in batches]),
        np.concatenate([batch.truncated for batch in batches]),
        _join_optional([batch.group_ids for batch in batches], ids),
        _join_optional([batch.group_rewards for batch in batches], ids),
        _join_optional([batch.outcomes for batch in batches], ids),
    )


def select(values: Array | None, rows: npt.NDArray[np.bool_]) -> Array | None:
    """Return some rows of a column that may be absent."""
    return None if values is None else values[rows]


def reported_outcome(batch: TerminalBatch, rows: npt.NDArray[np.intp]) -> Outcome | None:
    """Return the outcome that a simulator reported for a member of a group, which ends in these rows, or None."""
    if batch.outcomes is None or not batch.outcomes[rows].any():
        return None
    outcomes = batch.outcomes[rows]
    return Outcome(int(outcomes[outcomes > 0][0]))


def outcome_by_reward(batch: TerminalBatch, rows: npt.NDArray[np.intp]) -> Outcome:
    """Return the outcome by the sign of the last reward; of several members: of the mean of theirs."""
    rewards = batch.rewards[rows].astype(np.float64)
    if batch.group_rewards is not None:
        rewards = rewards + batch.group_rewards[rows]
    reward = float(rewards.mean())
    if reward > 0:
        return Outcome.WIN
    return Outcome.LOSS if reward < 0 else Outcome.DRAW


def _join_optional(columns: Sequence[Array | None], like: Sequence[Array]) -> Array | None:
    """Concatenate columns that may be absent: zeros stand for those."""
    if all(values is None for values in columns):
        return None
    dtype = next(values.dtype for values in columns if values is not None)
    return np.concatenate(
        [np.zeros(len(ids), dtype) if values is None else values for values, ids in zip(columns, like, strict=True)]
    )
