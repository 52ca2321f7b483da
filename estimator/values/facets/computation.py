"""Kernels, and what is saved for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice, Flag, WholeNumber
from estimator.values.specs import CUDA_GRAPHS, AttnImplementation, CompileMode

_ATTENTION = Choice(
    tuple(AttnImplementation),
    member=AttnImplementation,
    later=("flash_attention_3", "flex_attention"),
)
_COMPILE_MODE = Choice(tuple(CompileMode), member=CompileMode, nullable=True)
_COMPILE_BACKEND = Choice(
    ("inductor",),
    # accelerate 1.15, utils/dataclasses.py, DynamoBackend; "no" is torch_compile false
    later=(
        *("aot_eager", "aot_torchxla_trace_once", "aot_ts_nvfuser", "cudagraphs", "eager"),
        *("fx2trt", "hpu_backend", "neuron", "nvprims_nvfuser", "ofi", "onnxrt", "tensorrt"),
        *("torchxla_trace_once", "tvm"),
    ),
    nullable=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation(Checked):
    """By which kernels layers are computed, and what is kept for the backward pass."""

    __hash__ = Hashed.__hash__

    def __post_init__(self) -> None:
        """Checks the values; a mode or a backend turns ``torch_compile`` on.

        Source: transformers 5.23, training_args.py, ``TrainingArguments.__post_init__``.
        """
        Checked.__post_init__(self)
        if self.torch_compile_mode is not None or self.torch_compile_backend is not None:
            object.__setattr__(self, "torch_compile", True)

    gradient_checkpointing: bool = flag(
        False,
        "save only each layer's input and recompute the layer in backward",
        remark="TRL's is on",
        aliases=("activation_checkpointing",),
        widget=Widget(Section.ALWAYS, "Gradient checkpointing", decides=True),
    )
    vision_gradient_checkpointing: bool | None = key(
        None,
        Flag(nullable=True),
        "gradient checkpointing of the image tower's layers, apart from the text's",
        "activation_checkpointing_enable of the tower alone, or of the language model alone; Trainer turns both on.",
        default_from=DefaultSource.TRANSFORMERS,
        remark="ms-swift's vit_gradient_checkpointing",
        null="as gradient_checkpointing",
        widget=Widget(Section.IMAGES, "Checkpoint the image tower"),
    )
    use_reentrant: bool = flag(
        False,
        "use torch's older, reentrant checkpointing",
        "Each block's input and output are held during its recomputation.",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.MORE, "Reentrant checkpointing", decides=True),
    )
    checkpoint_every_n_layers: int = key(
        1,
        WholeNumber(4096),
        "with gradient checkpointing: checkpoint every so many layers, the others keep their tensors",
        "every_n_layers of gradient_checkpointing_kwargs.",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.MORE, "Checkpoint every n-th layer", ends=(1, 128)),
    )
    offload_checkpoints: bool = flag(
        False,
        "with gradient checkpointing: keep the layers' inputs in pinned memory of the host",
        "offload of gradient_checkpointing_kwargs; they are copied back in backward.",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.MORE, "Checkpoints on the host"),
    )
    selective_checkpointing: bool = flag(
        False,
        "with gradient checkpointing: keep attention's output, and compute the rest again",
        "selective of SFTTrainer's gradient_checkpointing_kwargs.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.MORE, "Selective checkpoints"),
    )
    activation_offloading: bool = flag(
        False,
        "TRL's: saved tensors are copied to the host in forward, and back in backward",
        "Those of at least 1 KiB.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.MORE, "Activation offloading"),
    )
    attn_implementation: AttnImplementation = key(
        AttnImplementation.SDPA,
        _ATTENTION,
        "the attention kernel",
        "eager keeps the full matrix of attention scores.",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.ALWAYS, "Attention"),
    )
    use_liger_kernel: bool = flag(
        False,
        "Liger's fused norm, MLP, rope and loss",
        widget=Widget(Section.MORE, "Liger kernels"),
    )

    torch_compile: bool = flag(
        False,
        "compile the model with torch.compile: few fused kernels between matrix products",
        "That saves memory traffic and launches. The first steps compile, for minutes.",
        widget=Widget(Section.MORE, "torch.compile", decides=True),
    )
    torch_compile_mode: CompileMode | None = key(
        None,
        _COMPILE_MODE,
        "torch.compile's mode; a mode turns torch_compile on, as in Trainer",
        "reduce-overhead and max-autotune launch a step as CUDA graphs, whose memory stays reserved.",
        null="default",
        widget=Widget(Section.MORE, "Mode of torch.compile"),
    )
    torch_compile_backend: str | None = key(
        None,
        _COMPILE_BACKEND,
        "torch.compile's backend; a backend turns torch_compile on, as in Trainer",
        null="inductor",
        widget="inductor is the only backend that is estimated",
    )

    @property
    def uses_cuda_graphs(self) -> bool:
        """Whether a compiled step is launched as CUDA graphs.

        Source: torch 2.13, _inductor/__init__.py, ``list_mode_options``.
        """
        return self.torch_compile_mode in CUDA_GRAPHS

    @property
    def masks_when_traced(self) -> bool:
        """Whether compiling makes transformers build a causal mask, which it leaves to the kernel otherwise.

        Source: transformers 5.23, masking_utils.py, ``_ignore_causal_mask_sdpa``: below torch 2.14 dynamo takes
        ``is_exporting`` for true.
        """
        return self.torch_compile and self.attn_implementation.is_torchs

    @property
    def checkpoints_vision(self) -> bool:
        """Whether the image tower's layers are checkpointed."""
        own = self.vision_gradient_checkpointing
        return self.gradient_checkpointing if own is None else own
