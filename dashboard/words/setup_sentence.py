"""The setup as one sentence, in pieces: each piece that a control changes names that control."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from dashboard.words import terms, units
from estimator import (
    Gpu,
    Method,
    Model,
    Objective,
    TrainingSetup,
    catalog,
    contract,
    offloads,
)


class SentencePart(NamedTuple):
    """A part of the sentence."""

    text: str
    key: str = ""
    """The key of the contract whose control changes it; empty: none."""


LOADED = ("dtype", "mixed_precision")
"""Keys that say what weights are loaded in and computed in."""
DECISIVE = (
    *(*LOADED, "optim", "optim_state_dtype", "gradient_checkpointing", "offload_checkpoints"),
    *("loss", "use_liger_kernel", "attn_implementation", "torch_compile"),
)
"""Keys whose defaults decide memory: if all are a tool's, the sentence says so."""


def text(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> str:
    """The sentence without its controls."""
    return "".join(piece.text for piece in pieces(model, gpu, setup))


def pieces(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Iterator[SentencePart]:
    """The sentence: method, model, objective, GPUs, batch and length, optimizer, precision, checkpointing.

    A default that decides memory is followed by the tool whose default it is.
    """
    yield SentencePart(setup.adapters.method.noun, "method")
    if setup.adapters.uses_adapters:
        yield from _led(" ", f"r={setup.adapters.lora_r}", "lora_r")
    yield SentencePart(" of ")
    yield SentencePart(terms.short_name(model.hub_id), "model")
    yield from _led(" ", setup.task.objective.phrase, "objective")
    yield SentencePart(" on ")
    yield from _cards(gpu, setup.mesh.num_gpus)
    way = "over" if setup.mesh.strategy.places_layers else "under"
    yield from _led(f" {way} ", setup.mesh.strategy.label, "strategy")
    if setup.mesh.tp_size > 1:
        yield SentencePart(f" {'by' if setup.mesh.strategy.is_alone else 'and'} tensor parallelism")
    if offloads(setup.mesh):
        yield from _led(" ", "with offload", "offload_optimizer")
    yield SentencePart(", ")
    if setup.batch.gradient_accumulation_steps > 1:
        number = f"{setup.batch.gradient_accumulation_steps:,} micro-batches"
        yield from (SentencePart(number, "gradient_accumulation_steps"), SentencePart(" of "))
    size = setup.batch.per_device_train_batch_size
    of = f" pair{'s' * (size != 1)}" if setup.task.objective.is_paired else ""
    yield SentencePart(f"{size:,}{of}", "per_device_train_batch_size")
    yield SentencePart(" × ")
    yield SentencePart(
        f"{setup.batch.max_length:,} token{'s' * (setup.batch.max_length != 1)}", "max_length"
    )
    if setup.optimisation.optim != contract.default_of("optim"):
        yield from _led(", ", setup.optimisation.optim.value, "optim")
    if setup.optimisation.optim_state_dtype is not None:
        yield SentencePart(f" with {setup.optimisation.optim_state_dtype} states")
    trl = _of_trl(setup.adapters.method, setup.task.objective)
    as_trl_trains = setup.task.objective.trl and _same(DECISIVE, setup, trl)
    yield from _led(", ", terms.precision(setup), "dtype")
    if not as_trl_trains and setup.task.objective.trl and _same(LOADED, setup, trl):
        yield SentencePart(" as TRL loads it")
    kept = "with" if setup.computation.gradient_checkpointing else "without"
    yield from _led(", ", f"{kept} checkpointing", "gradient_checkpointing")
    yield SentencePart(", as TRL trains." if as_trl_trains else ".")


def loads_float32(setup: TrainingSetup) -> bool:
    """Whether the weights are in float32 only because TRL loads them so."""
    trl = _of_trl(setup.adapters.method, setup.task.objective)
    return (
        bool(setup.task.objective.trl)
        and setup.precision.dtype == "float32"
        and _same(LOADED, setup, trl)
    )


def _led(by: str, words: str, key: str) -> Iterator[SentencePart]:
    if words:
        yield from (SentencePart(by), SentencePart(words, key))


def _cards(gpu: Gpu | None, number: int) -> Iterator[SentencePart]:
    """``one RTX 4090``, ``8 × H100``, ``one GPU of 24.0 GiB``, ``8 GPUs``."""
    is_named = gpu is not None and gpu.name in {**catalog.gpus(), **catalog.slices()}
    yield SentencePart("one" if number == 1 else f"{number:,}", "num_gpus")
    yield SentencePart(" × " if is_named and number > 1 else " ")
    if gpu is not None and is_named:
        yield SentencePart(gpu.name, "gpu")
    else:
        size = "" if gpu is None else f" of {units.gib(gpu.memory_bytes)}"
        yield SentencePart(f"GPU{'s' * (number > 1)}{size}", "gpu")


def _same(keys: tuple[str, ...], one: TrainingSetup, other: TrainingSetup) -> bool:
    return all(one.value(key) == other.value(key) for key in keys)


@lru_cache(maxsize=64)
def _of_trl(method: Method, objective: Objective) -> TrainingSetup:
    """TRL's defaults for a method and an objective."""
    asked = {"tool": "trl", "method": method.value, "objective": str(objective)}
    return contract.read_setup(asked).setup
