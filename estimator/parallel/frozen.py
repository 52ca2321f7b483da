"""The setup of a second model, of which nothing is trained.

TRL hands it to the strategy, whose file says how it holds it: ``strategies.StrategyRule``.

Source: trl 1.16, trainer/dpo_trainer.py, ``__init__`` (``prepare_model`` with ``evaluation_mode``).
"""

from __future__ import annotations

from types import MappingProxyType

from estimator.values.methods import Method
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Dtype, MixedPrecision, Offload

AUTOCAST = MappingProxyType(
    {MixedPrecision.BF16: Dtype.BFLOAT16, MixedPrecision.FP16: Dtype.FLOAT16}
)
"""What each autocast computes in."""
NO_MODULE = "nothing"
"""Names no module of any family, so that no layer is adapted."""


def as_frozen(setup: TrainingSetup) -> TrainingSetup:
    """The setup of a model that is loaded as the trained one is, without adapters, and never trained.

    LLaMA-Factory casts what it trains to float32, and leaves this one in autocast's dtype. verl offloads it.

    Source: derived; trl 1.16, models/utils.py (``model.eval()``); verl 0.9.1, workers/engine/fsdp/transformer_impl.py,
    ``_build_fsdp_module`` (``CPUOffload`` where ``forward_only``); llamafactory 0.9.5, model/patcher.py
    (``compute_dtype``), model/adapter.py:313 (``is_trainable``).

    >>> as_frozen(TrainingSetup(gradient_checkpointing=True)).computation.gradient_checkpointing
    False
    """
    dtype = setup.precision.dtype
    if setup.task.given_loss.takes_whole_logits:
        dtype = AUTOCAST.get(setup.precision.mixed_precision, dtype)
    rests = setup.task.given_loss.is_verls and setup.mesh.strategy.is_fsdp
    return setup.replace(
        offload_param=Offload.CPU if rests else setup.mesh.offload_param,
        dtype=dtype,
        method=setup.adapters.method if setup.adapters.uses_adapters else Method.LORA,
        lora_target_modules=(NO_MODULE,),
        bias="none",
        modules_to_save=None,
        use_dora=False,
        gradient_checkpointing=False,
        gradient_accumulation_steps=1,
    )
