"""A compiled step's memory, kernels and bytes against inductor's own schedules of the real models, layer by layer.

Lowered for the CPU, since a CUDA device is needed to lower for one; CPU kernels are fused a little less. The constants
in estimator/time come from the same lowering for an A100.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Component, Phase, estimate
from estimator.contract import setups as contract
from estimator.time.between import COMPILED_WRITES, traffic
from estimator.time.host_time import COMPILED

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LLAMA = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 64}
LORA = {"method": "lora", "lora_dropout": 0.0, "autocast_adapter_dtype": False}
RESIDENT = (Component.WEIGHTS, Component.ADAPTERS, Component.OPTIMIZER_STATES, Component.WORKSPACE)
CASES = {
    "full": (LLAMA, {}),
    "Qwen3": (QWEN3, {}),
    # the CPU's flash kernel has no lowering inside a checkpoint
    "checkpointed": (LLAMA, {"gradient_checkpointing": True, "attn_implementation": "eager"}),
    "LoRA": (LLAMA, LORA),
}


def scheduled(config: dict[str, Any], setup: dict[str, Any]) -> list[Any]:
    """Inductor's graphs of one micro-step."""
    from tests.verify.schedules import schedules

    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config),
        dtype=torch.bfloat16,
        attn_implementation=setup.get("attn_implementation", "sdpa"),
    )
    if setup.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    if setup.get("method") == "lora":
        import peft

        settings = peft.LoraConfig(r=16, lora_dropout=0.0, target_modules="all-linear")
        model = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    model.train()
    ids = torch.zeros((1, 256), dtype=torch.long)

    def step(compiled: Any) -> None:
        compiled(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    return schedules(step, model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_layer_saves_launches_and_moves_what_inductor_schedules(name):
    config, setup = CASES[name]
    saved, estimated, kernels, operators, moved, written = [], [], [], [], [], []
    for layers in (2, 3):
        sized = config | {"num_hidden_layers": layers}
        graphs = scheduled(sized, setup)
        assert [graph.is_backward for graph in graphs] == [False, True], "one graph each way"
        model, _, parsed = contract.parse(
            {"model": sized, "max_length": 256, "mixed_precision": "no", "loss": "standard"}
            | {"torch_compile": True, **setup}
        )
        highest = estimate(model, None, parsed).phases[Phase.LOSS]
        estimated.append(highest.bytes - sum(highest.resident.get(one, 0) for one in RESIDENT))
        saved.append(graphs[0].peak)
        moves = traffic(model, parsed, 0.0)
        kernels.append(sum(graph.kernels for graph in graphs))
        operators.append(moves.operators)
        moved.append(sum(graph.fused_bytes for graph in graphs))
        written.append(256 * (moves.forward + moves.backward))
    assert estimated[1] - estimated[0] == pytest.approx(saved[1] - saved[0], rel=0.02)
    if setup.get("gradient_checkpointing"):
        return  # whose replay is counted apart
    launched = (kernels[1] - kernels[0]) / (operators[1] - operators[0])
    assert 0.9 * COMPILED.low <= launched <= 1.1 * COMPILED.high
    share = (moved[1] - moved[0]) / (written[1] - written[0])
    assert 0.9 * COMPILED_WRITES.low <= share <= 1.1 * COMPILED_WRITES.high


@pytest.mark.filterwarnings("ignore")
def test_dora_breaks_its_graph_at_every_module():
    import peft

    config = transformers.AutoConfig.for_model(**LLAMA, num_hidden_layers=1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    settings = peft.LoraConfig(r=4, use_dora=True, target_modules="all-linear")
    graphs = []

    def counted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(peft.get_peft_model(model, settings), backend=counted)
    ids = torch.zeros((1, 16), dtype=torch.long)
    compiled(input_ids=ids, labels=ids, use_cache=False)
    assert len(graphs) > 7
