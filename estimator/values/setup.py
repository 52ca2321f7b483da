"""One fine-tuning run, made of facets.

To add a key, add a field to its facet. Validation, JSON, flag, link and widget follow from it. Keys are named as in
Hugging Face's libraries where those have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from estimator.values.declaration import Checked, DefaultSource, Hashed, Key, attribute_owners, rows
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.allocator import Allocator
from estimator.values.facets.batch import Batch
from estimator.values.facets.computation import Computation
from estimator.values.facets.generation import Generation
from estimator.values.facets.images import Images
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.objective import Task
from estimator.values.facets.optimisation import Optimisation
from estimator.values.facets.precision import Precision
from estimator.values.facets.run import TrainingRun
from estimator.values.kinds import Choice, Momentum, ShortText, Version
from estimator.values.specs import Gpu, MixedPrecision

FACETS: Mapping[str, tuple[type[Checked], str]] = MappingProxyType(
    {
        "adapters": (Adapters, "what is trained: every weight, or adapters"),
        "precision": (Precision, "what is computed in"),
        "optimisation": (Optimisation, "the optimizer"),
        "batch": (Batch, "the batch"),
        "images": (Images, "images"),
        "computation": (Computation, "kernels, and what is kept for the backward pass"),
        "task": (Task, "the objective and its loss"),
        "generation": (Generation, "where the completions of grpo and rloo come from"),
        "mesh": (Mesh, "several GPUs"),
        "allocator": (Allocator, "PyTorch's allocator"),
        "run": (TrainingRun, "the run"),
    }
)
"""The facets of a setup by field name, with their titles in the help."""
TOOLS: dict[str, Any] = {}
"""Every training tool by the contract's word for it, registered by ``tools/known``."""
READ_INTO_OTHERS: Mapping[str, tuple[Key, ...]] = MappingProxyType(
    {
        "optimisation": (
            Key(
                name="optim_args",
                default=None,
                kind=Momentum(nullable=True),
                help="momentum, for sgd",
                null="none",
                widget="its momentum makes sgd the optimizer sgd_momentum, which the box for it offers",
            ),
        ),
        "run": (
            Key(
                name="tool",
                default="trainer",
                kind=Choice(TOOLS, nullable=True),
                help="whose defaults the missing keys take; trainer: those written here",
                default_from=DefaultSource.OURS,
                null="trainer",
                widget="the page takes a tool's defaults at a click",
            ),
            Key(
                name="tool_version",
                default=None,
                kind=ShortText(nullable=True),
                help="its version",
                default_from=DefaultSource.OURS,
                null="the newest known",
                widget="the page takes the newest",
            ),
            Key(
                name="v",
                default=1,
                kind=Version(),
                help="version of the contract",
                default_from=DefaultSource.OURS,
                modelled=(1,),
                widget="of the contract, not of the setup",
            ),
        ),
    }
)
"""Keys of the contract that are not fields of a setup, by the facet that they are listed with."""
FACET_OF: Mapping[str, str] = attribute_owners({name: of for name, (of, _) in FACETS.items()})
"""The facet that owns each key and property."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup(Hashed):
    """One fine-tuning run, made of facets. Keys are given and replaced by their own names, and read from their facets.

    >>> setup = TrainingSetup(method="lora", num_gpus=2, mesh=Mesh(strategy="ddp")).replace(lora_r=8)
    >>> setup.adapters.method.value, setup.mesh.num_gpus, setup.mesh.strategy.value, setup.value("lora_r")
    ('lora', 2, 'ddp', 8)
    """

    __hash__ = Hashed.__hash__

    adapters: Adapters = field(default=Adapters())
    precision: Precision = field(default=Precision())
    optimisation: Optimisation = field(default=Optimisation())
    batch: Batch = field(default=Batch())
    images: Images = field(default=Images())
    computation: Computation = field(default=Computation())
    task: Task = field(default=Task())
    generation: Generation = field(default=Generation())
    mesh: Mesh = field(default=Mesh())
    allocator: Allocator = field(default=Allocator())
    run: TrainingRun = field(default=TrainingRun())

    def __init__(self, **given: Any) -> None:
        """Accepts facets and keys by name; a key overrides its facet's value.

        Raises ``TypeError`` for a name that is neither, ``ValueError`` for a value that is not allowed.
        """
        changed: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            if (facet := KEY_FACET.get(name)) is not None:
                changed.setdefault(facet, {})[name] = value
            elif name not in FACETS:
                raise TypeError(f"a setup has no {name}")
        for facet, unchanged in _DEFAULTS.items():
            now = given.get(facet, unchanged)
            if facet in changed:
                now = replace(now, **changed[facet])
            object.__setattr__(self, facet, now)

    def replace(self, **given: Any) -> TrainingSetup:
        """The setup with other facets or keys. Raises as the constructor."""
        return TrainingSetup(**{facet: getattr(self, facet) for facet in FACETS} | given)

    def value(self, key: str) -> Any:
        """The value of a key or property of any facet, by its name."""
        return getattr(getattr(self, FACET_OF[key]), key)

    @property
    def effective_batch_size(self) -> int:
        """Examples per optimizer step, over all GPUs."""
        batch = self.batch
        examples = batch.per_device_train_batch_size * batch.gradient_accumulation_steps
        return examples * self.mesh.replicas

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a row that belong to its prompt, where an objective has prompts (a count).

        >>> TrainingSetup(objective="dpo", max_length=1024).prompt_tokens
        512
        """
        if self.task.max_prompt_length is not None:
            return self.task.max_prompt_length
        if self.task.objective.generates:
            return self.batch.max_length - self.task.max_completion_length
        return self.batch.max_length // 2

    @property
    def passes_without_grad(self) -> int:
        """Forward calls without gradients in one micro-step, each on as many rows as the trained one (a count).

        >>> [TrainingSetup(objective=word).passes_without_grad for word in ("sft", "dpo", "kto")]
        [0, 1, 3]
        """
        return self.task.objective.passes_without_grad(self)

    def runs_on(self, gpu: Gpu) -> bool:
        """Whether a GPU has units for the dtypes that the setup computes in."""
        if self.precision.mixed_precision is MixedPrecision.FP8 and (
            gpu.lacks_fp8 or gpu.vendor == "Intel"
        ):
            return False
        return gpu.supports_bf16 or not self.precision.uses_bf16

    @property
    def billed_gpus(self) -> int:
        """GPUs of the whole job (a count): those that train, and those of a vLLM server."""
        server = self.generation.server_gpus if self.task.objective.generates else 0
        return self.mesh.num_gpus + server

    @property
    def casts_base_back(self) -> bool:
        """Whether the trainer casts a prepared 4-bit base's head and embeddings back to bfloat16: ORPO's does."""
        is_packed = self.task.objective.prepares_base and self.adapters.has_4bit_base
        return is_packed and self.precision.mixed_precision is MixedPrecision.BF16

    @property
    def keeps_reference(self) -> bool:
        """Whether a reference model of its own stays on the GPU; with adapters it is the policy without them."""
        return self.task.asks_reference and not self.adapters.uses_adapters

    @property
    def reduces_every_micro_step(self) -> bool:
        """Whether FSDP reduces gradients in each micro-step and in float32, as verl's; Trainer's waits for the last.

        Source: verl 0.9.1, trainer/config/engine/fsdp.yaml (``use_no_sync_for_gradient_accumulation``: false),
        workers/engine/fsdp/transformer_impl.py, ``_build_fsdp_module`` (``reduce_dtype``).
        """
        return self.task.given_loss.is_verls and self.mesh.strategy.is_fsdp

    @property
    def processes_per_gpu(self) -> int:
        """Processes on a GPU that trains (a count), each with a CUDA context: verl's vLLM is one of its own.

        TRL's and ms-swift's runs in the trainer's.
        Source: verl 0.9.1, workers/rollout/vllm_rollout/vllm_async_server.py (``distributed_executor_backend`` "mp");
        trl 1.16, generation/vllm_generation.py:365 ("external_launcher").
        """
        is_verl = self.task.given_loss.is_verls and self.task.objective.generates
        return 2 if is_verl and self.generation.is_colocated else 1


KEY_FACET: Mapping[str, str] = MappingProxyType(
    {row.name: facet for facet, (of, _) in FACETS.items() for row in rows(of)}
)
"""The facet that has each key."""
_DEFAULTS: Mapping[str, Checked] = MappingProxyType(
    {name: of() for name, (of, _) in FACETS.items()}
)
