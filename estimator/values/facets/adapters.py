"""What is trained: every weight, or adapters on a frozen base."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice, Indices, Names, Number, Ranks, WholeNumber
from estimator.values.methods import Method
from estimator.values.specs import ALL_LINEAR, ModelClass, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters(Checked):
    """What is trained: every weight, or adapters on a frozen base, which may be quantised."""

    __hash__ = Hashed.__hash__

    method: Method = key(
        Method.FULL,
        Choice(tuple(Method), member=Method),
        "train every weight, or adapters on a frozen base",
        "full trains every weight, lora small adapters, qlora adapters on a 4-bit base.",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.ALWAYS, "Method", shape="segments"),
    )
    model_class: ModelClass = key(
        ModelClass.AUTO,
        Choice(tuple(ModelClass), member=ModelClass),
        "for multimodal checkpoints: auto loads what AutoModelForCausalLM loads, text loads the text model only",
        "auto's has vision and audio towers.",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.MORE, "Model class", shape="segments"),
    )
    lora_r: int = key(
        16,
        WholeNumber(8192),
        "rank of the adapters",
        "Their size is proportional to it.",
        default_from=DefaultSource.OURS,
        remark="PEFT's is 8",
        widget=Widget(
            Section.LORA, "Rank", steps=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
        ),
    )
    lora_alpha: int = key(
        32,
        WholeNumber(10**6),
        "scale of the adapters; does not affect memory",
        default_from=DefaultSource.TRL,
        widget="a scale; it affects neither memory nor time",
    )
    lora_target_modules: str | tuple[str, ...] = key(
        ALL_LINEAR,
        Names(ALL_LINEAR),
        "the linear layers that get an adapter",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.LORA, "Target modules"),
    )
    layers_to_transform: tuple[int, ...] | None = key(
        None,
        Indices(nullable=True),
        "the layers whose listed modules get an adapter, counted from 0",
        default_from=DefaultSource.PEFT,
        null="all",
        widget="a list of layers, which no box has; a config, a link or a file sets it",
    )
    rank_pattern: tuple[tuple[str, int], ...] | None = key(
        None,
        Ranks(nullable=True),
        "modules whose adapters have another rank",
        default_from=DefaultSource.PEFT,
        null="none",
        widget="an object of names and ranks, which no box has; a config, a link or a file sets it",
    )
    exclude_modules: tuple[str, ...] | None = key(
        None,
        Names(nullable=True, empty=True),
        "modules that get no adapter though they are targets",
        default_from=DefaultSource.PEFT,
        null="none",
        widget=Widget(Section.LORA, "Left out"),
    )
    target_parameters: tuple[str, ...] | None = key(
        None,
        Names(nullable=True, empty=True),
        "stacked experts that get an adapter, by their parameter's name",
        default_from=DefaultSource.PEFT,
        null="none",
        widget="names of parameters, which few models have; a config, a link or a file sets it",
    )
    lora_dropout: float = key(
        0.05,
        Number(1, open_high=True),
        "dropout before the adapters",
        "Any value above 0 keeps one more activation per adapter.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.LORA, "Dropout", step=0.05, ends=(0.0, 0.95)),
    )
    autocast_adapter_dtype: bool = flag(
        True,
        "cast adapters to float32; otherwise they have the base's dtype",
        default_from=DefaultSource.PEFT,
        remark="TRL turns it off for QLoRA",
        widget=Widget(Section.LORA, "Adapters in float32"),
    )
    lora_bias: bool = flag(
        False,
        "adapters have a bias",
        "It is that of each adapter's second matrix.",
        default_from=DefaultSource.PEFT,
        widget=Widget(Section.LORA, "Bias in adapters"),
    )
    bias: str = key(
        "none",
        Choice(("none", "lora_only", "all")),
        "which biases of the base are trained",
        "None, those of adapted modules, or all.",
        default_from=DefaultSource.PEFT,
        widget=Widget(Section.LORA, "Trained biases", shape="segments"),
    )
    use_dora: bool = flag(
        False,
        "DoRA: train the column magnitudes of each weight matrix separately",
        "With dropout, every adapted weight is kept a second time.",
        default_from=DefaultSource.PEFT,
        widget=Widget(Section.LORA, "DoRA"),
    )
    modules_to_save: tuple[str, ...] | None = key(
        None,
        Names(nullable=True),
        "modules trained in full, in addition to the adapters",
        "Of each a copy is trained, and the frozen original stays in memory.",
        default_from=DefaultSource.PEFT,
        null="none",
        widget=Widget(Section.LORA, "Modules trained in full"),
    )
    bnb_4bit_quant_type: str = key(
        "nf4",
        Choice(("nf4", "fp4")),
        "the 4-bit format",
        "Both take the same memory.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.QUANTISATION, "4-bit format", shape="segments"),
    )
    bnb_4bit_use_double_quant: bool = flag(
        True,
        "also quantise the quantisation scales",
        "It saves 0.4 bits per parameter.",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.QUANTISATION, "Double quantisation"),
    )
    bnb_4bit_quant_storage: str = key(
        "uint8",
        Choice(("uint8", "bfloat16", "float16", "float32")),
        "storage dtype of the 4-bit weights; FSDP and ZeRO-3 shard only float dtypes",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.QUANTISATION, "4-bit storage dtype"),
    )
    prepare_model_for_kbit_training: bool = flag(
        False,
        "call PEFT's prepare_model_for_kbit_training, which upcasts the parameters that are not quantised",
        "Norms, embeddings and head become float32.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.QUANTISATION, "Prepare for k-bit training"),
    )
    load_in_8bit: bool = flag(
        False,
        "LLM.int8 base for lora; other methods ignore it",
        "A weight is one byte. Layer inputs stay until backward, even with gradient checkpointing.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.QUANTISATION, "8-bit base (LoRA only)"),
    )

    freeze_vision: bool = flag(
        False,
        "leave the image tower untrained, and without adapters",
        default_from=DefaultSource.TRL,
        remark="LLaMA-Factory and ms-swift freeze it",
        widget=Widget(Section.IMAGES, "Freeze the image tower"),
    )
    freeze_projector: bool = flag(
        False,
        "leave what joins the tower to the text untrained, and without adapters",
        default_from=DefaultSource.TRL,
        remark="LLaMA-Factory and ms-swift freeze it",
        widget=Widget(Section.IMAGES, "Freeze the projector"),
    )
    freeze_language: bool = flag(
        False,
        "leave the text untrained, and without adapters",
        "Only the tower and the projector are trained.",
        default_from=DefaultSource.TRL,
        widget=Widget(Section.IMAGES, "Freeze the text"),
    )

    @property
    def frozen_parts(self) -> frozenset[Part]:
        """Parts that are left as they are: neither trained nor adapted."""
        flags = (
            (Part.VISION, self.freeze_vision),
            (Part.PROJECTOR, self.freeze_projector),
            (Part.TEXT, self.freeze_language),
        )
        return frozenset(part for part, is_frozen in flags if is_frozen)

    @property
    def uses_adapters(self) -> bool:
        """LoRA or QLoRA."""
        return self.method.has_adapters

    @property
    def by_layer(self) -> bool:
        """Whether layers of one kind may differ in their adapters."""
        names = (*(self.exclude_modules or ()), *(name for name, _ in self.rank_pattern or ()))
        numbered = any(part.isdigit() for name in names for part in name.split("."))
        return self.uses_adapters and (self.layers_to_transform is not None or numbered)

    @property
    def has_4bit_base(self) -> bool:
        """Whether the adapters' base is quantised to 4 bits."""
        return self.method.has_4bit_base

    @property
    def has_8bit_base(self) -> bool:
        """Whether the adapters' base is quantised to 8 bits."""
        return self.load_in_8bit and self.uses_adapters and not self.has_4bit_base

    @property
    def has_packed_base(self) -> bool:
        """Whether bitsandbytes quantises the adapters' base, to 4 or 8 bits."""
        return self.has_4bit_base or self.has_8bit_base

    @property
    def shards_packed(self) -> bool:
        """Whether FSDP shards packed 4-bit weights: only if their storage dtype is a float.

        Source: accelerate 1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model`` (``incompatible_params4bit`` are ignored).
        """
        return self.bnb_4bit_quant_storage != "uint8"
