"""Where the completions come from that grpo and rloo train on."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice, Number, WholeNumber

COLOCATE, SERVER = "colocate", "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Checked):
    """transformers' ``generate``, or vLLM: on the same GPUs, or on its own.

    Source: trl 1.16, trainer/grpo_config.py.
    """

    __hash__ = Hashed.__hash__

    use_vllm: bool = flag(
        False,
        "generate with vLLM, in grpo and rloo",
        "Without it, transformers' generate writes all completions of a generation at once.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "Generate with vLLM", decides=True),
    )
    vllm_mode: str = key(
        COLOCATE,
        Choice((COLOCATE, SERVER)),
        "vLLM on the GPUs that train, or on GPUs of its own",
        "The cost includes a server's.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "vLLM's GPUs", shape="segments", decides=True),
    )
    vllm_gpu_memory_utilization: float = key(
        0.3,
        Number(1, open_low=True),
        "share of the whole GPU that vLLM takes",
        "Not of what is free. Weights, activations and CUDA graphs come out of it; the rest is its cache of keys and "
        "values.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "vLLM's share of the GPU", step=0.01, ends=(0.01, 1.0)),
    )
    vllm_enable_sleep_mode: bool = flag(
        False,
        "vLLM frees its weights and its cache while others train",
        "They take turns instead of adding up.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "vLLM sleeps during training"),
    )
    vllm_tensor_parallel_size: int = key(
        1,
        WholeNumber(1024),
        "GPUs that share one vLLM engine",
        "Weights and cache are split between them; their number divides that of all GPUs and the attention heads.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "GPUs of one engine"),
    )
    vllm_data_parallel_size: int = key(
        1,
        WholeNumber(1024),
        "engines of a vLLM server",
        "data_parallel_size of trl vllm-serve: each has GPUs of its own, and gets an equal part of the rows.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "Engines of the server"),
    )
    vllm_max_model_length: int | None = key(
        None,
        WholeNumber(2**24, nullable=True),
        "longest row, prompt and completion, that vLLM must hold",
        "It starts only if its cache holds one row of this length.",
        default_from=DefaultSource.TRL,
        null="all positions of the model",
        widget=Widget(Section.GENERATION, "vLLM's longest row", step=64),
    )
    vllm_max_num_seqs: int | None = key(
        None,
        WholeNumber(65_536, nullable=True),
        "rows that vLLM runs at once at most, for each of which its sampler keeps buffers",
        "max_num_seqs of vLLM, 256 in verl and ms-swift.",
        default_from=DefaultSource.TRL,
        null="all rows of a generation",
        widget=Widget(Section.GENERATION, "vLLM's rows at once", step=8),
    )
    vllm_max_num_batched_tokens: int = key(
        4096,
        WholeNumber(2**24),
        "tokens of vLLM's largest batch, whose activations it keeps room for",
        "max_num_batched_tokens of vLLM, 8,192 in verl.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "vLLM's tokens at once", step=1024),
    )
    generation_offload_model: bool = flag(
        False,
        "the trainer's weights rest on the CPU while vLLM generates",
        default_from=DefaultSource.OURS,
        remark="verl's param_offload, ms-swift's offload_model",
        widget=Widget(Section.GENERATION, "Weights wait on the CPU"),
    )
    generation_offload_optimizer: bool = flag(
        False,
        "optimizer states rest on the CPU while vLLM generates",
        default_from=DefaultSource.OURS,
        remark="verl's optimizer_offload, ms-swift's offload_optimizer",
        widget=Widget(Section.GENERATION, "Optimizer states wait on the CPU"),
    )
    use_transformers_continuous_batching: bool = flag(
        False,
        "transformers generates with a paged cache in half of the free memory",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "Continuous batching"),
    )
    ds3_gather_for_generation: bool = flag(
        True,
        "under zero3, gather the whole model while transformers generates",
        "When off, it gathers layer by layer for every token, which is slow and needs less memory. vLLM never "
        "generates with the trainer's weights.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.GENERATION, "Gather the model to generate"),
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
