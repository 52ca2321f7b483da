"""How several GPUs share the work, as accelerate's file and DeepSpeed's JSON say it.

Source: accelerate 1.15, commands/config/config_args.py, utils/dataclasses.py; deepspeed 0.19, runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    for what in ("optimizer", "param"):
        where = values[f"offload_{what}"]
        if where != "none":
            written[f"{zero}.offload_{what}.device"] = where
        if where == "nvme":
            written[f"{zero}.offload_{what}.nvme_path"] = NVME_PATH
    return written


SHARING = Rule(
    theirs=(),
    ours=(
        "strategy",
        "num_gpus",
        "gpus_per_node",
        "fsdp_version",
        "fsdp_state_dict_type",
        "dp_replicate_size",
        "offload_optimizer",
        "offload_param",
        "zero3_save_16bit_model",
    ),
    read=lambda theirs, so_far: {},
    write=write_sharing,
)
"""The row that writes what the readers of both files take apart."""


def _beside_its_config(count: str) -> Rule:
    """Processes by a launcher's own word, and ZeRO by the JSON that the tool's config names; FSDP has other words."""

    def write(values: Mapping[str, Value]) -> Mapping[str, Value]:
        strategy, number = values["strategy"], values["num_gpus"]
        if strategy not in {"ddp", "zero1", "zero2", "zero3"} or number > values["gpus_per_node"]:
            return {}
        written: dict[str, Value] = {count: number}
        if strategy != "ddp":
            zero = {key: it for key, it in _zero(values).items() if key.startswith("deepspeed.")}
            written |= {"args.deepspeed": DEEPSPEED_FILE, **zero}
        return written

    return Rule(theirs=(), ours=SHARING.ours, read=lambda theirs, so_far: {}, write=write)


BESIDE: Mapping[str, Rule] = {
    "axolotl": _beside_its_config("accelerate.num_processes"),
    "llamafactory": _beside_its_config("launch.nproc_per_node"),
}
"""By tool: axolotl is a module that accelerate launches; LLaMA-Factory launches itself, by torchrun."""
