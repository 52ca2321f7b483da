"""torch_compile: what it saves of a step's seconds, what it adds to memory, what it does not go with, who has it."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import TrainingSetup, estimate, read_files
from estimator.contract.setups import parse
from estimator.families.modules import TINY_LLAMA
from estimator.time.between import traffic
from estimator.values.specs import CompileMode, Component, Phase
from tests.test_time_constants import FAST, SLOW, near, part, waiting

BETWEEN = "norms, activations, residuals"
GPT2 = "openai-community/gpt2"


def test_fused_kernels_move_less_than_half_to_all_of_what_eager_operators_write():
    # 0.48 to 0.97 of the tape's bytes, as inductor's own kernels do: tests/verify/test_compiled_steps.py
    moves = traffic(TINY_LLAMA, TrainingSetup(torch_compile=True), 0.0)
    written = 256 * (moves.forward + moves.backward)
    assert part(BETWEEN, torch_compile=True) == near(0.48 * written / FAST, 0.97 * written / SLOW)


def test_a_compiled_loss_moves_14_bytes_a_logit_at_worst():
    assert part("logits and loss", torch_compile=True) == near(
        256 * 10 * 12 / FAST, 256 * 10 * 14 / SLOW
    )


def test_the_host_launches_28_to_48_of_100_operators_and_none_in_a_cuda_graph():
    def launches(**keys: Any) -> tuple[float, float]:
        return waiting(attn_implementation="flash_attention_2", **keys)[0]

    eager, compiled = launches(), launches(torch_compile=True)
    # of a step this small the host decides; the GPU works for microseconds
    assert compiled[0] / eager[0] == pytest.approx(0.28, rel=0.06)
    assert compiled[1] / eager[1] == pytest.approx(0.48, rel=0.06)
    graphs = {"torch_compile_mode": CompileMode.REDUCE_OVERHEAD}
    assert launches(**graphs) == (0, 0)
    low, high = launches(padded=True, **graphs)  # another length, another graph
    assert low == 0
    assert high == pytest.approx(launches(padded=True, torch_compile=True)[1])


def test_a_mode_turns_compilation_on_as_trainer_does():
    assert TrainingSetup(torch_compile_mode="max-autotune").computation.torch_compile
    assert not TrainingSetup().computation.torch_compile


def height(phase: Phase, **keys: Any) -> int:
    """Bytes of a phase of a small Llama with 100,000 words in bfloat16, without optimizer states."""
    usual = {"dtype": "bfloat16", "mixed_precision": "no", "optim": "sgd", "max_length": 64}
    model = {
        "model_type": "llama",
        "vocab_size": 100_000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "tie_word_embeddings": False,
    }
    return estimate(*parse({"model": model, **usual, **keys})).phases[phase].bytes


def test_a_compiled_embedding_adds_its_gradient_up_in_float32():
    # inductor's index_put adds in float32, then casts: 4 bytes for each of 100,000 · 64 weights beside the gradient
    compiled, eager = (
        height(Phase.BACKWARD, torch_compile=flag, max_length=4) for flag in (True, False)
    )
    more = compiled - eager
    assert more == pytest.approx(4 * 100_000 * 64, rel=0.01)


def test_a_compiled_backward_holds_its_gradients_beside_those_of_earlier_micro_batches():
    # one node of autograd returns all gradients, which are added up afterwards: embedding and head, 2 bytes each
    first, later = (
        height(Phase.BACKWARD, torch_compile=True, gradient_accumulation_steps=times)
        for times in (1, 2)
    )
    assert later - first == pytest.approx(2 * 2 * 100_000 * 64, rel=0.02)


def test_compiled_sdpa_builds_one_mask_for_all_layers():
    # 2,048² in 2 bytes, in which inductor makes it at once, for both layers; flash_attention_2 needs none
    def forward(**keys: Any) -> int:
        return height(Phase.FORWARD, max_length=2048, method="lora", **keys)

    flash = forward(torch_compile=True, attn_implementation="flash_attention_2")
    assert forward(torch_compile=True) - flash == pytest.approx(2 * 2048**2, rel=0.01)
    assert forward() == pytest.approx(forward(attn_implementation="flash_attention_2"), rel=0.01)


def test_an_answer_says_what_compilation_costs():
    said = " ".join(estimate(TINY_LLAMA, None, TrainingSetup(torch_compile=True)).assumptions)
    assert "The first step compiles the model, which the hours leave out" in said
    assert "builds a causal mask" in said


TRAIN = f'from trl import SFTConfig, SFTTrainer\nSFTTrainer("{GPT2}", args=SFTConfig())\n'


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        ({"a.sh": f"trl sft --model_name_or_path {GPT2} --torch_compile"}, None),
        (
            {"a.sh": f"trl sft --model_name_or_path {GPT2} --torch_compile_mode max-autotune"},
            "max-autotune",
        ),
        ({"a.sh": "accelerate launch --dynamo_backend inductor train.py", "train.py": TRAIN}, None),
        (
            {
                "accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\n"
                "dynamo_config:\n  dynamo_backend: INDUCTOR\n  dynamo_mode: reduce-overhead\n",
                "train.py": TRAIN,
            },
            "reduce-overhead",
        ),
        ({"a.yaml": f"base_model: {GPT2}\nmicro_batch_size: 1\ntorch_compile: auto\n"}, None),
        (
            {"a.yaml": f"model_name_or_path: {GPT2}\nstage: sft\ntorch_compile: true\n"},
            None,
        ),
        ({"a.sh": f"swift sft --model {GPT2} --dataset x --torch_compile true"}, None),
        (
            {
                "a.yaml": "recipe: full_finetune_single_device\nbatch_size: 2\n"
                "model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n"
                "compile: {model: true, loss: false}\n"
                "optimizer: {_component_: torch.optim.AdamW}\n"
                "loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}\n"
            },
            None,
        ),
    ],
)
def test_every_tool_says_it_in_its_own_words(files, mode):
    run = read_files(files)
    assert run.setup["torch_compile"] is True
    assert run.setup.get("torch_compile_mode") == mode


def test_axolotls_mode_does_nothing_alone():
    text = f"base_model: {GPT2}\nmicro_batch_size: 1\ntorch_compile_mode: reduce-overhead\n"
    assert not read_files({"a.yaml": text}).setup.get("torch_compile")


def saved_by_a_layer(**keys: Any) -> int:
    """Bytes per token that a layer keeps until backward: 256 wide, an MLP of 512, 4 heads, 2 of keys and values."""

    def loss(layers: int) -> int:
        model = {
            **{"model_type": "llama", "vocab_size": 1024, "hidden_size": 256},
            **{"intermediate_size": 512, "num_hidden_layers": layers, "num_attention_heads": 4},
            **{"num_key_value_heads": 2, "tie_word_embeddings": False},
        }
        given = {"model": model, "mixed_precision": "no", "max_length": 1024, "optim": "sgd"}
        answer = estimate(*parse({**given, "torch_compile": True, **keys}))
        return answer.phases[Phase.LOSS].bytes - answer.timeline.resident[Component.WEIGHTS]

    return (loss(4) - loss(3)) // 1024


STATISTICS = 4 * 4 + 2 * 4 + 1
"""A log-sum-exp of each head and two means in float32, and attention's random state, 1,024 bytes for all tokens."""


def test_a_compiled_layer_saves_what_products_read_and_sources_of_the_rest():
    # both norms' outputs, q, k and v with repeated heads, attention's output, two residuals; gate, up, their product
    assert saved_by_a_layer() == 8 * 2 * 256 + 3 * 2 * 512 + STATISTICS
    # without a mask, heads are not repeated
    flash = saved_by_a_layer(attn_implementation="flash_attention_2")
    assert flash == 7 * 2 * 256 + 3 * 2 * 512 + STATISTICS


def test_a_compiled_dropout_saves_its_mask_and_what_the_adapter_reads():
    adapters = {"method": "lora", "lora_r": 8, "autocast_adapter_dtype": False}
    without = saved_by_a_layer(lora_dropout=0.0, **adapters)
    dropped = saved_by_a_layer(lora_dropout=0.1, **adapters)
    # each of six inputs of 256 and one of 512 is 2 bytes for A and 1 of mask; the undropped three are read no more
    assert dropped - without == 3 * (6 * 256 + 512) - 2 * (2 * 256 + 512)


def test_a_compiled_pass_without_gradients_keeps_nothing_of_its_layers():
    """Products of 4-bit weights are cast to float32 and turned by views, which is no second cast."""
    given = {"model": "microsoft/phi-1_5", "method": "qlora", "objective": "dpo", "max_length": 64}
    model, _, setup = parse({**given, "torch_compile": True})
    heights = [
        moment.bytes
        for moment in estimate(model, None, setup).moments
        if moment.phase is Phase.REFERENCE
    ]
    of_layers = heights[2 : model.num_hidden_layers + 1]
    assert len(of_layers) > 20
    assert len(set(of_layers)) == 1
