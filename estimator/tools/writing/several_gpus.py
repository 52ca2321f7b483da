"""How several GPUs share the work, as accelerate's file, DeepSpeed's JSON and tools that launch themselves say it.

Source: accelerate 1.15, commands/config/config_args.py, utils/dataclasses.py; deepspeed 0.19, runtime/zero/config.py.
"""

from __future__ import annotations

from estimator.tools.lists import listed
from estimator.tools.rules import Value, Values

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


def write_sharing(values: Values) -> Values:
    """The entries of both files; none where one GPU works by itself.

    >>> alone = {"strategy": "ddp", "num_gpus": 16, "gpus_per_node": 8, "tp_size": 1}
    >>> write_sharing(alone)["accelerate.num_machines"]
    2
    """
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy == "device_map" or (strategy == "none" and values["tp_size"] == 1):
        return {}
    written: dict[str, Value] = {
        "accelerate.compute_environment": "LOCAL_MACHINE",
        "accelerate.num_machines": -(-number // values["gpus_per_node"]),
        "accelerate.num_processes": number,
    }
    if strategy == "ddp" or values["tp_size"] > 1:
        mesh = _divided(values) if values["tp_size"] > 1 else {}
        return written | {"accelerate.distributed_type": "MULTI_GPU"} | mesh
    return written | (_fsdp(values) if strategy in SHARDING else _zero(values))


def _divided(values: Values) -> dict[str, Value]:
    """The mesh of a model that ``from_pretrained`` divides itself: accelerate's file only starts the processes.

    Source: transformers 5.23, distributed/configuration_utils.py; trainer.py:467.
    """
    parts = values["tp_size"]
    beside = {
        "fsdp": {"distributed.fsdp_size": values["num_gpus"] // parts},
        "hsdp": {"distributed.dp_replicate_size": values["dp_replicate_size"]},
    }
    return {"distributed.tp_size": parts, **beside.get(values["strategy"], {})}


def fsdp_config(values: Values) -> dict[str, Value]:
    """Keys of FSDP's block, without accelerate's prefix; version 1 has its sharding beside."""
    config: dict[str, Value] = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "offload_params": values["offload_param"] == "cpu",
        "state_dict_type": values["fsdp_state_dict_type"],
        "cpu_ram_efficient_loading": True,
    }
    if values["fsdp_version"] == 2:
        config["reshard_after_forward"] = values["strategy"] != "fsdp_grad_op"
    return config


def groups(values: Values, part: str) -> dict[str, Value]:
    """The two sides of FSDP 2's groups, below a key; empty without groups."""
    if values["strategy"] != "hsdp" or values["fsdp_version"] != 2:
        return {}
    number = values["dp_replicate_size"]
    return {
        f"{part}dp_replicate_size": number,
        f"{part}dp_shard_size": values["num_gpus"] // number,
    }


def _fsdp(values: Values) -> dict[str, Value]:
    version = values["fsdp_version"]
    config: dict[str, Value] = {"version": version, **fsdp_config(values)}
    if version == 1:
        config |= {"sharding_strategy": SHARDING[values["strategy"]], "use_orig_params": True}
    written = {f"accelerate.fsdp_config.fsdp_{key}": value for key, value in config.items()}
    part = "accelerate.parallelism_config.parallelism_config_"
    return {**written, "accelerate.distributed_type": "FSDP", **groups(values, part)}


def _zero(values: Values) -> dict[str, Value]:
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


SHARED = listed("""strategy num_gpus gpus_per_node tp_size fsdp_version fsdp_state_dict_type dp_replicate_size
    offload_optimizer offload_param zero3_save_16bit_model overlap_comm""")
"""Our keys of which these are written."""


def named_json(values: Values) -> dict[str, Value]:
    """DeepSpeed's JSON, and the key of a tool's config that names it."""
    zero = {key: value for key, value in _zero(values).items() if key.startswith("deepspeed.")}
    return {"args.deepspeed": DEEPSPEED_FILE, **zero}


def write_launched(values: Values) -> Values:
    """For tools that launch themselves: torchrun's environment, and accelerate's file for FSDP.

    Source: LLaMA-Factory, examples/accelerate, examples/extras/fsdp_qlora; ms-swift,
    examples/train/multi-gpu/fsdp_qlora.
    """
    strategy, number = values["strategy"], values["num_gpus"]
    if strategy in SHARDING:
        return write_sharing(values)
    if strategy not in {"ddp", "zero1", "zero2", "zero3"}:
        return {}
    machines = -(-number // values["gpus_per_node"])
    written: dict[str, Value] = {"launch.nproc_per_node": number // machines}
    if machines > 1:
        written["launch.nnodes"] = machines
    return written | ({} if strategy == "ddp" else named_json(values))


OTHERS = {"NODE_RANK": '"$RANK"', "MASTER_ADDR": '"$MASTER_ADDR"'}
"""What torchrun must know on each of several machines."""


def variables(launch: Values) -> str:
    """torchrun's environment before a command, with a space behind it; empty where one process runs.

    >>> variables({"nproc_per_node": 2})
    'NPROC_PER_NODE=2 '
    """
    said = {key.upper(): str(value) for key, value in launch.items()}
    said |= OTHERS if "NNODES" in said else {}
    return "".join(f"{key}={value} " for key, value in said.items())
