"""Several GPUs: accelerate's YAML and flags, DeepSpeed's JSON, torchrun, and Trainer's ``fsdp`` and ``deepspeed``.

The three say the same thing in different words, and the same words mean different things: ``fsdp`` is version 2 in
``TrainingArguments`` (transformers 5.23, training_args.py:2826) and version 1 in accelerate's file (accelerate 1.15,
utils/dataclasses.py:1830).
"""

from __future__ import annotations

import re
from math import prod

from estimator.tools.later import EITHER, LESS, MORE, Later, not_modelled
from estimator.tools.lists import listed, under
from estimator.tools.rules import SoFar, Theirs, Value, Values, row

CHAINS = {"accelerate": (("accelerate", "ClusterConfig"),)}

AXOLOTLS = "args.base_model"
"""A key of axolotl's alone."""
MESH = listed("dp_shard_size dp_replicate_size tensor_parallel_size context_parallel_size")
"""The sides of axolotl's mesh: axolotl 0.19, utils/trainer.py, ``setup_parallelism_envs``."""


DEEPSPEED_FLAGS = frozenset(
    listed("""zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path
    offload_param_nvme_path gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model
    deepspeed_config_file deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
    deepspeed_multinode_launcher deepspeed_moe_layer_cls_names""")
)
"""Flags of accelerate's launcher that its file has under ``deepspeed_config``."""


def is_on(value: Value) -> bool:
    """Whether a switch is on, also where it is a word.

    >>> is_on("true"), is_on("False"), is_on(1), is_on(None)
    (True, False, True, False)
    """
    return (
        value.lower() in ("true", "1", "yes", "y", "on") if isinstance(value, str) else bool(value)
    )


def whole(value: Value) -> int | None:
    """A count, also where it is a text; None where it is none ("auto", a list, a variable)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    return value if isinstance(value, int) else None


def positive(value: Value) -> int | None:
    """A count that is not 0."""
    return whole(value) or None


def rounded(value: Value) -> Value:
    """A number that is whole, as an int; anything else as it is.

    >>> rounded(32.0), rounded(0.5), rounded([1])
    (32, 0.5, [1])
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _gpus(theirs: Theirs, so_far: SoFar) -> Values:
    machines = whole(theirs.first("launch.nnodes", "accelerate.num_machines")) or 1
    for key in ("launch.nproc_per_node", "launch.num_gpus"):  # deepspeed's is on each machine, too
        if theirs.has(key):
            a_node = whole(theirs[key])
            return {"num_gpus": a_node * machines} if a_node else {}
    if theirs.has("accelerate.num_processes"):
        kind = theirs["accelerate.distributed_type"]
        if isinstance(kind, str) and kind.upper() in ("NO", "TPU", "XLA"):
            return {"num_gpus": 1}
        count = whole(theirs["accelerate.num_processes"])
        return {"num_gpus": count} if count else {}
    if theirs.has("launch.visible_devices"):
        shown = str(theirs["launch.visible_devices"])
        count = len([*filter(str.strip, shown.split(","))])
        if theirs.has("launch.launcher"):
            return {"num_gpus": max(count, 1)}
    return _mesh(theirs)


def _mesh(theirs: Theirs) -> Values:
    """The GPUs that a mesh has: transformers', or axolotl's, where its YAML names every side; else the launcher's."""
    if theirs.has("distributed.tp_size"):
        return {"num_gpus": prod(_divided(theirs))}
    if not theirs.is_given("args.dp_shard_size"):
        return {}
    sides = (whole(theirs[f"args.{side}"]) or 1 for side in MESH)
    return {"num_gpus": prod(sides)}


def _node(theirs: Theirs, so_far: SoFar) -> Values:
    machines = whole(theirs.first("launch.nnodes", "accelerate.num_machines")) or 1
    gpus = so_far["num_gpus"]
    return {"gpus_per_node": gpus // machines} if machines > 1 and gpus % machines == 0 else {}


def _overlap(theirs: Theirs, so_far: SoFar) -> Values:
    """What a DeepSpeed config says of it, if it says it and the strategy is DeepSpeed's."""
    said = theirs["deepspeed.zero_optimization.overlap_comm"]
    return {"overlap_comm": said} if isinstance(said, bool) else {}


def _threads(theirs: Theirs, so_far: SoFar) -> Values:
    """Threads of a process, which matter where the CPU runs the optimizer."""
    number = whole(theirs["accelerate.num_cpu_threads_per_process"])
    return {"num_cpu_threads_per_process": number} if number else {}


SHIPPED = re.compile(r"(?:zero|z|stage|ds)[_-]?(?:stage)?[_-]?([0-3])", re.IGNORECASE)
"""How the tools name the DeepSpeed files that they ship: ``deepspeed_configs/zero3_bf16.json``,
``examples/deepspeed/ds_z3_offload_config.json``, ``zero2``."""


def zero_stage(theirs: Theirs) -> int | None:
    """DeepSpeed's stage, from its JSON, accelerate's short form, or the name of a file that a tool ships."""
    for key in ("deepspeed.zero_optimization.stage", "accelerate.deepspeed_config.zero_stage"):
        if theirs.has(key):
            return whole(theirs[key])
    if theirs.has_part("deepspeed"):
        return 0
    path = theirs["args.deepspeed"]
    if isinstance(path, str) and (found := SHIPPED.search(path.rpartition("/")[2])):
        return int(found[1])
    kind = theirs["accelerate.distributed_type"]
    if isinstance(kind, str) and kind.upper() == "DEEPSPEED":
        return 2  # accelerate 1.15, utils/dataclasses.py: zero_stage of DeepSpeedPlugin
    return None


def _offloads(theirs: Theirs, stage: int) -> Values:
    found = {}
    named = str(theirs["args.deepspeed"] or "").rpartition("/")[2].lower()
    for what in ("optimizer", "param"):
        words = [
            theirs[f"deepspeed.zero_optimization.offload_{what}.device"],
            theirs[f"accelerate.deepspeed_config.offload_{what}_device"],
        ]
        word = next((word for word in words if isinstance(word, str)), "none").lower()
        if not theirs.has_part("deepspeed") and ("offload" in named or "cpuoffload" in named):
            all_of_it = "params" in named or "all" in named or named.startswith("ds_")
            word = "cpu" if what == "optimizer" or (stage == 3 and all_of_it) else word
        if word in ("cpu", "nvme") and (what == "optimizer" or stage == 3):
            found[f"offload_{what}"] = word
    return found


def _fsdp(theirs: Theirs) -> Values | None:
    """What FSDP is asked to do, by Trainer's arguments or accelerate's file; None: nothing."""
    asked, block = theirs["args.fsdp"], theirs.below("args.fsdp_config")
    if isinstance(asked, list):
        asked = " ".join(map(str, asked))
    of_axolotl = theirs.is_given(AXOLOTLS)  # whose fsdp_config is enough, and means FSDP 1
    if asked not in (None, "", False, "false") or (
        block and asked is None and (of_axolotl or theirs.has("args.fsdp_version"))
    ):
        found, words = _block(block), str(asked).lower()
        version = whole(theirs.first("args.fsdp_version")) or whole(found["version"])
        found["version"] = version or (1 if of_axolotl else 2)
        if found["sharding"] in ("", "true"):
            found["sharding"] = words
        return found | {"offload": "offload" in words or found["offload"]}
    kind, block = theirs["accelerate.distributed_type"], theirs.below("accelerate.fsdp_config")
    if not is_on(theirs["accelerate.use_fsdp"]) and str(kind).upper() != "FSDP":
        return None
    found = _block(block)
    found["version"] = whole(found["version"]) or 1
    if found["version"] == 2:
        return found | {"state_dict": found["state_dict"] or "SHARDED_STATE_DICT"}
    older = block.get("fsdp_sharding_strategy")
    return found | ({} if older is None else {"sharding": str(older).lower()})


def _block(block: Values) -> dict[str, Value]:
    """The keys of FSDP's block, with and without their prefix."""
    said = {key.removeprefix("fsdp_"): value for key, value in block.items()}
    ways = (said.get(key) for key in ("reshard_after_forward", "sharding_strategy"))
    return {
        "version": said.get("version"),
        "sharding": str(next((way for way in ways if way is not None), "")).lower(),
        "offload": is_on(said.get("cpu_offload")) or is_on(said.get("offload_params")),
        "state_dict": said.get("state_dict_type") or said.get("final_state_dict_type"),
        "checkpointing": is_on(said.get("activation_checkpointing")),
    }


def _divided(theirs: Theirs) -> tuple[int, int, int]:
    """Ranks of a layer, shards and replicas of transformers' ``DistributedConfig``."""
    sizes = ("tp_size", "fsdp_size", "dp_replicate_size")
    parts, shards, copies = (whole(theirs[f"distributed.{size}"]) for size in sizes)
    return parts or 1, shards or 1, copies or 1


def _parts(theirs: Theirs, so_far: SoFar) -> Values:
    return {"tp_size": _divided(theirs)[0]} if theirs.has("distributed.tp_size") else {}


def _whole_copies(so_far: SoFar) -> Values:
    """DDP, unless all GPUs divide every layer."""
    return {"strategy": "ddp" if so_far["num_gpus"] > so_far["tp_size"] else "none"}


def _strategy(theirs: Theirs, so_far: SoFar) -> Values:
    parts, shards, copies = _divided(theirs)
    if parts > 1:
        if copies > 1:
            return {"strategy": "hsdp", "dp_replicate_size": copies}
        return {"strategy": "fsdp" if shards > 1 else "none"}
    stage = zero_stage(theirs)
    if stage:
        found = {"strategy": f"zero{stage}", **_offloads(theirs, stage)}
        saves = theirs.first(
            "deepspeed.zero_optimization.stage3_gather_16bit_weights_on_model_save",
            "accelerate.deepspeed_config.zero3_save_16bit_model",
        )
        return found | ({"zero3_save_16bit_model": True} if stage == 3 and is_on(saves) else {})
    asked = _fsdp(theirs)
    if asked is None:
        return _whole_copies(so_far)
    sharding, version = str(asked["sharding"]), asked["version"]
    replicas = whole(
        theirs["accelerate.parallelism_config.parallelism_config_dp_replicate_size"]
    ) or whole(theirs["args.dp_replicate_size"])
    if "hybrid_shard" in sharding or sharding in ("4", "5") or (replicas or 1) > 1:
        nodes = so_far["num_gpus"] // so_far["gpus_per_node"]
        found = {"strategy": "hsdp", "dp_replicate_size": replicas or max(nodes, 1)}
    elif "shard_grad_op" in sharding or sharding in ("2", "false"):
        # does not reshard after the forward pass: accelerate 1.15, commands/to_fsdp2.py:50
        found = {"strategy": "fsdp_grad_op"}
    elif "no_shard" in sharding or sharding == "3":
        return _whole_copies(so_far)
    else:
        found = {"strategy": "fsdp"}
    found["fsdp_version"] = version
    if asked["offload"]:
        found |= {"offload_optimizer": "cpu", "offload_param": "cpu"}
    kept = str(asked["state_dict"] or "").upper()
    if kept in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        found["fsdp_state_dict_type"] = kept
    return found


def fsdp_checkpoints(theirs: Theirs) -> bool:
    """Whether FSDP itself checkpoints the layers."""
    asked = _fsdp(theirs)
    return asked is not None and bool(asked["checkpointing"])


def _fp8(theirs: Theirs, so_far: SoFar) -> Values:
    backend = theirs.first("accelerate.fp8_config.backend", "accelerate.fp8_backend")
    pads = theirs.first("accelerate.fp8_config.pad_inner_dim", "accelerate.fp8_pad_inner_dim")
    found: dict[str, Value] = {} if backend is None else {"fp8_backend": str(backend).lower()}
    return found if pads is None else found | {"fp8_pad_inner_dim": is_on(pads)}


RULES = (
    row(
        # accelerate 1.15, utils/launch.py, setup_fp8_env
        """accelerate.fp8_config.backend accelerate.fp8_config.pad_inner_dim accelerate.fp8_backend
        accelerate.fp8_pad_inner_dim""",
        "fp8_backend fp8_pad_inner_dim",
        _fp8,
    ),
    row(
        """accelerate.num_processes accelerate.num_machines accelerate.distributed_type launch.nnodes
        launch.nproc_per_node launch.num_gpus launch.visible_devices""",
        "num_gpus",
        _gpus,
        "accelerate.num_processes",
        says="one process, on one GPU",
    ),
    row("accelerate.num_machines launch.nnodes", "gpus_per_node", _node),
    row("deepspeed.zero_optimization.overlap_comm", "overlap_comm", _overlap),
    row("accelerate.num_cpu_threads_per_process", "num_cpu_threads_per_process", _threads),
    row("distributed.tp_size", "tp_size", _parts),
    row(
        """distributed.fsdp_size distributed.dp_replicate_size
        args.fsdp args.fsdp_version args.fsdp_config.* args.deepspeed accelerate.distributed_type
        accelerate.use_fsdp accelerate.use_deepspeed accelerate.fsdp_config.fsdp_version
        accelerate.fsdp_config.fsdp_sharding_strategy accelerate.fsdp_config.fsdp_reshard_after_forward
        accelerate.fsdp_config.fsdp_offload_params accelerate.fsdp_config.fsdp_state_dict_type
        accelerate.fsdp_config.fsdp_activation_checkpointing accelerate.deepspeed_config.zero_stage
        accelerate.deepspeed_config.offload_optimizer_device
        accelerate.deepspeed_config.offload_param_device
        accelerate.deepspeed_config.zero3_save_16bit_model
        accelerate.parallelism_config.parallelism_config_dp_replicate_size args.dp_replicate_size
        args.dp_shard_size deepspeed.zero_optimization.stage
        deepspeed.zero_optimization.offload_optimizer.device
        deepspeed.zero_optimization.offload_param.device
        deepspeed.zero_optimization.stage3_gather_16bit_weights_on_model_save""",
        """strategy fsdp_version offload_optimizer offload_param fsdp_state_dict_type zero3_save_16bit_model
        dp_replicate_size""",
        _strategy,
        says="several processes without FSDP or DeepSpeed are DistributedDataParallel",
    ),
)

AT_DEFAULT = "The size of this buffer is taken at DeepSpeed's default"
LATER = (
    *not_modelled(
        "deepspeed.zero_optimization",
        (
            "reduce_bucket_size stage3_prefetch_bucket_size stage3_param_persistence_threshold",
            "The size of this buffer is taken as Trainer sets it for auto",
            EITHER,
            "auto",
        ),
        ("allgather_bucket_size", AT_DEFAULT, EITHER, "auto", 5e8),
        ("sub_group_size stage3_max_live_parameters", AT_DEFAULT, EITHER, "auto", 1e9),
        ("stage3_max_reuse_distance", AT_DEFAULT, EITHER, "auto", 1e9),
        (
            "zero_hpz_partition_size",
            "ZeRO++ keeps a second copy of the weights inside each machine",
            MORE,
            1,
            "auto",
        ),
        ("zero_quantized_weights", "ZeRO++ sends weights quantised", LESS),
        ("zero_quantized_gradients", "ZeRO++ sends gradients quantised", LESS),
        ("offload_optimizer.ratio", "A part of the optimizer's states stays on the GPU", MORE, 1),
    ),
    *not_modelled(
        "deepspeed",
        (
            "activation_checkpointing.cpu_checkpointing",
            "DeepSpeed's own checkpoints go to the host, where the model asks for them",
            LESS,
        ),
        (
            "activation_checkpointing.partition_activations",
            "DeepSpeed's own checkpoints are divided, where the model asks for them",
            LESS,
        ),
        (
            "tensor_parallel.autotp_size",
            "DeepSpeed divides the layers' matrices (AutoTP)",
            LESS,
            0,
            1,
        ),
        ("compression_training", "DeepSpeed compresses the model", LESS),
        (
            "optimizer.type",
            "DeepSpeed makes the optimizer; what Trainer's optim says is estimated",
            EITHER,
            "AdamW",
            "Adam",
            "adamw",
        ),
        (
            "data_types.grad_accum_dtype",
            "DeepSpeed adds gradients up in this dtype",
            EITHER,
            "fp32",
        ),
    ),
    *not_modelled(
        "accelerate",
        (
            "fsdp_config.fsdp_auto_wrap_policy",
            "Modules are divided otherwise than layer by layer",
            MORE,
            "TRANSFORMER_BASED_WRAP",
        ),
        (
            "fsdp_config.fsdp_forward_prefetch",
            "The next layer is gathered while this one computes",
            MORE,
            "false",
            "False",
        ),
        (
            "fp8_config.enable_fsdp_float8_all_gather fp8_enable_fsdp_float8_all_gather",
            "Outside FSDP 2 converted layers are not trained",
            LESS,
            "false",
            "False",
        ),
        ("megatron_lm_config", "Megatron-LM trains the model", LESS),
        ("downcast_bf16", "On TPUs float is cast to bfloat16", LESS, "no", "false"),
    ),
    *not_modelled(
        "distributed",
        ("tp_plan fsdp_plan ep_plan", "A plan of its own divides the layers", EITHER, "auto"),
        ("pp_size", "Layers lie on different devices (pipeline parallelism)", LESS, 1),
        ("ep_size enable_expert_parallel", "Experts are divided (expert parallelism)", LESS, 1),
        ("fsdp_mixed_precision", "FSDP gathers in 16 bits", LESS),
        ("fsdp_cpu_offload", "Shards rest in the host's memory", LESS),
        (
            "ep_implementation enable_sequence_parallel",
            "Experts meet in their own way",
            EITHER,
            "auto",
        ),
    ),
    *not_modelled(
        "accelerate.parallelism_config",
        ("parallelism_config_cp_size", "Rows are divided (context parallelism)", LESS, 1),
        ("parallelism_config_sp_size", "Rows are divided (sequence parallelism)", LESS, 1),
        ("parallelism_config_ep_size", "Experts are divided (expert parallelism)", LESS, 1),
    ),
    Later(
        theirs="accelerate.parallelism_config.parallelism_config_tp_size",
        sentence="accelerate divides no layer itself: it stops at a model that is whole, and Trainer takes the sizes "
        "of a divided one; load it with transformers' DistributedConfig(tp_size=...), and give that script, too",
        direction=LESS,
        harmless=(None, False, 1),
        same_as="distributed.tp_size",
    ),
    # accelerate 1.15, accelerator.py:1904, prepare_model; transformers 5.23, trainer.py:777
)

NO_EFFECT = (
    under(
        "accelerate",
        """compute_environment debug machine_rank main_process_ip main_process_port main_training_function
        rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo tpu_name tpu_zone tpu_vm command_file
        commands use_cpu gpu_ids enable_cpu_affinity dynamo_config.* config_file module multi_gpu
        mpirun_config.* fp8_config.* use_parallelism_config ipex_config.*""",
    )
    | under(
        "accelerate.deepspeed_config",
        """deepspeed_multinode_launcher zero3_init_flag deepspeed_config_file deepspeed_hostfile
        deepspeed_inclusion_filter deepspeed_exclusion_filter offload_optimizer_nvme_path
        offload_param_nvme_path deepspeed_moe_layer_cls_names gradient_accumulation_steps gradient_clipping
        seq_parallel_communication_data_type""",
    )
    | under(
        "accelerate.fsdp_config",
        """fsdp_backward_prefetch fsdp_backward_prefetch_policy fsdp_cpu_ram_efficient_loading
        fsdp_sync_module_states fsdp_transformer_layer_cls_to_wrap fsdp_use_orig_params fsdp_min_num_params""",
    )
    | under(
        "accelerate.parallelism_config",
        """parallelism_config_dp_shard_size parallelism_config_cp_comm_strategy parallelism_config_sp_backend
        parallelism_config_sp_seq_length_is_variable parallelism_config_sp_attn_implementation""",
    )
    | under(
        "deepspeed",
        """_comment compile.disable compile.backend seq_parallel_communication_data_type comms_config.*
        monitor_config.* steps_per_print wall_clock_breakdown scheduler.* optimizer.params.* dump_state
        train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
        bf16.enabled bfloat16.enabled zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
        prescale_gradients gradient_predivide_factor sparse_gradients aio.* flops_profiler.* comms_logger.*
        activation_checkpointing.* communication_data_type checkpoint.* elasticity.* tensorboard.* wandb.*
        csv_monitor.* amp.* torch_autocast.*""",
    )
    | under(
        "deepspeed.zero_optimization",
        """gather_16bit_weights_on_model_save max_live_parameters max_reuse_distance contiguous_gradients
        reduce_scatter allgather_partitions round_robin_gradients offload_optimizer.* offload_param.*
        memory_efficient_linear ignore_unused_parameters stage3_gather_fp16_weights_on_model_save cpu_offload
        zero_hpz_partition_size""",
    )
    | under(
        "deepspeed.fp16",
        """loss_scale loss_scale_window initial_scale_power hysteresis min_loss_scale auto_cast
        consecutive_hysteresis enabled""",
    )
    | under(
        "launch",
        """launcher command script node_rank master_addr master_port rdzv_backend rdzv_endpoint rdzv_id include
        hostfile standalone module num_nodes max_restarts log_dir env.*""",
    )
)
