"""When a policy counts as one that does not learn any more, although its updates are finite."""

from pydantic import Field

from ludus.config.values import Real, Section


class DivergenceSettings(Section):
    """Signs of divergence: what is a finding about the run's health, and what ends the run.

    docs/health.md says when such a sign is a finding. A limit is crossed after three updates in a row beyond it: the
    run then ends FAILED as `diverged`, with a checkpoint. Each key may be null, which means never.
    """

    warn_entropy_below: Real | None = Field(default=1.0e-4, ge=0, le=1)
    """Sign (`entropy_collapsed`): when the entropy of a discrete branch is below this share of the maximum for its
    allowed choices. At 0.0001 with two choices, about one action in 100,000 still explores.
    """
    warn_sigma_below: Real | None = Field(default=1.0e-3, ge=0)
    """Sign (`entropy_collapsed`) when the standard deviation of the continuous actions, geometric mean over columns, is
    below this. Under `ppo` and `poca` actions range from -3 to 3, under `sac` it is the deviation before squashing,
    whose minimum is 2e-9.
    """
    warn_kl_above: Real | None = Field(default=1.0, gt=0)
    """Sign (`kl_exploded`) when `Policy/Approximate KL` of an update is above this, in nats. Healthy updates are below
    0.03. Without effect under `sac`, which measures none.
    """
    stop_entropy_below: Real | None = Field(default=None, ge=0, le=1)
    """End the run below this share; see `warn_entropy_below`."""
    stop_sigma_below: Real | None = Field(default=None, ge=0)
    """End the run below this standard deviation; see `warn_sigma_below`."""
    stop_kl_above: Real | None = Field(default=None, gt=0)
    """End the run above this KL divergence; see `warn_kl_above`."""
