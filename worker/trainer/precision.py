"""In which arithmetic an update encodes pictures: float32, or bfloat16 (`torch_settings.bf16`) on a GPU.

Only the encoders of pictures change: there is nearly all of the arithmetic, and nothing that needs more than three
digits. Weights, gradients, heads and losses stay float32, so probability ratios do too. The switch is on during updates
only: an export is checked against the policy in float32, the arithmetic that it will be played in.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.networks.visual import VisualEncoder


@contextmanager
def bf16_pictures(enabled: bool) -> Iterator[None]:
    """Let all visual encoders of this process compute in bfloat16 meanwhile, if `enabled`."""
    before = VisualEncoder.in_bfloat16
    VisualEncoder.in_bfloat16 = enabled
    try:
        yield
    finally:
        VisualEncoder.in_bfloat16 = before
