"""When the real optimizers make their states: in the first step, except Adagrad, which does so in its constructor."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from estimator.answer.overflow import starts_with_states
from estimator.values.facets.optimisation import Optimisation
from estimator.values.specs import Optimizer

BUILT = {
    Optimizer.ADAMW_TORCH: torch.optim.AdamW,
    Optimizer.SGD_MOMENTUM: partial(torch.optim.SGD, momentum=0.9),
    Optimizer.RMSPROP: torch.optim.RMSprop,
    Optimizer.ADAGRAD: torch.optim.Adagrad,
}


@pytest.mark.parametrize("optim", BUILT)
def test_states_exist_before_the_first_step_only_as_declared(optim):
    weight = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = BUILT[optim]([weight])

    def elements() -> int:
        state = optimizer.state.get(weight, {})
        return sum(
            value.numel() for value in state.values() if value is not None and value.numel() > 1
        )

    before = elements()
    weight.grad = torch.ones(4, 4)
    optimizer.step()
    assert elements() > 0
    assert (before == elements()) is starts_with_states(Optimisation(optim=optim))
