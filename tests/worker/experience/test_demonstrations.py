"""Demonstrations on the device are what the files hold, in the behavior's dtypes, with their boundaries."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ludus.demonstrations import DemonstrationError, write
from ludus.protocol.spec import ObservationSpec
from tests.ludus.demonstrations.shown import SIGHT, make_demonstration, make_spec, picture, vector
from worker.experience.demonstrations import DemonstrationBuffer, load_demonstrations

SPEC = make_spec(vector(2), branches=(3,))


def test_each_step_points_to_what_followed_it() -> None:
    one, other = make_demonstration(lengths=(3, 2), endings="et"), make_demonstration(lengths=(4,), seed=1)

    shown = DemonstrationBuffer([one, other], SPEC).transitions

    followed = np.concatenate([part.next_observations(np.arange(part.steps))[0] for part in (one, other)])
    np.testing.assert_array_equal(shown.observations[0][shown.next_index], followed)
    seen = np.concatenate([one.observations[0], other.observations[0]])
    np.testing.assert_array_equal(shown.observations[0][shown.index], seen)
    assert shown.ended.tolist() == [False, False, True, False, True, False, False, False, True]
    assert shown.terminated.tolist() == [False, False, True, False, False, False, False, False, True]
    assert shown.discrete.dtype == torch.int64


def test_samples_are_whole_steps_drawn_uniformly_and_by_the_generator_alone() -> None:
    buffer = DemonstrationBuffer([make_demonstration(lengths=(4, 4))], SPEC)

    drawn = buffer.sample(8000, torch.Generator().manual_seed(1))
    again = buffer.sample(8000, torch.Generator().manual_seed(1))

    counts = torch.bincount(drawn.index, minlength=8)
    assert counts.min() > 900
    assert counts.max() < 1100
    assert torch.equal(drawn.index, again.index)
    assert torch.equal(drawn.rewards, buffer.transitions.rewards[drawn.index])
    assert torch.equal(drawn.next_index, buffer.transitions.next_index[drawn.index])


def test_sequences_do_not_cross_the_boundaries_of_pieces() -> None:
    buffer = DemonstrationBuffer([make_demonstration(lengths=(3, 2)), make_demonstration(lengths=(4,))], SPEC)

    sequences = buffer.sequences(2)

    assert sequences.rows.tolist() == [[0, 1], [2, 2], [3, 4], [5, 6], [7, 8]]
    assert sequences.mask.tolist() == [[True, True], [True, False], [True, True], [True, True], [True, True]]


def test_pictures_take_the_dtype_of_the_behavior() -> None:
    as_bytes, as_floats = picture(), ObservationSpec((3, 4, 5), "camera", dimension_properties=SIGHT)
    shown = make_demonstration(make_spec(as_bytes, branches=(3,)))

    scaled = DemonstrationBuffer([shown], make_spec(as_floats, branches=(3,))).transitions.observations[0]
    kept = DemonstrationBuffer([shown], make_spec(as_bytes, branches=(3,))).transitions.observations[0]

    assert kept.dtype == torch.uint8
    assert scaled.dtype == torch.float32
    np.testing.assert_allclose(scaled * 255, kept, rtol=1e-6)

    floats = make_demonstration(
        make_spec(as_floats, branches=(3,)),
        observations=(scaled[:5].numpy(),),
        final_observations=(scaled[5:].numpy(),),
    )
    back = DemonstrationBuffer([floats], make_spec(as_bytes, branches=(3,))).transitions.observations[0]
    assert torch.equal(back, kept)


def test_a_choice_that_was_taken_counts_as_allowed() -> None:
    masks = np.array([[0, 1, 1], [1, 1, 0]], np.uint8)
    shown = make_demonstration(lengths=(2,), action_masks=masks, discrete=np.array([[0], [1]], np.int32))
    plain = make_demonstration(lengths=(1,))

    buffer = DemonstrationBuffer([shown, plain], SPEC)

    assert buffer.masks is not None
    assert buffer.masks.int().tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]
    assert DemonstrationBuffer([plain], SPEC).masks is None


def test_what_does_not_fit_is_refused_with_both_shapes() -> None:
    with pytest.raises(DemonstrationError, match=r"shape \(2,\), .*'Walker\?team=0' has shape \(4,\)"):
        DemonstrationBuffer([make_demonstration(SPEC)], make_spec(vector(4), branches=(3,)))
    with pytest.raises(DemonstrationError, match="has no demonstration to learn from"):
        DemonstrationBuffer([], SPEC)


def test_files_and_folders_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "several").mkdir()
    write(make_demonstration(seed=1), tmp_path / "one.demo")
    write(make_demonstration(seed=2), tmp_path / "several" / "a.npz")
    write(make_demonstration(seed=3), tmp_path / "several" / "b.npz")

    found = load_demonstrations([tmp_path / "one.demo", tmp_path / "several"])

    assert [part.rewards[0] for part in found] == [make_demonstration(seed=seed).rewards[0] for seed in (1, 2, 3)]
