"""torchtune's optimizer_in_bwd: gradients are freed as they arrive.

Whole steps are compared with traced ones in tests/test_reference.py ("stepped in backward").
"""

from __future__ import annotations

from dataclasses import replace

from estimator import Component, Optimizer, Phase, TrainingSetup, catalog, estimate

LLAMA = catalog.model("meta-llama/Llama-2-7b-hf")
GPU = catalog.gpu("A100-SXM4-80GB")
SETUP = TrainingSetup(gradient_checkpointing=True, max_grad_norm=0.0, max_length=512)
PARAMETERS = 6_738_415_616
HEAD = 32_000 * 4096


def test_no_gradients_remain_after_backward():
    before = estimate(LLAMA, GPU, SETUP)
    after = estimate(LLAMA, GPU, replace(SETUP, optimizer_in_bwd=True))
    steps = [answer.phases[Phase.OPTIMIZER_STEP] for answer in (before, after)]
    assert steps[0].resident[Component.GRADIENTS] == 2 * PARAMETERS
    assert Component.GRADIENTS not in steps[1].resident
    states = [step.resident[Component.OPTIMIZER_STATES] for step in steps]
    assert states[0] == states[1]


def test_backward_holds_one_gradient_at_a_time():
    """Weights and two states of 2 bytes each, and at most a head and its copies."""
    found = estimate(LLAMA, GPU, replace(SETUP, optimizer_in_bwd=True)).phases[Phase.BACKWARD]
    assert 6 * PARAMETERS < found.bytes < 6 * PARAMETERS + 20 * HEAD
    assert found.resident.get(Component.GRADIENTS, 0) <= 2 * HEAD


def test_foreach_adamw_takes_temporaries_for_one_weight_only():
    """The square root of the second moments: of all weights in a normal step, of one weight in backward."""
    fused, foreach = (
        estimate(LLAMA, GPU, replace(SETUP, optimizer_in_bwd=True, optim=optim)).peak.bytes
        for optim in (Optimizer.ADAMW_TORCH_FUSED, Optimizer.ADAMW_TORCH)
    )
    assert foreach - fused < 2 * HEAD
