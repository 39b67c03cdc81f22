"""Sequences: segments in pieces of equal length, for recurrent networks.

A segment is cut into pieces of `L` steps from its first one on; only the last piece may be shorter, and is padded by
repeating its last step. Padded rows are no experience: mask them out.

Dimensions: `N` steps, `B` segments, `Q` sequences, `L` steps of a sequence.
"""

from typing import NamedTuple

import torch


class Sequences(NamedTuple):
    """Row indices of the steps of a rollout, sequence by sequence, in the order of the segments."""

    rows: torch.Tensor
    """(Q, L) int64: row of each step; behind a sequence's end its last row again."""
    mask: torch.Tensor
    """(Q, L) bool: whether it is a step, and no padding. The first one of a sequence always is."""
    segments: torch.Tensor
    """(Q,) int64: the segment that the sequence is a piece of."""

    @property
    def first(self) -> torch.Tensor:
        """(Q,) int64: row of the first step of each sequence, whose memory is where the network starts."""
        return self.rows[:, 0]

    def select(self, which: torch.Tensor) -> "Sequences":
        """Take some sequences."""
        return Sequences(self.rows[which], self.mask[which], self.segments[which])


def sequences_of(lengths: torch.Tensor, length: int) -> Sequences:
    """Cut segments of some lengths (B,), which lie one behind the other, into sequences of `length` steps."""
    pieces = (lengths + length - 1) // length  # (B,)
    segments = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), pieces)  # (Q,)
    place = torch.arange(len(segments), device=lengths.device) - (pieces.cumsum(0) - pieces)[segments]
    behind = lengths.cumsum(0)[segments]  # the row behind the segment
    first = behind - lengths[segments] + place * length  # (Q,)
    rows = first[:, None] + torch.arange(length, device=lengths.device)
    return Sequences(torch.minimum(rows, behind[:, None] - 1), rows < behind[:, None], segments)
