"""What costs nothing is changed first: the method, the tokens of a step and the card stay while that is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator import (
    Dtype,
    Method,
    MixedPrecision,
    Optimizer,
    TrainingSetup,
    Verdict,
    best_way,
    catalog,
    estimate,
    remedies,
)
from estimator.contract.setups import parse, plain_keys
from estimator.search.free_changes import splits
from estimator.search.limits import holds
from estimator.search.remedies import cheapest_change
from estimator.tools.imported import read_files
from estimator.tools.writing.changes import changed_files

LLAMA, CARD = catalog.model("meta-llama/Llama-3.1-8B"), catalog.gpu("RTX 4090")
LORA = TrainingSetup(
    method=Method.LORA, optim=Optimizer.ADAMW_TORCH_FUSED, mixed_precision=MixedPrecision.BF16
)

AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 8192
sample_packing: true
micro_batch_size: 4
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: true
flash_attention: true
gradient_checkpointing: true
"""
LLAMAFACTORY = """model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
do_train: true
finetuning_type: lora
cutoff_len: 4096
packing: true
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
bf16: true
flash_attn: fa2
"""
TRL_YAML = """model_name_or_path: meta-llama/Llama-3.1-8B
dtype: bfloat16
use_peft: true
lora_r: 16
max_length: 8192
packing: true
attn_implementation: flash_attention_2
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
bf16: true
"""
TRL_SCRIPT = """
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
args = SFTConfig(
    "out",
    model_init_kwargs={"dtype": "bfloat16"},
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    gradient_checkpointing=False,
    max_length=4096,
    bf16=True,
)
trainer = SFTTrainer("meta-llama/Llama-3.1-8B", args, peft_config=LoraConfig(r=16, target_modules="all-linear"))
"""
MS_SWIFT = """swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora --torch_dtype bfloat16 \\
    --packing true --attn_impl flash_attn --max_length 8192 --per_device_train_batch_size 4 \\
    --gradient_accumulation_steps 8
"""
DYING = {
    "axolotl.yaml": AXOLOTL,
    "axolotl_evaluating.yaml": f"{AXOLOTL}val_set_size: 0.05\n",
    "llamafactory.yaml": LLAMAFACTORY,
    "trl.yaml": TRL_YAML,
    "train.py": TRL_SCRIPT,
    "swift.sh": MS_SWIFT,
}
FREE = {
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "per_device_eval_batch_size",
    "use_liger_kernel",
    "loss",
    "gradient_checkpointing",
    "attn_implementation",
    "offload_checkpoints",
}


def tokens_of_a_step(setup: TrainingSetup) -> int:
    return setup.effective_batch_size * setup.batch.max_length


@pytest.mark.parametrize("name", DYING)
def test_a_dying_config_is_mended_by_what_is_free_and_its_file_says_so(name):
    files = {name: DYING[name]}
    model, card, setup = parse({**read_files(files).rows, "gpu": CARD.name})
    before = estimate(model, card, setup)
    assert before.verdict is Verdict.DOES_NOT_FIT
    found = remedies(before, catalog.gpus_like(card))
    assert found[0] == cheapest_change(before)
    for remedy in found:
        assert remedy.keys.keys() <= FREE
        assert tokens_of_a_step(replace(setup, **remedy.keys)) == tokens_of_a_step(setup)
    mended = changed_files(files, plain_keys(found[0].keys))
    assert "packing: false" not in mended.diff
    assert ("LigerPlugin" in mended.diff) is (name.startswith("axolotl"))  # without it, no Liger
    again = read_files({**files, **mended.files}).rows
    assert estimate(*parse({**again, "gpu": CARD.name})).verdict is Verdict.FITS


CASES = [
    {"method": Method.FULL, "per_device_train_batch_size": 32},
    {"method": Method.FULL, "dtype": Dtype.FLOAT32, "max_length": 16_384},
    {"method": Method.FULL, "optim": Optimizer.ADAMW_TORCH, "packing": True, "max_length": 8192},
    {"per_device_train_batch_size": 12, "gradient_accumulation_steps": 2, "packing": True},
    {"dtype": Dtype.FLOAT32, "per_device_train_batch_size": 3, "max_length": 16_384},
    {"method": Method.QLORA, "per_device_train_batch_size": 64, "max_length": 4096},
]


@pytest.mark.parametrize("name", ["RTX 3060 12GB", "L4"])
@pytest.mark.parametrize("keys", CASES, ids=str)
def test_no_method_step_or_card_changes_where_a_free_combination_fits(keys, name):
    model, card, setup = (
        catalog.model("Qwen/Qwen2.5-1.5B"),
        catalog.gpu(name),
        replace(LORA, **keys),
    )
    before = estimate(model, card, setup)
    assert before.verdict is not Verdict.FITS
    proposed = remedies(before, catalog.gpus_like(card))
    rows = setup.effective_batch_size
    least = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": rows}
    free = replace(setup, **least, use_liger_kernel=True, gradient_checkpointing=True)
    is_free = holds(model, card, free)
    for remedy in proposed:
        if "gpu" in remedy.keys or "num_gpus" in remedy.keys:
            assert not any(other.keys.keys().isdisjoint({"gpu", "num_gpus"}) for other in proposed)
            continue
        after = replace(setup, **remedy.keys)
        assert tokens_of_a_step(after) == tokens_of_a_step(setup)
        if is_free:
            assert after.adapters.method is setup.adapters.method
            assert remedy.keys.keys().isdisjoint({"max_length", "offload_optimizer"})
    assert proposed


def test_as_many_free_changes_come_together_as_it_takes():
    # in eager attention, with whole logits and activations, three changes are not enough
    setup = replace(
        LORA,
        attn_implementation="eager",
        per_device_train_batch_size=16,
        max_length=8192,
    )
    first = cheapest_change(estimate(LLAMA, CARD, setup))
    assert first.keys.keys() <= FREE


def test_packed_rows_are_shortened_before_the_method_changes():
    setup = replace(LORA, packing=True, max_length=65_536, attn_implementation="flash_attention_2")
    first = cheapest_change(estimate(LLAMA, CARD, setup))
    after = replace(setup, **first.keys)
    assert after.batch.max_length < setup.batch.max_length
    assert tokens_of_a_step(after) == tokens_of_a_step(setup)
    known = replace(
        setup, mean_tokens_per_example=60_000
    )  # rows of half the length would cut these
    other = cheapest_change(estimate(LLAMA, CARD, known))
    assert other is None or "max_length" not in other.keys


def test_the_best_way_is_one_however_the_batch_is_split():
    # 8 x 4,096 tokens an optimizer step of an 8B on 24 GB
    ways = [
        best_way(
            LLAMA, CARD, 1, replace(TrainingSetup(method=Method.LORA, max_length=4096), **split)
        )
        for split in splits(TrainingSetup(per_device_train_batch_size=8))
    ]
    assert len(ways) == 4
    assert all((way.answer, way.titles) == (ways[0].answer, ways[0].titles) for way in ways)
    setup = ways[0].answer.setup
    assert setup.adapters.method is Method.LORA
    assert setup.effective_batch_size == 8
    more = {"per_device_train_batch_size": 2 * setup.batch.per_device_train_batch_size}
    assert not holds(LLAMA, CARD, replace(setup, **more, gradient_accumulation_steps=1))


def test_a_batch_of_negatives_is_not_split_and_what_is_generated_at_once_stays():
    embedding = TrainingSetup(objective="embedding", per_device_train_batch_size=8)
    assert [split["per_device_train_batch_size"] for split in splits(embedding)] == [8]
    grpo = TrainingSetup(
        objective="grpo", per_device_train_batch_size=8, max_length=1024, steps_per_generation=2
    )
    for split in splits(grpo):
        assert split["per_device_train_batch_size"] * split["steps_per_generation"] == 16


def test_segments_that_grow_are_free_where_the_allocator_wastes_the_last_gib():
    setup = TrainingSetup(
        method=Method.FULL,
        max_length=2048,
        gradient_checkpointing=True,
        optim=Optimizer.ADAMW_TORCH,
    )
    model, card = catalog.model("Qwen/Qwen2.5-1.5B"), catalog.gpu("A100-SXM4-80GB")
    need = estimate(model, card, setup).need_high_bytes
    grown = estimate(model, card, replace(setup, expandable_segments=True)).need_high_bytes
    assert need - grown > 2**29
    small = replace(card, memory_bytes=(need + grown) // 2)
    found = {tuple(remedy.keys): remedy for remedy in remedies(estimate(model, small, setup), [])}
    assert found[("expandable_segments",)].need_high_bytes == grown
    assert (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in found[("expandable_segments",)].price
    )
    whole = estimate(model, card, replace(setup, max_split_size_mb=64)).need_high_bytes
    others = replace(card, vendor="AMD", memory_bytes=(need + whole) // 2)
    alike = {tuple(remedy.keys) for remedy in remedies(estimate(model, others, setup), [])}
    assert ("max_split_size_mb",) in alike
    assert not any("expandable_segments" in keys for keys in alike)
    together = [remedy.keys for remedy in remedies(estimate(model, small, setup), [])]
    assert not any(
        {"max_split_size_mb", "expandable_segments"} <= remedy.keys() for remedy in together
    )


def test_what_a_setup_leaves_nothing_to_change_in_is_passed_over():
    """A group of five has no half in rows of two, and completions of 64 tokens are not shortened."""
    group = TrainingSetup(
        objective="grpo",
        num_generations=5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=5,
        max_prompt_length=64,
        max_completion_length=64,
        max_length=128,
    )
    small = replace(catalog.gpu("L4"), memory_bytes=3 * 2**29)
    found = cheapest_change(estimate(catalog.model("openai-community/gpt2"), small, group))
    assert found.keys["method"] is Method.LORA
