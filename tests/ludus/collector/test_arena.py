"""The arena: columns in shared memory, and what is gathered from them."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.arena import Arena, ArenaLayout, default_rows
from ludus.collector.segments import SegmentEnd, Segments
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.segments import Segment, columns_of, rows_of
from worker.collectors.behaviors import block_chunk
from worker.experience.rollout import gather

SPEC = BehaviorSpec("Walker", (ObservationSpec((3,)), ObservationSpec((2, 2), dtype="uint8")), ActionSpec(2, (3, 2)))


def make_segment(
    blocks: tuple[int, ...], length: int, *, sequence: int = 0, ending: SegmentEnd = SegmentEnd.CUT
) -> Segment:
    return Segment(0, 1, 0, 0, sequence, length, 0, ending, blocks)


def test_gathered_rollout_has_the_steps_of_each_segment_in_order() -> None:
    arena = Arena.create(SPEC, 100, rows=4)
    arena.rewards[:] = np.arange(len(arena.rewards))  # each row's reward is its own index
    segments = [make_segment((7, 2), 6), make_segment((0,), 4, ending=SegmentEnd.TERMINATED), make_segment((5,), 1)]

    rollout = gather(arena, columns_of(segments))

    # Rows of block b are b * (rows + 1) + t: block 7 begins at 35, block 2 at 10, block 0 at 0, block 5 at 25.
    assert rollout.rewards.tolist() == [35, 36, 37, 38, 10, 11, 0, 1, 2, 3, 25]
    assert rollout.lengths.tolist() == [6, 4, 1]
    assert rollout.endings.tolist() == [SegmentEnd.CUT, SegmentEnd.TERMINATED, SegmentEnd.CUT]
    assert (rollout.steps, rollout.segments) == (11, 3)
    arena.close()


def test_successor_of_a_full_block_lies_in_its_extra_row() -> None:
    arena = Arena.create(SPEC, 100, rows=4)
    arena.observations[0][:, 0] = np.arange(len(arena.rewards))

    rollout = gather(arena, columns_of([make_segment((0,), 4), make_segment((3, 1), 6)]))

    # After step 3 of block 0 comes row 4; after step 5, which is step 1 of block 1 at row 5 + 1, comes row 7.
    assert rollout.next_observations[0][:, 0].tolist() == [4, 7]
    arena.close()


def test_rollout_columns_have_the_documented_shapes_and_types() -> None:
    arena = Arena.create(SPEC, 100, rows=4)

    rollout = gather(arena, columns_of([make_segment((0, 1), 5), make_segment((2,), 2, sequence=3)]))

    assert [(tuple(item.shape), item.dtype) for item in rollout.observations] == [
        ((7, 3), torch.float32),
        ((7, 2, 2), torch.uint8),
    ]
    assert [tuple(item.shape) for item in rollout.next_observations] == [(2, 3), (2, 2, 2)]
    assert (tuple(rollout.continuous.shape), rollout.continuous.dtype) == ((7, 2), torch.float32)
    assert (tuple(rollout.discrete.shape), rollout.discrete.dtype) == ((7, 2), torch.int64)
    assert tuple(rollout.log_probs.shape) == (7, 4)
    assert rollout.action_masks is not None
    assert (tuple(rollout.action_masks.shape), rollout.action_masks.dtype) == ((7, 5), torch.bool)
    assert (rollout.versions.dtype, rollout.endings.dtype) == (torch.int64, torch.uint8)
    assert rollout.starts_episode.tolist() == [True, False]
    arena.close()


def test_behavior_without_branches_has_no_masks() -> None:
    arena = Arena.create(BehaviorSpec("Reach", (ObservationSpec((1,)),), ActionSpec(1)), 10)

    rollout = gather(arena, columns_of([make_segment((0,), 2)]))

    assert rollout.action_masks is None
    assert tuple(rollout.discrete.shape) == (2, 0)
    arena.close()


def test_a_gathered_rollout_does_not_change_with_the_arena() -> None:
    arena = Arena.create(SPEC, 100, rows=4)
    rollout = gather(arena, columns_of([make_segment((0,), 3)]))

    for column in arena.columns:
        column[:] = 1

    assert rollout.rewards.tolist() == [0, 0, 0]
    assert rollout.observations[0].abs().sum() == 0
    arena.close()


def test_what_one_process_writes_another_one_reads() -> None:
    arena = Arena.create(SPEC, 100, rows=4)
    writer = f"""
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec, ObservationType
from ludus.collector.arena import Arena, ArenaLayout
spec = BehaviorSpec("Walker", (ObservationSpec((3,)), ObservationSpec((2, 2), dtype="uint8")), ActionSpec(2, (3, 2)))
arena = Arena({arena.fd}, ArenaLayout(spec, 4, {arena.layout.blocks}))
arena.rewards[3] = 2.5
arena.observations[1][3] = 9
"""

    subprocess.run([sys.executable, "-c", writer], check=True, pass_fds=(arena.fd,), timeout=30)

    assert arena.rewards[3] == 2.5
    assert arena.observations[1][3].tolist() == [[9, 9], [9, 9]]
    arena.close()


def test_shared_memory_cannot_be_shrunk_under_its_users() -> None:
    arena = Arena.create(SPEC, 100, rows=4)

    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 10)

    arena.close()


@pytest.mark.long
def test_collectors_reach_the_arena_without_torch_and_websockets() -> None:
    code = "import sys, ludus.collector.process; sys.exit('torch' in sys.modules or 'websockets' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def test_large_observations_get_blocks_of_few_rows() -> None:
    image = BehaviorSpec("Eye", (ObservationSpec((3, 84, 84), dtype="uint8"),), ActionSpec(1))

    assert default_rows(SPEC) == 64
    assert default_rows(image) == (1 << 18) // (3 * 84 * 84)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 9), st.randoms(use_true_random=False))
def test_rows_of_segments_are_those_of_a_plain_loop(lengths: list[int], rows: int, random: object) -> None:
    layout = ArenaLayout(SPEC, rows, 400)
    blocks = list(range(400))
    random.shuffle(blocks)  # type: ignore[attr-defined]  # hypothesis has no type for it
    segments = []
    for length in lengths:
        used = -(-length // rows)
        segments.append(make_segment(tuple(blocks[:used]), length))
        del blocks[:used]
    arena = Arena.__new__(Arena)
    arena.layout = layout

    expected = [
        segment.blocks[step // rows] * (rows + 1) + step % rows
        for segment in segments
        for step in range(segment.length)
    ]

    assert arena.rows_of(columns_of(segments)).tolist() == expected
    assert arena.successor_rows_of(columns_of(segments)).tolist() == [
        segment.blocks[-1] * (rows + 1) + (segment.length - 1) % rows + 1 for segment in segments
    ]


def test_segments_survive_the_wire() -> None:
    segments = [
        make_segment((3, 9), 5, sequence=2),
        Segment(4, -7, 2, 11, 0, 1, 8, SegmentEnd.TRUNCATED, (1,), successor_tick=(5 << 32) + 3, mates_alive=True),
    ]

    arrived = Segments.unpack(memoryview(columns_of(segments).pack()))

    assert rows_of(arrived) == segments
    assert (len(arrived), arrived.steps) == (2, 6)


def test_segments_are_chosen_and_joined_with_their_blocks() -> None:
    first, second, third = (make_segment(blocks, 1) for blocks in ((3, 9), (1,), (5, 6, 7)))
    segments = columns_of([first, second, third])

    chosen = segments.select(np.array([True, False, True]))

    assert rows_of(chosen) == [first, third]
    assert rows_of(Segments.joined([chosen, columns_of([second])])) == [first, third, second]
    assert rows_of(Segments.joined([])) == []
    assert segments.of_rounds([4, 5, 6]).column("round").tolist() == [4, 5, 6]
    assert segments.column("round").tolist() == [0, 0, 0], "those that were delivered stay as they are"


def test_collectors_of_pictures_are_lent_fewer_blocks_at_a_time() -> None:
    image = BehaviorSpec("Eye", (ObservationSpec((3, 84, 84), dtype="uint8"),), ActionSpec(1))
    huge = BehaviorSpec("Eye", (ObservationSpec((3, 512, 512)),), ActionSpec(1))

    layouts = [ArenaLayout(spec, default_rows(spec), 1000) for spec in (SPEC, image, huge)]

    assert [block_chunk(layout) for layout in layouts] == [512, (32 << 20) // layouts[1].block_bytes, 64]
    assert 64 < block_chunk(layouts[1]) < 128


def test_large_pictures_do_not_take_address_space_without_measure() -> None:
    huge = BehaviorSpec("Eye", (ObservationSpec((3, 512, 512)),), ActionSpec(1))

    arena = Arena.create(huge, 256)

    # 5 rows of 3 MB a block: 16 GB are 1,092 of them, beside one for each step.
    assert arena.layout.size() < (17 << 30) + 256 * arena.layout.block_bytes
    arena.observations[0][arena.layout.scratch_row - 1] = 1  # the last row that is lent can be written
    arena.close()
