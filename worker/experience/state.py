"""The state of a part of training, as checkpoints hold it (`worker.trainer.checkpoint` writes it)."""

from typing import Any, TypeAlias

State: TypeAlias = dict[str, Any]
"""A nested structure of dicts with string keys, lists, tuples, tensors, arrays, numbers, strings, booleans and None."""
