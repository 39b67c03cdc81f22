"""Vector observations as networks see them: side by side, and scaled by running statistics that the learner keeps."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray
from ludus.collector.heads.numpy_operations import NUMPY

NORMALIZED_LIMIT = 5.0
"""Normalised vectors are clipped to `[-NORMALIZED_LIMIT, NORMALIZED_LIMIT]`, as in ML-Agents."""


def joined_vectors(
    observations: Sequence[NDArray[np.generic]], mean: FloatArray | None, std: FloatArray | None
) -> FloatArray:
    """Return vector observations side by side, `(B, O)`; normalised where there is a `mean`, `(O,)` or `(B, O)`."""
    joined = observations[0] if len(observations) == 1 else np.concatenate(observations, 1)
    vectors: FloatArray = joined.astype(np.float32, copy=False)
    if mean is not None and std is not None:
        vectors = vectors - mean
        vectors /= std
        vectors = NUMPY.clip(vectors, -NORMALIZED_LIMIT, NORMALIZED_LIMIT)
    return vectors
