from typing import Any

import pytest
import torch

from tests.worker.learning.algorithms.off_policy_world import make_sac_config
from tests.worker.rollouts import make_spec
from worker.learning.fast.adam import FlatAdam
from worker.learning.fast.critics import StackedCritics
from worker.learning.networks.soft_actor_critic import ModularCritics, build_critics

HYBRID = make_spec(observations=(3,), continuous=2, branches=(2,))


def make_critics(spec: Any = HYBRID, *, signals: int = 2, **network: Any) -> StackedCritics | ModularCritics:
    """New critics, with storage for gradients."""
    settings = make_sac_config(network=network).network_settings
    critics = build_critics(spec, settings, signals, torch.Generator().manual_seed(5))
    FlatAdam([(name, part) for name, part in critics.named_parameters() if part.requires_grad])
    return critics


@pytest.mark.parametrize("network", [{}, {"memory": {"sequence_length": 2, "memory_size": 8}}], ids=["plain", "lstm"])
def test_v_and_its_target_see_no_action(network: dict[str, Any]) -> None:
    critics = make_critics(**network)
    seen = torch.randn(6, 3)

    with torch.no_grad():
        one, other = (critics.q_values([seen], torch.rand(6, 2), 2) for _ in range(2))

    assert torch.equal(one.v, other.v)
    assert not torch.allclose(one.q, other.q)


def test_a_target_with_a_memory_remembers_what_came_before_in_its_sequence() -> None:
    critics = make_critics(memory={"sequence_length": 3, "memory_size": 8})
    whole = torch.randn(2, 4, 3)  # two sequences of three steps, and what followed

    def foresee(observations: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            values = critics.target_values([observations[:, :-1].flatten(0, 1)], [observations[:, 1:].flatten(0, 1)], 3)
        return values.view(2, 3, 2)

    values = foresee(whole)
    changed = whole.clone()
    changed[0, 0] += 1.0
    moved = (foresee(changed) - values).abs().amax(2) > 1e-6

    assert moved.tolist() == [[True, True, True], [False, False, False]]
