"""Kernels, and what is saved for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
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

    gradient_checkpointing: bool = key(
        False,
        Flag(),
        "save only each layer's input and recompute the layer in backward",
        remark="TRL's is on",
        code="gc",
        aliases=("activation_checkpointing",),
        widget=Widget(
            shape="toggle",
            section=Section.ALWAYS,
            label="Gradient checkpointing",
            help="Save only each layer's input and recompute the layer in backward.",
            decides=True,
        ),
    )
    vision_gradient_checkpointing: bool | None = key(
        None,
        Flag(nullable=True),
        "gradient checkpointing of the image tower's layers, apart from the text's",
        default_from=DefaultSource.TRANSFORMERS,
        remark="ms-swift's vit_gradient_checkpointing",
        null="as gradient_checkpointing",
        code="vgc",
        widget=Widget(
            shape="select",
            section=Section.IMAGES,
            label="Checkpoint the image tower",
            help="activation_checkpointing_enable of the tower alone, or of the language model alone; Trainer turns "
            "both on.",
        ),
    )
    use_reentrant: bool = key(
        False,
        Flag(),
        "use torch's older, reentrant checkpointing",
        default_from=DefaultSource.TRANSFORMERS,
        code="re",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Reentrant checkpointing",
            help="use_reentrant of gradient_checkpointing_kwargs: torch's older variant, which holds each block's "
            "input and output during its recomputation.",
            decides=True,
        ),
    )
    checkpoint_every_n_layers: int = key(
        1,
        WholeNumber(4096),
        "with gradient checkpointing: checkpoint every so many layers, the others keep their tensors",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(
            shape="number",
            section=Section.MORE,
            label="Checkpoint every n-th layer",
            help="every_n_layers of gradient_checkpointing_kwargs: the layers between keep all their tensors and are "
            "not computed again.",
            ends=(1, 128),
        ),
    )
    offload_checkpoints: bool = key(
        False,
        Flag(),
        "with gradient checkpointing: keep the layers' inputs in pinned memory of the host",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Checkpoints on the host",
            help="offload of gradient_checkpointing_kwargs: the layers' inputs are copied to the host, and back in "
            "backward.",
        ),
    )
    selective_checkpointing: bool = key(
        False,
        Flag(),
        "with gradient checkpointing: keep attention's output, and compute the rest again",
        default_from=DefaultSource.TRL,
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Selective checkpoints",
            help="selective of SFTTrainer's gradient_checkpointing_kwargs: attention's output is kept, the rest of a "
            "layer is computed again.",
        ),
    )
    activation_offloading: bool = key(
        False,
        Flag(),
        "TRL's: saved tensors are copied to the host in forward, and back in backward",
        default_from=DefaultSource.TRL,
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Activation offloading",
            help="TRL's activation_offloading: saved tensors of at least 1 KiB are copied to the host in forward, and "
            "back in backward.",
        ),
    )
    attn_implementation: AttnImplementation = key(
        AttnImplementation.SDPA,
        _ATTENTION,
        "the attention kernel",
        default_from=DefaultSource.TRANSFORMERS,
        code="at",
        widget=Widget(
            shape="select",
            section=Section.ALWAYS,
            label="Attention",
            help="The attention kernel. eager keeps the full matrix of attention scores.",
        ),
    )
    use_liger_kernel: bool = key(
        False,
        Flag(),
        "Liger's fused norm, MLP, rope and loss",
        code="lk",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="Liger kernels",
            help="Trainer's use_liger_kernel: fused norm, MLP, rotary embedding and loss.",
        ),
    )

    torch_compile: bool = key(
        False,
        Flag(),
        "compile the model with torch.compile: few fused kernels between matrix products",
        widget=Widget(
            shape="toggle",
            section=Section.MORE,
            label="torch.compile",
            help="Trainer's torch_compile: inductor fuses what lies between matrix products and attention, which "
            "saves memory traffic and launches. The first steps compile, for minutes.",
            decides=True,
        ),
    )
    torch_compile_mode: CompileMode | None = key(
        None,
        _COMPILE_MODE,
        "torch.compile's mode; a mode turns torch_compile on, as in Trainer",
        null="default",
        widget=Widget(
            shape="select",
            section=Section.MORE,
            label="Mode of torch.compile",
            help="Trainer's torch_compile_mode. reduce-overhead and max-autotune launch a step as CUDA graphs, whose "
            "memory stays reserved.",
        ),
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
        return self.torch_compile and self.attn_implementation is AttnImplementation.SDPA

    @property
    def checkpoints_vision(self) -> bool:
        """Whether the image tower's layers are checkpointed."""
        own = self.vision_gradient_checkpointing
        return self.gradient_checkpointing if own is None else own
