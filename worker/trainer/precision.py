"""In which arithmetic an update encodes pictures: float32, or bfloat16 (`torch_settings.bf16`) on a GPU.

Only the encoders of pictures change: there is nearly all of the arithmetic, and nothing that needs more than three
digits. Weights, gradients, heads and losses stay float32. The switch is on during updates only: collectors act in
float32, and an export is checked in float32, the arithmetic that it will be played in.

So the learner's features are not quite those that were acted by, and the ratio of PPO's and POCA's first minibatch is
not 1 but for rounding, as it is in float32 on the CPU: it is off by what three digits of the features make of the
log-probability. Without `bf16` it is nearer to 1 on a GPU, but not as near: by torch's default convolutions and LSTMs
round there what they multiply to TF32, which has three bits more than bfloat16.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.learning.networks.visual import VisualEncoder


@contextmanager
def bf16_pictures(enabled: bool) -> Iterator[None]:
    """Switch all visual encoders of this process to bfloat16 within the context, if `enabled`."""
    before = VisualEncoder.in_bfloat16
    VisualEncoder.in_bfloat16 = enabled
    try:
        yield
    finally:
        VisualEncoder.in_bfloat16 = before
