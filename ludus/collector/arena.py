"""Arena: one behavior's steps in shared memory, as fixed blocks of rows in columns.

Memory is an anonymous file (`memfd`): it has no name, so nothing can unlink it under an attached process, and it is
gone with the last process that maps it. Only touched pages exist, which allows a block for every step of the capacity:
short episodes that leave most of a block empty cost address space, not memory, and can never exhaust the arena.

A block has `rows` rows for steps and one row more, whose observation columns hold the successor of a segment that ends
on the block's last step. All columns share one addressing: the row index of step `t` in block `b` is `b * (rows + 1) +
t`.

The learner creates an arena and gathers rollouts from it; collectors attach to it and write the blocks that they own
(`blocks.py`). Needs no torch, since collectors start without it.

Processes of one host share memory by descriptors, which needs Linux. A collector at the edge imports this module, and
calls nothing of it.
"""

import contextlib
import mmap
import os
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import numpy as np
import numpy.typing as npt

from ludus.collector.segments import Segments
from ludus.protocol.spec import BehaviorSpec

with contextlib.suppress(ImportError):  # Windows
    import fcntl

DEFAULT_ROWS = 64
BLOCK_BYTES = 1 << 18
"""Blocks of large observations get fewer rows, to stay about this small."""
SPARE_BLOCKS = 10_000
FEWEST_SPARE_BLOCKS = 1_000
SPARE_BYTES = 16 << 30
"""Address space of spare blocks of large observations."""
PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, and the form of one row."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    """Shape of one row."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * prod(self.shape)


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Everything that both sides must know to address an arena."""

    spec: BehaviorSpec
    rows: int
    """Steps per block."""
    blocks: int
    """Blocks that can be handed out. One more exists behind them, as a scratch pad for steps that are not recorded."""
    memory_size: int = 0
    """Floats of an actor's recurrent memory; 0 without one."""

    @property
    def stride(self) -> int:
        """Rows per block, that of the successor included."""
        return self.rows + 1

    @property
    def scratch_row(self) -> int:
        """Row that every process may write and none reads."""
        return self.blocks * self.stride

    def columns(self) -> tuple[Column, ...]:
        """Describe the columns in the order in which they lie in memory."""
        actions = self.spec.actions
        branches = len(actions.discrete_branches)
        observations = [
            Column(f"observation_{index}", np.dtype(item.dtype), item.shape)
            for index, item in enumerate(self.spec.observations)
        ]
        return (
            *observations,
            Column("continuous", np.dtype(np.float32), (actions.continuous_size,)),
            Column("discrete", np.dtype(np.int32), (branches,)),
            Column("log_probs", np.dtype(np.float32), (actions.continuous_size + branches,)),
            Column("action_masks", np.dtype(np.uint8), (actions.mask_size,)),
            Column("rewards", np.dtype(np.float32), ()),
            Column("group_rewards", np.dtype(np.float32), ()),
            Column("versions", np.dtype(np.int64), ()),
            Column("ticks", np.dtype(np.int64), ()),
            Column("memories", np.dtype(np.float32), (self.memory_size,)),
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all columns."""
        return self.stride * sum(column.row_bytes for column in self.columns())

    def size(self) -> int:
        """Bytes of address space; only touched pages become memory."""
        total_rows = (self.blocks + 1) * self.stride
        return sum(_pages(total_rows * column.row_bytes) for column in self.columns())


def _pages(size: int) -> int:
    """Round up to whole pages, so that columns don't share one."""
    return -(-size // PAGE) * PAGE


def default_rows(spec: BehaviorSpec) -> int:
    """Choose the rows of a block: 64, and fewer where observations are large."""
    row_bytes = sum(item.size * np.dtype(item.dtype).itemsize for item in spec.observations)
    return max(4, min(DEFAULT_ROWS, BLOCK_BYTES // max(row_bytes, 1)))


class Arena:
    """One behavior's columns, mapped into this process.

    The column attributes are writable arrays whose first axis is the row index; see the module's text for addressing.
    """

    def __init__(self, fd: int, layout: ArenaLayout) -> None:
        """Map the file of a descriptor; -1: memory of this process alone."""
        self.fd = fd
        self.layout = layout
        self._memory = mmap.mmap(fd, layout.size())
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        offset = 0
        total_rows = (layout.blocks + 1) * layout.stride
        for column in layout.columns():
            count = total_rows * prod(column.shape)
            flat = np.frombuffer(self._memory, column.dtype, count, offset) if count else np.empty(0, column.dtype)
            arrays[column.name] = flat.reshape((total_rows, *column.shape))
            offset += _pages(total_rows * column.row_bytes)
        self.observations = [arrays[f"observation_{index}"] for index in range(len(layout.spec.observations))]
        self.continuous = arrays["continuous"]
        self.discrete = arrays["discrete"]
        self.log_probs = arrays["log_probs"]
        self.action_masks = arrays["action_masks"]
        self.rewards = arrays["rewards"]
        self.group_rewards = arrays["group_rewards"]
        self.versions = arrays["versions"]
        self.ticks = arrays["ticks"]
        """Number of the message that asked for the step's action: one for all agents of a message, growing with time
        in a simulator's session, and of no other session of the run."""
        self.memories = arrays["memories"]
        """The actor's memory before each step; zeros at an episode's start."""

        self.columns = tuple(arrays.values())
        """All columns, observations first."""

    @classmethod
    def create(cls, spec: BehaviorSpec, capacity_steps: int, rows: int | None = None, *, memory_size: int = 0) -> Self:
        """Allocate an arena that holds at least `capacity_steps` steps however short the segments are.

        Twice the buffer size is enough for one round in collection while another one is gathered. Up to `SPARE_BLOCKS`
        more keep many agents from blocking a small one.
        """
        layout = ArenaLayout(spec, rows or default_rows(spec), capacity_steps, memory_size)
        spare = max(FEWEST_SPARE_BLOCKS, min(SPARE_BLOCKS, SPARE_BYTES // layout.block_bytes))
        layout = replace(layout, blocks=capacity_steps + spare)
        return cls(shared_memory(f"ludus-arena-{spec.behavior}"[:200], layout.size()), layout)

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last array that refers to it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def rows_of(self, segments: Segments) -> npt.NDArray[np.int64]:
        """Return the row index of every step (N,), segment by segment."""
        rows, stride = self.layout.rows, self.layout.stride
        lengths = segments.column("length")
        blocks_per_segment = -(-lengths // rows)
        steps_per_block = np.full(int(blocks_per_segment.sum()), rows, np.int64)
        steps_per_block[np.cumsum(blocks_per_segment) - 1] = (lengths - 1) % rows + 1
        ends = np.cumsum(steps_per_block)
        bases = segments.blocks.astype(np.int64) * stride - (ends - steps_per_block)
        return np.repeat(bases, steps_per_block) + np.arange(int(ends[-1]) if len(ends) else 0)

    def successor_rows_of(self, segments: Segments) -> npt.NDArray[np.int64]:
        """Return the row index of each segment's successor observation (B,)."""
        last = segments.blocks[segments.column("blocks").cumsum() - 1].astype(np.int64)
        rows: npt.NDArray[np.int64] = last * self.layout.stride + (segments.column("length") - 1) % self.layout.rows + 1
        return rows


def shared_memory(name: str, size: int) -> int:
    """Return the descriptor of an anonymous file of a sealed size: shrinking it would kill other processes."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def freeze(weights: npt.NDArray[np.float32]) -> int:
    """Return the descriptor of an anonymous file of weights that can't be changed any more."""
    fd = os.memfd_create("ludus-frozen-policy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    data = memoryview(weights.tobytes())
    while data:
        data = data[os.write(fd, data) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def unfreeze(fd: int) -> npt.NDArray[np.float32]:
    """Return the weights of such a file, mapped into this process, and give the descriptor back."""
    try:
        return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.float32)
    finally:
        os.close(fd)
