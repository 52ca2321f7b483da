"""What dividing every layer between two ranks changes in a step, in two real processes over gloo.

Expected bytes come from the real torch 2.13 and transformers 5.23 (``DistributedConfig(tp_size=2)``, on torch's
``DTensor``), run here; ours are of the same model in float32. Plans are read off the real classes' configs.
"""

from __future__ import annotations

from statistics import median_low
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.setups import parse
from estimator.families.registry import FAMILIES
from estimator.parallel.tensor_parallel import PLAN
from estimator.values.arithmetic import allocated
from estimator.values.specs import Component, Phase
from tests.verify.processes import RANKS, in_processes, in_two_processes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTH = 32
CONFIG = {
    "model_type": "llama",
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
SETUP = {
    "model": CONFIG,
    "dtype": "float32",
    "mixed_precision": "no",
    "max_length": LENGTH,
    "attn_implementation": "eager",
    "save_only_model": True,
}
STEPS = 8
SMALL = 2048
"""Bytes that are not counted: masks and offsets of the ids that lie in another rank's part of the vocabulary."""


def measured(*, path: str, checkpoints: bool) -> tuple[int, ...]:
    """Bytes of the weights, above them the peaks of later steps' forward and backward pass, and of the optimizer.

    Each is the median of several steps: gloo's thread may hold a buffer for a moment longer than the step does.
    Trainer gives each mesh its own group of parameters: plain ones, and those of the ranks.
    """
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

    from tests.verify.storages import RealStorages

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        attn_implementation="eager",
        distributed_config=DistributedConfig(tp_size=RANKS),
    ).train()
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.zeros((1, LENGTH), dtype=torch.long)
    with RealStorages() as counted:
        parts = [
            parameter._local_tensor if isinstance(parameter, DTensor) else parameter
            for parameter in model.parameters()
        ]
        weights = sum(allocated(part.numel() * part.element_size()) for part in parts)
        counted.note(parts)  # on the CPU a part by rows is a view of the whole matrix
        loaded, optimizer, peaks = counted.alive, None, list[tuple[int, int, int]]()
        for _ in range(STEPS):
            model.zero_grad(set_to_none=True)
            alive = counted.alive
            counted.restart()
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            forward = counted.restart()
            loss.backward()
            backward = counted.restart()
            if optimizer is None:
                groups = [
                    [
                        parameter
                        for parameter in model.parameters()
                        if isinstance(parameter, DTensor) is of
                    ]
                    for of in (False, True)
                ]
                optimizer = torch.optim.AdamW(
                    [{"params": group} for group in groups if group], fused=True
                )
            optimizer.step()
            step = counted.restart()
            peaks.append((forward - alive, backward - alive, step - loaded))
        return weights, *map(median_low, zip(*peaks[1:], strict=True))


def ours(keys: dict[str, Any]) -> tuple[int, ...]:
    """The same of the estimate."""
    found = estimate(*parse({**SETUP, **keys}))
    begins = found.timeline.resident
    weights, rest = begins[Component.WEIGHTS], sum(begins.values())
    forward = max(found.phases[phase].bytes for phase in (Phase.FORWARD, Phase.LOSS))
    step = found.phases[Phase.OPTIMIZER_STEP].bytes - begins[Component.WORKSPACE]
    return weights, forward - rest, found.phases[Phase.BACKWARD].bytes - rest, step - weights


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_rank_holds_and_makes_what_dtensor_does(tmp_path, *, checkpoints):
    torch.manual_seed(0)
    folder = str(tmp_path / "model")
    config = transformers.AutoConfig.for_model(**CONFIG)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    keys = {"gradient_checkpointing": checkpoints, "use_reentrant": False}
    told = ours({**keys, "num_gpus": RANKS, "tp_size": RANKS})
    for rank in in_two_processes(tmp_path, measured, path=folder, checkpoints=checkpoints):
        assert rank == pytest.approx(told, abs=SMALL), (rank, told)


def kept(*, path: str, replicas: int) -> tuple[int, ...]:
    """Bytes of a rank's shards, of gradients that wait for the last micro-step, of reduced ones, and of states."""
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

    def size(tensors: Any) -> int:
        parts = [each._local_tensor if isinstance(each, DTensor) else each for each in tensors]
        return sum(allocated(part.numel() * part.element_size()) for part in parts)

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        attn_implementation="eager",
        distributed_config=DistributedConfig(
            tp_size=RANKS, fsdp_size=RANKS // replicas, dp_replicate_size=replicas
        ),
    ).train()
    ids = torch.zeros((1, LENGTH), dtype=torch.long)
    waiting = 0
    for is_last in (False, True):
        model.set_requires_gradient_sync(is_last)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        if not is_last:
            states = (
                each._get_fsdp_state() for each in model.modules() if hasattr(each, "unshard")
            )
            groups = {id(group): group for state in states for group in state._fsdp_param_groups}
            waiting = size(
                of.unsharded_param.grad for group in groups.values() for of in group.fsdp_params
            )
    parameters = [*model.parameters()]
    meshes = {parameter.device_mesh for parameter in parameters}  # as Trainer groups them
    optimizer = torch.optim.AdamW(
        [
            {"params": [parameter for parameter in parameters if parameter.device_mesh == mesh]}
            for mesh in meshes
        ],
        fused=True,
    )
    gradients = size(parameter.grad for parameter in parameters)
    optimizer.step()
    return (
        size(parameters),
        waiting,
        gradients,
        size(value for state in optimizer.state.values() for value in state.values()),
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_rank_of_a_mesh_keeps_what_four_real_processes_keep(tmp_path, replicas):
    torch.manual_seed(0)
    folder = str(tmp_path / "model")
    config = transformers.AutoConfig.for_model(**CONFIG)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    mesh = {"num_gpus": 2 * RANKS, "tp_size": RANKS, "strategy": "fsdp"}
    if replicas > 1:
        mesh |= {"strategy": "hsdp", "dp_replicate_size": replicas}
    found = estimate(*parse({**SETUP, **mesh}))
    resident = found.phases[Phase.OPTIMIZER_STEP].resident
    waits = {**mesh, "strategy": "fsdp", "dp_replicate_size": 1, "gradient_accumulation_steps": 2}
    waiting = estimate(*parse({**SETUP, **waits})).timeline.resident[Component.GRADIENTS]
    kinds = (Component.WEIGHTS, Component.GRADIENTS, Component.OPTIMIZER_STATES)
    weights, gradients, states = (resident[kind] for kind in kinds)
    told = weights, waiting, gradients, states
    for rank in in_processes(2 * RANKS, tmp_path, kept, path=folder, replicas=replicas):
        assert rank == pytest.approx(told, abs=SMALL), (rank, told)


@pytest.mark.parametrize(
    "name", [family.model_type for family in FAMILIES.values() if family.has_tp_plan]
)
def test_the_plan_is_that_of_the_config_class(name):
    theirs = transformers.AutoConfig.for_model(name).base_model_tp_plan
    divided = {key.removeprefix("layers.*."): how for key, how in theirs.items()}
    assert divided.items() >= PLAN.items()
    beside = divided.keys() - PLAN.keys()  # each rank's heads have norms of their own, whole
    assert {divided[key] for key in beside} <= {"replicated_with_grad_allreduce"}
