"""Where the completions come from that grpo and rloo train on."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Choice, Flag, Number, WholeNumber

COLOCATE, SERVER = "colocate", "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Checked):
    """transformers' ``generate``, or vLLM: on the same GPUs, or on its own.

    Source: trl 1.16, trainer/grpo_config.py.
    """

    __hash__ = Hashed.__hash__

    use_vllm: bool = key(
        False,
        Flag(),
        "generate with vLLM, in grpo and rloo",
        default_from=DefaultSource.TRL,
        code="uv",
        widget=Widget(
            shape="toggle",
            section=Section.GENERATION,
            label="Generate with vLLM",
            help="use_vllm: without it, transformers' generate writes all completions of a generation at once.",
            decides=True,
        ),
    )
    vllm_mode: str = key(
        COLOCATE,
        Choice((COLOCATE, SERVER)),
        "vLLM on the GPUs that train, or on GPUs of its own",
        default_from=DefaultSource.TRL,
        code="vm",
        widget=Widget(
            shape="segments",
            section=Section.GENERATION,
            label="vLLM's GPUs",
            help="vllm_mode: colocate shares the GPUs that train; server has GPUs of its own, which the cost "
            "includes.",
            decides=True,
        ),
    )
    vllm_gpu_memory_utilization: float = key(
        0.3,
        Number(1, open_low=True),
        "share of the whole GPU that vLLM takes",
        default_from=DefaultSource.TRL,
        code="vu",
        widget=Widget(
            shape="number",
            section=Section.GENERATION,
            label="vLLM's share of the GPU",
            help="vllm_gpu_memory_utilization: of the whole card, not of what is free. Weights, activations and CUDA "
            "graphs come out of it; the rest is its cache of keys and values.",
            step=0.01,
            ends=(0.01, 1.0),
        ),
    )
    vllm_enable_sleep_mode: bool = key(
        False,
        Flag(),
        "vLLM frees its weights and its cache while others train",
        default_from=DefaultSource.TRL,
        code="vs",
        widget=Widget(
            shape="toggle",
            section=Section.GENERATION,
            label="vLLM sleeps during training",
            help="vllm_enable_sleep_mode: vLLM's memory and the training step's take turns instead of adding up.",
        ),
    )
    vllm_tensor_parallel_size: int = key(
        1,
        WholeNumber(1024),
        "GPUs that share one vLLM engine",
        default_from=DefaultSource.TRL,
        code="vt",
        widget=Widget(
            shape="number",
            section=Section.GENERATION,
            label="GPUs of one engine",
            help="vllm_tensor_parallel_size: weights and cache are split between so many GPUs; it divides the number "
            "of GPUs and the attention heads.",
        ),
    )
    vllm_data_parallel_size: int = key(
        1,
        WholeNumber(1024),
        "engines of a vLLM server",
        default_from=DefaultSource.TRL,
        code="vdp",
        widget=Widget(
            shape="number",
            section=Section.GENERATION,
            label="Engines of the server",
            help="data_parallel_size of trl vllm-serve: each engine has GPUs of its own, and gets an equal part of the "
            "rows.",
        ),
    )
    vllm_max_model_length: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "longest row, prompt and completion, that vLLM must hold",
        default_from=DefaultSource.TRL,
        null="all positions of the model",
        code="vl",
        widget=Widget(
            shape="number",
            section=Section.GENERATION,
            label="vLLM's longest row",
            help="vllm_max_model_length: vLLM starts only if its cache holds one row of this length. Left empty, that "
            "is every position of the model.",
            step=64,
        ),
    )
    vllm_max_num_seqs: int | None = key(
        None,
        WholeNumber(65_536, nullable=True),
        "rows that vLLM runs at once at most, for each of which its sampler keeps buffers",
        default_from=DefaultSource.TRL,
        null="all rows of a generation",
        code="vns",
        widget=Widget(
            shape="number",
            section=Section.GENERATION,
            label="vLLM's rows at once",
            help="max_num_seqs of vLLM: TRL gives it all rows of a generation; 256 in verl and ms-swift.",
            step=8,
        ),
    )
    vllm_max_num_batched_tokens: int = key(
        4096,
        WholeNumber(2**24),
        "tokens of vLLM's largest batch, whose activations it keeps room for",
        default_from=DefaultSource.TRL,
        code="vbt",
        widget=Widget(
            shape="number",
            section=Section.GENERATION,
            label="vLLM's tokens at once",
            help="max_num_batched_tokens of vLLM: 4,096 in TRL, 8,192 in verl.",
            step=1024,
        ),
    )
    generation_offload_model: bool = key(
        False,
        Flag(),
        "the trainer's weights rest on the CPU while vLLM generates",
        default_from=DefaultSource.OURS,
        remark="verl's param_offload, ms-swift's offload_model",
        code="gm",
        widget=Widget(
            shape="toggle",
            section=Section.GENERATION,
            label="Weights wait on the CPU",
            help="param_offload in verl, offload_model in ms-swift: the trainer's weights rest on the CPU while vLLM "
            "generates.",
        ),
    )
    generation_offload_optimizer: bool = key(
        False,
        Flag(),
        "optimizer states rest on the CPU while vLLM generates",
        default_from=DefaultSource.OURS,
        remark="verl's optimizer_offload, ms-swift's offload_optimizer",
        code="go",
        widget=Widget(
            shape="toggle",
            section=Section.GENERATION,
            label="Optimizer states wait on the CPU",
            help="optimizer_offload in verl, offload_optimizer in ms-swift: optimizer states rest on the CPU while "
            "vLLM generates.",
        ),
    )
    use_transformers_continuous_batching: bool = key(
        False,
        Flag(),
        "transformers generates with a paged cache in half of the free memory",
        default_from=DefaultSource.TRL,
        code="tc",
        widget=Widget(
            shape="toggle",
            section=Section.GENERATION,
            label="Continuous batching",
            help="use_transformers_continuous_batching: transformers generates with a paged cache, which takes half of "
            "the memory that is free.",
        ),
    )
    ds3_gather_for_generation: bool = key(
        True,
        Flag(),
        "under zero3, gather the whole model while transformers generates",
        default_from=DefaultSource.TRL,
        code="dg",
        widget=Widget(
            shape="toggle",
            section=Section.GENERATION,
            label="Gather the model to generate",
            help="ds3_gather_for_generation: off, ZeRO-3 gathers layer by layer for every token, which is slow and "
            "needs less memory. vLLM never generates with the trainer's weights.",
        ),
    )

    @property
    def server_gpus(self) -> int:
        """GPUs of a vLLM server, beside those that train (a count)."""
        if not self.use_vllm or self.is_colocated:
            return 0
        return self.vllm_tensor_parallel_size * self.vllm_data_parallel_size

    @property
    def is_colocated(self) -> bool:
        """Whether vLLM is on the GPUs that train."""
        return self.use_vllm and self.vllm_mode == COLOCATE
