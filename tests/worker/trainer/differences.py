"""Finds where two states (`worker.trainer.checkpoint`) differ in any bit. States are trees of dicts, lists, tensors,
arrays and plain values.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return the paths of all entries that differ, or that only one side has, in order; none for equal states."""
    return list(_differing(one, other, path))


def _differing(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted(one.keys() | other.keys()):
            if key in one and key in other:
                yield from _differing(one[key], other[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}"
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differing(left, right, f"{path}/{index}")
    elif not _same(one, other):
        yield path or "/"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _same(one.detach().cpu().contiguous().numpy(), other.detach().cpu().contiguous().numpy())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()  # nan is nan, and -0.0 is not 0.0
    return bool(type(one) is type(other) and one == other)
