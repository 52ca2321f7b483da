"""What torch's FSDP 1 keeps of frozen layers, in two real processes over gloo.

Expected counts come from the real torch 2.13, transformers 5.23 and peft 0.21, run here.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.verify.processes import in_two_processes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS, LENGTH, HIDDEN = 6, 24, 64
CONFIG = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 24,  # so that no query has the size of a hidden state
}


def hidden_states(*, frozen: bool, reentrant: bool, around: bool) -> int:
    """How many tensors of a hidden state's size are alive just before the lowest layer is recomputed."""
    import peft
    from peft.utils.other import fsdp_auto_wrap_policy
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from torch.utils.checkpoint import checkpoint

    from tests.verify.storages import Storages

    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**CONFIG), attn_implementation="eager"
    )
    layer_class = type(model.model.layers[0])
    policy: Any = functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={layer_class}
    )
    if frozen:
        model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
        policy = fsdp_auto_wrap_policy(model)
    if not around:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    lowest = next(module for module in model.modules() if isinstance(module, layer_class))
    sharded = FullyShardedDataParallel(
        model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
    )
    if around:  # transformers 4.51, modeling_llama.py: `_gradient_checkpointing_func(decoder_layer.__call__, ...)`
        for unit in FullyShardedDataParallel.fsdp_modules(sharded):
            if isinstance(unit.module, layer_class):
                unit.forward = _checkpointed(checkpoint, unit.forward, reentrant)
    counts: list[int] = []
    ids = torch.zeros((1, LENGTH), dtype=torch.long)
    with Storages() as counted:
        lowest.self_attn.register_forward_pre_hook(
            lambda *_: counts.append(counted.of_size(LENGTH * HIDDEN * 4))
        )
        sharded(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return counts[-1]


def _checkpointed(checkpoint: Any, forward: Any, reentrant: bool) -> Any:
    return lambda *args, **kwargs: checkpoint(
        functools.partial(forward, **kwargs), *args, use_reentrant=reentrant
    )


CASES = {
    "around": {"frozen": True, "reentrant": True, "around": True},
    "inside": {"frozen": True, "reentrant": True, "around": False},
    "not reentrant": {"frozen": True, "reentrant": False, "around": True},
    "trained": {"frozen": False, "reentrant": True, "around": True},
}


def counted(folder: Path, case: str) -> set[int]:
    """The count of each of two ranks."""
    return set(in_two_processes(folder, hidden_states, **CASES[case]))


def test_only_frozen_layers_inside_reentrant_checkpoints_are_kept(tmp_path):
    (least,) = counted(tmp_path, "inside")
    assert counted(tmp_path, "not reentrant") == {least}
    # a trained norm has saved the tensor that it multiplies by its weight
    assert counted(tmp_path, "trained") == {least + 1}
    # the inputs of the layers above, and the gradients of those inputs except the incoming one
    assert counted(tmp_path, "around") == {least + (LAYERS - 1) + (LAYERS - 2)}
