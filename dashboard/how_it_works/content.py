"""The page "How it works": explains the method. All its numbers are computed when the page is drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dashboard.words import one_line, rule_of_thumb, terms, units
from dashboard.words.verdicts import allocator_adds
from estimator import (
    Component,
    Estimate,
    Method,
    Optimizer,
    Phase,
    catalog,
    contract,
    estimate,
    overflow,
    vllm_shares,
)


class Chapter(NamedTuple):
    """A heading, and Markdown below it."""

    heading: str
    text: str


def chapters(example: Estimate) -> list[Chapter]:
    """The chapters, with one setup as the example: full fine-tuning that does not fit."""
    return [
        Chapter("A peak is a moment, not a sum", _idea(example)),
        Chapter("One run, moment by moment", _walk(example)),
        Chapter("Compared with the rule of thumb", rule_of_thumb.sentence(example)),
        Chapter("What LoRA and QLoRA change", _adapters(example)),
        Chapter("What stays for backward", _kept(example)),
        Chapter("What preferences, rewards and embeddings change", _objectives(example)),
        Chapter("GRPO with vLLM on the same GPU", _generation(example)),
        Chapter("Common mistakes", _pitfalls(example)),
        Chapter("How the figure is computed", _method()),
        Chapter("What the range means", _bracket(example)),
        Chapter("What is not modelled yet", _gaps()),
    ]


def example(keys: dict[str, object]) -> Estimate:
    """The estimate used as the example."""
    return estimate(*contract.parse(keys))


def _size(of: Estimate, phase: Phase, part: Component) -> str:
    return units.gib(of.phases[phase].resident.get(part, 0))


def _idea(of: Estimate) -> str:
    everything = sum(
        max(moment.resident.get(part, 0) for moment in of.moments) for part in Component
    )
    return (
        "A GPU runs out of memory at one instant: when a tensor is requested and no room is left. What counts is the "
        "most memory alive *at the same time*. Activations grow through the forward pass and shrink through the "
        "backward pass, while gradients do the opposite; the logits live for a few operations around the loss. "
        f"Adding up each part's own maximum gives {units.gib(everything)} for this example; together they never "
        f"take more than **{units.gib(of.peak.bytes)}**."
    )


def _walk(of: Estimate) -> str:
    setup = of.setup
    gpu = of.gpu
    assert gpu is not None
    return "\n".join(
        [
            f"{one_line.setup_line(of)}, on one {gpu.name} with {units.gib(gpu.memory_bytes)} usable.",
            "",
            f"1. **Loading.** {units.count(of.total_parameters)} parameters × {setup.precision.dtype.bytes} bytes: "
            f"{_size(of, Phase.FORWARD, Component.WEIGHTS)} of weights, held to the end.",
            f"2. **Forward.** Each layer saves what its backward needs. After "
            f"{of.model.num_hidden_layers} layers activations take {_size(of, Phase.FORWARD, Component.ACTIVATIONS)}.",
            f"3. **Loss.** A score for each of {of.model.vocab_size:,} words at each token, in 16 bits and again in "
            f"float32: {_size(of, Phase.LOSS, Component.LOGITS)} of logits.",
            f"4. **Backward.** From the last layer to the first, activations are freed and gradients appear, "
            f"{_size(of, Phase.BACKWARD, Component.GRADIENTS)} of them at the highest moment, "
            f"{terms.moment(of.phases[Phase.BACKWARD])}.",
            f"5. **Optimizer step.** At the end of the first step the optimizer creates its states: "
            f"{_size(of, Phase.OPTIMIZER_STEP, Component.OPTIMIZER_STATES)}. With weights and gradients that is "
            f"{units.gib(of.phases[Phase.OPTIMIZER_STEP].bytes)}.",
            f"6. **The second step.** The states stay, and every later step adds to them: up to "
            f"{units.gib(of.peak.bytes)} in {terms.moment(of.peak)}. {overflow.runs_out(of, units.gib_or_bytes)}",
        ]
    )


def _adapters(of: Estimate) -> str:
    real = of.setup.replace(optim_state_dtype=None)
    lora, qlora = (
        estimate(of.model, of.gpu, real.replace(method=method))
        for method in (Method.LORA, Method.QLORA)
    )
    weights = qlora.peak.resident[Component.WEIGHTS]
    return (
        f"LoRA trains {units.count(lora.trainable_parameters)} parameters instead of "
        f"{units.count(of.total_parameters)}: gradients and optimizer states all but vanish, and the need falls to "
        f"{units.gib(lora.need_high_bytes)}. It does *not* shrink activations: backward still passes "
        f"through every layer, and each adapter keeps its own input, in float32 by PEFT's default. They take "
        f"{units.gib(lora.peak.resident.get(Component.ACTIVATIONS, 0))} here, more than in full fine-tuning. QLoRA "
        f"packs the frozen layers into 4 bits: {units.gib(weights)} of weights, embeddings and head still in 16 "
        f"bits, and a need of {units.gib(qlora.need_high_bytes)}. Each product unpacks its weight for a moment."
    )


def _kept(of: Estimate) -> str:
    full = of.setup.replace(
        gradient_checkpointing=True,
        use_reentrant=False,
        gradient_accumulation_steps=1,
        optim_state_dtype=None,
        max_grad_norm=0.0,
    )
    every, second, host, selective, stepped = (
        estimate(of.model, of.gpu, replace(full, **keys))
        for keys in (
            {},
            {"checkpoint_every_n_layers": 2},
            {"offload_checkpoints": True},
            {"selective_checkpointing": True},
            {"optimizer_in_bwd": True},
        )
    )

    def kept(one: Estimate) -> str:
        return units.gib(one.phases[Phase.LOSS].resident.get(Component.ACTIVATIONS, 0))

    row = full.batch.per_device_train_batch_size * full.batch.max_length
    return "\n".join(
        [
            f"- **Checkpoints.** Gradient checkpointing keeps each layer's input alone: {kept(every)} at the loss "
            f"here. With a checkpoint in every second layer only (checkpoint_every_n_layers) it is {kept(second)}, "
            "and half of the layers are not computed again.",
            f"- **On the host.** offload_checkpoints copies these inputs to the CPU's memory: {kept(host)} stay, and "
            "the GPU waits for both copies. TRL's activation_offloading copies everything that is saved on a stream of "
            "its own; but a tensor that is saved twice within five, as the input of q, k and v, stays.",
            "- **Attention's output.** selective_checkpointing keeps it, so that attention is not computed again: "
            f"{kept(selective)}.",
            "- **Gradients.** With torchtune's optimizer_in_bwd each weight is stepped when its gradient arrives, "
            f"which is then freed: the peak falls from {units.gib(every.peak.bytes)} to "
            f"{units.gib(stepped.peak.bytes)}.",
            "- **Packing.** TRL joins the rows of a micro-batch into one. FlashAttention is told where examples "
            f"begin. SDPA gets a mask of {row:,} × {row:,} tokens instead, and every layer that is not "
            "checkpointed keeps a copy of it.",
        ]
    )


def _objectives(of: Estimate) -> str:
    pairs = of.setup.replace(
        objective="dpo",
        loss=None,
        optim_state_dtype=None,
        gradient_checkpointing=True,
    )
    full, precomputed, lora, reward = (
        estimate(of.model, of.gpu, replace(pairs, **keys))
        for keys in (
            {},
            {"precompute_ref_log_probs": True},
            {"method": Method.LORA},
            {"method": Method.LORA, "objective": "reward"},
        )
    )
    reference = full.peak.resident[Component.REFERENCE_MODEL]
    logits = 10 * 2 * pairs.batch.tokens * of.model.vocab_size
    return "\n".join(
        [
            "- **DPO** passes two rows for each example, the better and the worse answer, and asks a reference model "
            f"about both while the graph of the trained one is alive. Full fine-tuning loads it beside the weights: "
            f"{units.gib(reference)} here, in the same dtype, so that the need is {units.gib(full.need_high_bytes)}. "
            f"Precomputed, it is {units.gib(precomputed.need_high_bytes)}. With LoRA the reference is the base without "
            f"its adapters: no second model, and a need of {units.gib(lora.need_high_bytes)}.",
            "- **The head sees answers alone.** TRL's trainers compute log-probabilities tile by tile, and only where "
            "the loss counts: a prompt costs its layers, but no logits. KTO passes one row for each example and asks "
            "up to three times without gradients.",
            "- **ORPO** needs no reference but holds all logits in float32, and in backward two gradients of them "
            f"and a half: {units.gib(logits)} here, more where the vocabulary is larger.",
            f"- **Reward models and classifiers** have a head of one number or a few labels instead of the vocabulary: "
            f"{units.gib(reward.need_high_bytes)} with LoRA.",
            "- **Embeddings** have no head. Every text of a batch is held against every other, so the batch cannot be "
            "split by accumulation; GradCache passes it in parts, twice.",
            "- **Who holds the reference.** DDP and ZeRO below stage 3 keep it whole on every GPU. ZeRO-3 divides it. "
            "FSDP 2 divides it too, but gathers all of it for each call.",
        ]
    )


def _generation(of: Estimate) -> str:
    gpu = of.gpu
    assert gpu is not None
    tokens = of.setup.batch.max_length
    awake = of.setup.replace(
        objective="grpo",
        method=Method.LORA,
        loss=None,
        optim_state_dtype=None,
        gradient_checkpointing=True,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        max_completion_length=tokens // 2,
        use_vllm=True,
        vllm_max_model_length=tokens,
    )
    alone, together, asleep = (
        estimate(of.model, gpu, replace(awake, **keys))
        for keys in ({"vllm_mode": "server"}, {}, {"vllm_enable_sleep_mode": True})
    )
    found = vllm_shares(of.model, gpu, awake)
    held, share = found.holding(), awake.generation.vllm_gpu_memory_utilization
    assert held is not None
    return "\n".join(
        [
            f"- **Two tenants.** vLLM takes vllm_gpu_memory_utilization of the *whole* card, {share:g} of "
            f"{units.gib(gpu.memory_bytes)} here, and first asks whether as much is free. LoRA on 8 rows peaks at "
            f"{units.gib(alone.peak.bytes)} without it and at {units.gib(together.peak.bytes)} beside it: the two add "
            "up, in every phase.",
            f"- **Sleep.** With vllm_enable_sleep_mode they take turns. The step peaks at "
            f"{units.gib(asleep.peak.bytes)}; generation, with nothing but what the trainer keeps between steps, at "
            f"{units.gib(asleep.phases[Phase.GENERATION].bytes)}.",
            "- **The cache is what is left.** Of its share vLLM subtracts a second copy of the weights in 16 bits, the "
            "highest moment of a batch, and CUDA graphs. The rest holds keys and values, cut into blocks. It refuses "
            "to start if one row of vllm_max_model_length does not fit, which by default is every position of the "
            "model.",
            f"- **The number to type.** All {found.rows:,} rows of a generation fit at once from {held:.2f} on, and "
            f"everything fits up to {found.largest:.2f}. Below, rows take turns and the step takes longer; above, the "
            "training step runs out. More than enough makes nothing faster.",
            "- **More GPUs, still out of memory.** ZeRO and FSDP divide the trainer, but every GPU has an engine with "
            "the whole model. vllm_tensor_parallel_size divides that. And pushing new weights gathers: one parameter "
            "at a time in full fine-tuning, with LoRA under ZeRO-3 the whole model at once.",
        ]
    )


def _pitfalls(of: Estimate) -> str:
    words = 128_256
    llama = estimate(
        catalog.model("meta-llama/Llama-3.1-8B"), None, of.setup.replace(method=Method.LORA)
    )
    foreach = estimate(of.model, of.gpu, of.setup.replace(optim=Optimizer.ADAMW_TORCH))
    transient = foreach.phases[Phase.OPTIMIZER_STEP].resident.get(Component.TEMPORARIES, 0)
    gpu = of.gpu
    assert gpu is not None
    return "\n".join(
        [
            f"- **Logits.** With a vocabulary of {words:,} words one token's scores take {words * 4:,} bytes in "
            "float32, and log-softmax's backward holds three copies. In Llama-3.1-8B with LoRA they are "
            f"{units.gib(llama.peak.resident.get(Component.LOGITS, 0))} at {of.setup.batch.max_length:,} tokens: a sum "
            "of weights, gradients and states misses them.",
            "- **Sixteen bytes per parameter.** This holds for float32 weights under autocast with AdamW. Weights "
            "trained in bfloat16 keep their states in bfloat16: 8 bytes.",
            "- **The optimizer's own temporaries.** adamw_torch (foreach) takes a square root of every second "
            f"moment at once: {units.gib(transient)} more here. The fused version, Trainer's default, takes none.",
            "- **Attention.** Eager attention keeps a tokens × tokens matrix of scores for each head; SDPA and "
            "FlashAttention keep none. A formula for one is wrong for the other.",
            f"- **The nameplate.** “{gpu.nameplate_gb:g} GB” are {units.gib(gpu.memory_bytes)} for programs; "
            "the CUDA context also takes part of that.",
            "- **Accumulation.** It raises the effective batch, not the memory. It helps only by allowing a "
            "smaller micro-batch.",
            "- **Padding and windows.** A mask for padded rows or a sliding window makes each layer keep a bias "
            "of tokens × tokens, which a packed batch does not need.",
        ]
    )


def _method() -> str:
    return (
        "Headroom runs each family's layer as the short program that transformers runs, on stand-in tensors that "
        "have a size and a lifetime but no values. It follows PyTorch's rules forward and backward (what an operator "
        "saves, when a gradient is summed in place, when a tensor is freed), so it knows what is alive at every "
        "moment and which operator made it. “Memory through the run” and “How computed” of the estimate "
        "show both, for your setup, with the code that ran."
    )


def _bracket(of: Estimate) -> str:
    return (
        f"The peak is the sum of all tensors. The GPU must hold more: the CUDA context "
        f"({units.between(*of.context_bytes)}), and {allocator_adds(of)}. "
        f"So the need is {units.between(of.need_low_bytes, of.need_high_bytes)}. *Fits* means "
        "that even the high end does; *tight* that only the low end does."
    )


def _gaps() -> str:
    return (
        "Tensor, pipeline, context and expert parallelism are refused, not guessed. So are architectures whose code "
        "we have not read. GRPO with vLLM on a 4-bit base is refused. "
        "Each refusal says why in one sentence."
    )
