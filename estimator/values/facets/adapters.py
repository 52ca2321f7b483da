"""What is trained: every weight, or adapters beside a frozen base."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Whose, Widget, key
from estimator.values.kinds import Choice, Flag, Names, Number, WholeNumber
from estimator.values.specs import ALL_LINEAR, Method, ModelClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters(Checked):
    """What is trained: every weight, or adapters beside a frozen base, which may be packed."""

    __hash__ = Hashed.__hash__

    method: Method = key(
        Method.FULL,
        Choice(tuple(Method), enum=Method),
        "every weight, or adapters beside a frozen base",
        whose=Whose.OURS,
        code="me",
        widget=Widget(
            shape="segments",
            section=Section.ALWAYS,
            label="Method",
            help="full trains every weight; lora small adapters; qlora does so beside a 4-bit base.",
        ),
    )
    model_class: ModelClass = key(
        ModelClass.AUTO,
        Choice(tuple(ModelClass), enum=ModelClass),
        "of a checkpoint with towers: auto, as AutoModelForCausalLM makes it, or its text alone",
        whose=Whose.TRANSFORMERS,
        code="mc",
        widget=Widget(
            shape="segments",
            section=Section.MORE,
            label="Class",
            help="auto is what AutoModelForCausalLM makes, towers for images and sound too; text is the class of the "
            "text alone.",
        ),
    )
    lora_r: int = key(
        16,
        WholeNumber(8192),
        "rank of the adapters",
        whose=Whose.OURS,
        beside="PEFT's is 8",
        code="r",
        widget=Widget(
            shape="slider",
            section=Section.LORA,
            label="Rank",
            help="Width of the adapters; their size grows in step with it.",
            steps=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512),
        ),
    )
    lora_alpha: int = key(
        32,
        WholeNumber(10**6),
        "scale of the adapters; no memory",
        whose=Whose.TRL,
        code="la",
        widget="a scale: it takes no memory and no time",
    )
    lora_target_modules: str | tuple[str, ...] = key(
        ALL_LINEAR,
        Names(ALL_LINEAR),
        "the linears that get an adapter",
        whose=Whose.OURS,
        code="lt",
        widget=Widget(
            shape="options",
            section=Section.LORA,
            label="Modules",
            help="The same by name, as PEFT's target_modules.",
        ),
    )
    lora_dropout: float = key(
        0.05,
        Number(1, open_high=True),
        "dropout before the adapters",
        whose=Whose.TRL,
        code="ld",
        widget=Widget(
            shape="number",
            section=Section.LORA,
            label="Dropout",
            help="Dropout before the adapters; any at all keeps one more tensor.",
            step=0.05,
            ends=(0.0, 0.95),
        ),
    )
    autocast_adapter_dtype: bool = key(
        True,
        Flag(),
        "adapters in float32, as PEFT; else as the base",
        whose=Whose.PEFT,
        beside="TRL turns it off for QLoRA",
        code="ad",
        widget=Widget(
            shape="toggle",
            section=Section.LORA,
            label="Adapters in float32",
            help="autocast_adapter_dtype; without it adapters have the base's dtype.",
        ),
    )
    use_dora: bool = key(
        False,
        Flag(),
        "DoRA: the length of each column is trained apart",
        whose=Whose.PEFT,
        code="do",
        widget=Widget(
            shape="toggle",
            section=Section.LORA,
            label="DoRA",
            help="Trains the length of a weight's columns apart; with dropout every adapted weight is kept once more.",
        ),
    )
    modules_to_save: tuple[str, ...] | None = key(
        None,
        Names(nullable=True),
        "modules of which a copy is trained whole, beside the adapters",
        whose=Whose.PEFT,
        null="none",
        code="ms",
        widget=Widget(
            shape="options",
            section=Section.LORA,
            label="Trained whole",
            help="PEFT's modules_to_save: of each a copy is trained beside the adapters, and the frozen original "
            "stays.",
        ),
    )
    bnb_4bit_quant_type: str = key(
        "nf4",
        Choice(("nf4", "fp4")),
        "the 4-bit format",
        whose=Whose.TRL,
        code="qt",
        widget=Widget(
            shape="segments",
            section=Section.QUANTISATION,
            label="4-bit format",
            help="Equal in size.",
        ),
    )
    bnb_4bit_use_double_quant: bool = key(
        True,
        Flag(),
        "quantise the scales too",
        whose=Whose.OURS,
        code="dq",
        widget=Widget(
            shape="toggle",
            section=Section.QUANTISATION,
            label="Double quantisation",
            help="Quantise the scales as well: 0.4 bits a parameter less.",
        ),
    )
    bnb_4bit_quant_storage: str = key(
        "uint8",
        Choice(("uint8", "bfloat16", "float16", "float32")),
        "the dtype that packed weights pass for; FSDP and ZeRO-3 divide floats only",
        whose=Whose.TRANSFORMERS,
        widget=Widget(
            shape="select",
            section=Section.QUANTISATION,
            label="Packed weights pass for",
            help="bnb_4bit_quant_storage: FSDP and ZeRO-3 divide packed weights only where they pass for floats.",
        ),
    )
    prepare_model_for_kbit_training: bool = key(
        False,
        Flag(),
        "PEFT's upcasts",
        whose=Whose.TRL,
        code="kb",
        widget=Widget(
            shape="toggle",
            section=Section.QUANTISATION,
            label="Prepare for k-bit training",
            help="PEFT's helper: norms, embeddings and head go to float32.",
        ),
    )
    load_in_8bit: bool = key(
        False,
        Flag(),
        "LLM.int8 base, with lora; the other methods do not look at it",
        whose=Whose.TRL,
        code="i8",
        widget=Widget(
            shape="toggle",
            section=Section.QUANTISATION,
            label="8-bit base (LoRA only)",
            help="LLM.int8: a byte a weight; its inputs stay through backward even under checkpointing.",
        ),
    )

    @property
    def uses_adapters(self) -> bool:
        """LoRA or QLoRA."""
        return self.method is not Method.FULL

    @property
    def has_8bit_base(self) -> bool:
        """Whether the adapters' base is packed into 8 bits."""
        return self.method is Method.LORA and self.load_in_8bit

    @property
    def has_packed_base(self) -> bool:
        """Whether bitsandbytes packs the adapters' base, into 4 or 8 bits."""
        return self.method is Method.QLORA or self.has_8bit_base
