"""The order of trained tensors and which of them decay, compared with the real classes on the meta device.

Expected values come from transformers 5.23 and peft 0.21 themselves, run here.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_parameters_meta import IDS, VARIANTS, build

from estimator.families.weights import elements
from estimator.parallel.parameter_order import trained_in_order
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Method

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


def _theirs(real: Any) -> list[tuple[int, bool]]:
    """Elements of every trained parameter, and whether it decays."""
    decays = set(transformers.Trainer.get_decay_parameter_names(None, real))
    return [(p.numel(), name in decays) for name, p in real.named_parameters() if p.requires_grad]


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_weights_have_the_order_of_the_real_class(model_type: str, keys: dict[str, Any]) -> None:
    real, model = build(model_type, keys)
    ours = [(elements(it.shape), it.decays) for it in trained_in_order(model, TrainingSetup())]
    assert ours == _theirs(real)


@pytest.mark.parametrize(
    ("targets", "copies"), [("all-linear", None), (("down_proj", "o_proj"), ["lm_head", "norm"])]
)
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("model_type", ["llama", "phi3", "qwen2"])
def test_adapters_and_copies_have_peft_s_order(
    model_type: str, targets: str | tuple[str, ...], copies: list[str] | None
) -> None:
    keys = next(keys for name, keys in VARIANTS if name == model_type)
    real, model = build(model_type, keys)
    real = peft.get_peft_model(
        real,
        peft.LoraConfig(
            r=8,
            task_type="CAUSAL_LM",
            target_modules=targets if isinstance(targets, str) else list(targets),
            modules_to_save=copies,
        ),
        autocast_adapter_dtype=False,
    )
    setup = TrainingSetup(
        method=Method.LORA,
        lora_r=8,
        lora_target_modules=targets,
        modules_to_save=copies and tuple(copies),
    )
    ours = [(elements(it.shape), it.decays) for it in trained_in_order(model, setup)]
    assert ours == _theirs(real)
