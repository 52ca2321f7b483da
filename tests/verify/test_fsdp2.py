"""What torch's fully_shard keeps, as accelerate calls it, in two real processes over gloo.

Expected bytes come from the real torch 2.13, transformers 5.23, accelerate 1.15 and peft 0.21, run here.
"""

from __future__ import annotations

import os
import types
from dataclasses import replace
from typing import Any

import pytest

from estimator import estimate
from estimator.contract import setups as contract
from estimator.families.family import Rotary
from estimator.families.hf_config import model_from_config
from estimator.families.registry import family_of
from estimator.parallel.sharding import reduced_bytes, sharded_groups
from estimator.parallel.strategies import resident_memory
from estimator.step.timeline import structure
from estimator.values.arithmetic import allocated
from tests.verify.processes import RANKS, in_two_processes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIG = {
    "model_type": "llama",
    "vocab_size": 51,  # the ranks have different numbers of rows
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
COPIES = {"modules_to_save": ["embed_tokens", "lm_head", "norm"]}
LORA = {"method": "lora", "lora_r": 4, "lora_dropout": 0.0}
LENGTH = 16


def sharded(setup: dict[str, Any], config: dict[str, Any]) -> Any:
    """A model as Trainer passes it to accelerate, and as accelerate passes it to fully_shard."""
    import peft
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.device_mesh import init_device_mesh

    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**CONFIG | config), dtype=torch.bfloat16
    )
    if setup.get("method") == "lora":
        settings = peft.LoraConfig(
            r=setup["lora_r"],
            target_modules="all-linear",
            modules_to_save=setup.get("modules_to_save"),
            use_dora=setup.get("use_dora", False),
            task_type="CAUSAL_LM",
        )
        autocast = setup.get("autocast_adapter_dtype", True)
        model = peft.get_peft_model(model, settings, autocast_adapter_dtype=autocast)
    mixed = setup.get("mixed_precision", "bf16")
    os.environ["ACCELERATE_MIXED_PRECISION"] = mixed
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        cpu_ram_efficient_loading=False,
    )
    if mixed != "no":
        plugin.set_mixed_precision(mixed)
    accelerator: Any = types.SimpleNamespace(
        state=types.SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",)),
        parallelism_config=types.SimpleNamespace(fsdp_dim_names=("shard",)),
        mixed_precision=mixed,
        is_main_process=False,
        device=torch.device("cpu"),
    )
    return fsdp2_prepare_model(accelerator, model.train())


def kept(*, setup: dict[str, Any], config: dict[str, Any], steps: int) -> dict[str, int]:
    """Bytes of shards, of unsharded gradients before the last micro-step, and of gradients after it."""
    from torch.distributed.fsdp import FSDPModule

    model = sharded(setup, config)
    ids = torch.zeros((1, LENGTH), dtype=torch.long)

    mixed = setup.get("mixed_precision", "bf16")
    width = torch.float16 if mixed == "fp16" else torch.bfloat16
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=mixed == "fp16")

    def play(*, last: bool) -> None:
        model.set_requires_gradient_sync(last)
        with torch.autocast("cpu", width, enabled=mixed != "no"):
            scaler.scale(model(input_ids=ids, labels=ids, use_cache=False).loss).backward()

    for _ in range(steps - 1):
        play(last=False)
    states = {
        module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)
    }
    groups = [group for state in states for group in state._fsdp_param_groups]
    params = [param for group in groups for param in group.fsdp_params]
    whole = (
        [param.unsharded_param.grad for param in params if param.unsharded_param.grad is not None]
        if (steps > 1)
        else []
    )
    play(last=True)
    # as in accelerate's clip_grad_norm_, which raises for a float16 gradient
    scaler.unscale_(
        torch.optim.SGD(parameter for parameter in model.parameters() if parameter.requires_grad)
    )
    grads = {
        parameter.grad.to_local().untyped_storage()
        for parameter in model.parameters()
        if parameter.grad is not None
    }
    return {
        "shards": sum(
            allocated(param._sharded_param_data.untyped_storage().nbytes()) for param in params
        ),
        "whole gradients": sum(allocated(tensor.untyped_storage().nbytes()) for tensor in whole),
        "gradients": sum(
            allocated(value.nbytes()) for value in {grad._cdata: grad for grad in grads}.values()
        ),
    }


CASES = {
    "full": {},
    "full, fp16": {"mixed_precision": "fp16"},
    "LoRA": LORA,
    "LoRA, fp16": LORA | {"mixed_precision": "fp16", "autocast_adapter_dtype": False},
    "LoRA beside copied modules": LORA | COPIES,
    "LoRA beside copied ends, no autocast": LORA
    | {"modules_to_save": ["embed_tokens", "lm_head"], "mixed_precision": "no"},
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_shards_and_gradients_of_four_micro_steps_match_the_real_fsdp2(name, tmp_path):
    setup = {**CASES[name], "gradient_accumulation_steps": 4}
    model, _, ours = contract.parse(
        {"model": CONFIG, "strategy": "fsdp", "num_gpus": RANKS, "max_length": LENGTH, **setup}
    )
    assert estimate(model, None, ours).peak.bytes > 0  # not refused
    lying = resident_memory(model, structure(ours))
    real = in_two_processes(tmp_path, kept, setup=setup, config={}, steps=4)[0]
    assert real == {
        "shards": lying.weights + lying.adapters,
        "whole gradients": lying.accumulated,
        "gradients": reduced_bytes(sharded_groups(model, ours.adapters), replace(ours)),
    }


REFUSED = {
    "two dtypes in one group": (
        LORA | {"modules_to_save": ["norm"], "mixed_precision": "no"},
        {},
        "AssertionError: FSDP expects uniform original parameter dtype",
        "a single dtype",
    ),
    "a tied weight in two groups": (
        LORA | {"modules_to_save": ["embed_tokens"]},
        {"tie_word_embeddings": True},
        "is shared with a parameter already managed by another FSDP group",
        "one tied weight",
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_setups_we_refuse_fail_in_the_real_fsdp2(name, tmp_path):
    setup, config, theirs, ours = REFUSED[name]
    for answer in in_two_processes(tmp_path, kept, setup=setup, config=config, steps=1):
        assert theirs in answer
    told = {"model": CONFIG | config, "strategy": "fsdp", "num_gpus": RANKS, "max_length": LENGTH}
    with pytest.raises(ValueError, match=ours):
        estimate(*contract.parse(told | setup))


LATENT = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
LATENT |= {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "v_head_dim": 12,
}
LATENT |= {"first_k_dense_replace": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "cohere": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "ernie4_5": {"head_dim": 16},
    "deepseek_v2": LATENT,  # complex tables
    "mpt": {"d_model": 64, "n_heads": 2, "n_layers": 2, "max_seq_len": 64},
}


def cast_by_layers(*, shapes: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Names of the inputs that FSDP 2 casts for the layers of each model."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    real, found = FSDPState._cast_forward_inputs, set[str]()

    def noticed(self: Any, args: Any, kwargs: Any) -> Any:
        cast = real(self, args, kwargs)
        for name, given in kwargs.items():
            pairs = (
                zip(given, cast[1][name], strict=True)
                if isinstance(given, tuple)
                else [(given, cast[1][name])]
            )
            if any(
                isinstance(tensor, torch.Tensor) and tensor.dtype != that.dtype
                for tensor, that in pairs
            ):
                found.add(name)
        return cast

    FSDPState._cast_forward_inputs = noticed
    answers = {}
    for model_type, shape in shapes.items():
        found.clear()
        model = sharded({}, {"model_type": model_type, **shape})
        ids = torch.zeros((1, LENGTH), dtype=torch.long)
        with torch.autocast("cpu", torch.bfloat16):
            model(input_ids=ids, labels=ids, use_cache=False)
        answers[model_type] = sorted(found)
    return answers


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_real_layers_have_float32_tables_and_alibi_cast_and_no_others(tmp_path):
    real = in_two_processes(tmp_path, cast_by_layers, shapes=SHAPES)[0]
    for model_type, shape in SHAPES.items():
        family = family_of(model_from_config({**CONFIG, "model_type": model_type, **shape}))
        tables = family.rotary is not None and family.rotary.float32_tables
        ours = ["position_bias"] if family.alibi_by_head else []
        ours += ["position_embeddings"] if tables and family.rotary is not Rotary.COMPLEX else []
        assert real[model_type] == ours, model_type
