"""How several GPUs share the work, as accelerate's file, DeepSpeed's JSON and tools that launch themselves say it.

Source: accelerate 1.15, commands/config/config_args.py, utils/dataclasses.py; deepspeed 0.19, runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimator.tools.known.verl import ACTOR as VERL_ACTOR
from estimator.tools.lists import listed
from estimator.tools.rules import Rule, Value

DEEPSPEED_FILE = "deepspeed.json"
"""What accelerate's file calls DeepSpeed's, beside it."""
NVME_PATH = "/local_nvme"
"""Where offloaded tensors go until somebody names their own disk: the path of DeepSpeed's docs/config-json.md."""
SHARDING = {"fsdp": "FULL_SHARD", "fsdp_grad_op": "SHARD_GRAD_OP", "hsdp": "HYBRID_SHARD"}
LEFT_TO_TRAINER = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16.enabled",
    "fp16.enabled",
)
"""Keys of DeepSpeed's file that Trainer fills in: transformers 5.23, integrations/deepspeed.py."""
BUFFERS = (
    "reduce_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
)
"""Sizes that Trainer sets from the model's width where they are ``auto``: transformers 5.23,
integrations/deepspeed.py."""


def write_sharing(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """The entries of both files; none where one GPU works by itself.

    >>> alone = {"strategy": "ddp", "num_gpus": 16, "gpus_per_node": 8}
    >>> write_sharing(alone)["accelerate.num_machines"]
    2
    """
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy in {"none", "device_map"}:
        return {}
    written: dict[str, Value] = {
        "accelerate.compute_environment": "LOCAL_MACHINE",
        "accelerate.num_machines": -(-number // values["gpus_per_node"]),
        "accelerate.num_processes": number,
    }
    if strategy == "ddp":
        return written | {"accelerate.distributed_type": "MULTI_GPU"}
    return written | (_fsdp(values) if strategy in SHARDING else _zero(values))


def _fsdp(values: Mapping[str, Value]) -> dict[str, Value]:
    strategy, version = values["strategy"], values["fsdp_version"]
    config: dict[str, Value] = {
        "fsdp_version": version,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": values["offload_param"] == "cpu",
        "fsdp_state_dict_type": values["fsdp_state_dict_type"],
        "fsdp_cpu_ram_efficient_loading": True,
    }
    if version == 1:
        config["fsdp_sharding_strategy"] = SHARDING[strategy]
        config["fsdp_use_orig_params"] = True
    else:
        config["fsdp_reshard_after_forward"] = strategy != "fsdp_grad_op"
    written = {f"accelerate.fsdp_config.{key}": value for key, value in config.items()}
    written["accelerate.distributed_type"] = "FSDP"
    if strategy == "hsdp" and version == 2:
        groups, number = values["dp_replicate_size"], values["num_gpus"]
        sizes = {"dp_replicate_size": groups, "dp_shard_size": number // groups}
        part = "accelerate.parallelism_config.parallelism_config"
        written |= {f"{part}_{key}": value for key, value in sizes.items()}
    return written


def _zero(values: Mapping[str, Value]) -> dict[str, Value]:
    stage, zero = int(values["strategy"][-1]), "deepspeed.zero_optimization"
    written: dict[str, Value] = {
        "accelerate.distributed_type": "DEEPSPEED",
        "accelerate.deepspeed_config.deepspeed_config_file": DEEPSPEED_FILE,
        "accelerate.deepspeed_config.zero3_init_flag": stage == 3,
        **{f"deepspeed.{key}": "auto" for key in LEFT_TO_TRAINER},
        f"{zero}.stage": stage,
    }
    if stage == 3:
        written |= {f"{zero}.{key}": "auto" for key in BUFFERS}
        gathers = values["zero3_save_16bit_model"]
        written[f"{zero}.stage3_gather_16bit_weights_on_model_save"] = gathers
    if values["overlap_comm"] is not None:
        written[f"{zero}.overlap_comm"] = values["overlap_comm"]
    for what in ("optimizer", "param"):
        where = values[f"offload_{what}"]
        if where != "none":
            written[f"{zero}.offload_{what}.device"] = where
        if where == "nvme":
            written[f"{zero}.offload_{what}.nvme_path"] = NVME_PATH
    return written


SHARING = Rule(
    theirs=(),
    ours=listed("""strategy num_gpus gpus_per_node fsdp_version fsdp_state_dict_type dp_replicate_size
        offload_optimizer offload_param zero3_save_16bit_model overlap_comm"""),
    read=lambda theirs, so_far: {},
    write=write_sharing,
)
"""The row that writes what the readers of both files take apart."""


def _named_json(values: Mapping[str, Value]) -> dict[str, Value]:
    """DeepSpeed's JSON, and the key of a tool's config that names it."""
    zero = {key: value for key, value in _zero(values).items() if key.startswith("deepspeed.")}
    return {"args.deepspeed": DEEPSPEED_FILE, **zero}


def _with_axolotl(values: Mapping[str, Value]) -> Mapping[str, Value]:
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy in {"none", "device_map"}:
        return {}
    written: dict[str, Value] = {"accelerate.num_processes": number}
    if (machines := -(-number // values["gpus_per_node"])) > 1:
        written["accelerate.num_machines"] = machines
    if strategy == "ddp":
        return written
    return written | (_fsdp_of_axolotl(values) if strategy in SHARDING else _named_json(values))


def _fsdp_of_axolotl(values: Mapping[str, Value]) -> dict[str, Value]:
    """Its YAML's own block: axolotl 0.19, utils/schemas/fsdp.py; docs/multi-gpu.qmd."""
    strategy, version = values["strategy"], values["fsdp_version"]
    config: dict[str, Value] = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "offload_params": values["offload_param"] == "cpu",
        "state_dict_type": values["fsdp_state_dict_type"],
        "cpu_ram_efficient_loading": True,
    }
    written: dict[str, Value] = {"args.fsdp_version": version}
    if version == 1:
        written["args.fsdp"] = [SHARDING[strategy].lower(), "auto_wrap"]
        config |= {"use_orig_params": True, "sync_module_states": True}
    else:
        config["reshard_after_forward"] = strategy != "fsdp_grad_op"
    if strategy == "hsdp" and version == 2:
        groups = values["dp_replicate_size"]
        written["args.dp_replicate_size"] = groups
        written["args.dp_shard_size"] = values["num_gpus"] // groups
    return written | {f"args.fsdp_config.{key}": value for key, value in config.items()}


def _with_llamafactory(values: Mapping[str, Value]) -> Mapping[str, Value]:
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy in SHARDING:
        return write_sharing(values)
    if strategy not in {"ddp", "zero1", "zero2", "zero3"}:
        return {}
    machines = -(-number // values["gpus_per_node"])
    written: dict[str, Value] = {"launch.nproc_per_node": number // machines}
    if machines > 1:
        written["launch.nnodes"] = machines
    return written | ({} if strategy == "ddp" else _named_json(values))


def _with_verl(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Its own keys: verl 0.9.1, workers/engine/fsdp/transformer_impl.py, ``_build_fsdp_module``."""
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy != "none" and strategy not in SHARDING:
        return {}
    machines = -(-number // values["gpus_per_node"])
    written: dict[str, Value] = {
        "args.trainer.n_gpus_per_node": number // machines,
        "args.trainer.nnodes": machines,
    }
    if strategy == "none":
        return written
    written[f"{VERL_ACTOR}.strategy"] = "fsdp2" if values["fsdp_version"] == 2 else "fsdp"
    part = f"{VERL_ACTOR}.fsdp_config"
    if strategy == "hsdp":
        written[f"{part}.fsdp_size"] = number // values["dp_replicate_size"]
    both = (values["offload_optimizer"], values["offload_param"])
    written[f"{part}.reshard_after_forward"] = strategy != "fsdp_grad_op"
    written[f"{part}.offload_policy"] = both == ("cpu", "cpu")
    return written


BESIDE: Mapping[str, Rule] = {
    tool: Rule(theirs=(), ours=SHARING.ours, read=lambda theirs, so_far: {}, write=write)
    for tool, write in {
        "axolotl": _with_axolotl,
        "llamafactory": _with_llamafactory,
        "ms_swift": _with_llamafactory,
        "verl": _with_verl,
    }.items()
}
"""By tool: axolotl is a module that accelerate launches; LLaMA-Factory and ms-swift launch themselves, by torchrun, and
FSDP by accelerate: LLaMA-Factory, examples/accelerate, examples/extras/fsdp_qlora; ms-swift,
examples/train/multi-gpu/fsdp_qlora. verl starts its processes by Ray."""
