"""What is trained: every weight, or adapters on a frozen base."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, key
from estimator.values.kinds import Choice, Flag, Indices, Names, Number, Ranks, WholeNumber
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
        default_from=DefaultSource.OURS,
        code="me",
        widget=Widget(
            shape="segments",
            section=Section.ALWAYS,
            label="Method",
            help="full trains every weight, lora trains small adapters, qlora trains adapters on a 4-bit base.",
        ),
    )
    model_class: ModelClass = key(
        ModelClass.AUTO,
        Choice(tuple(ModelClass), member=ModelClass),
        "for multimodal checkpoints: auto loads what AutoModelForCausalLM loads, text loads the text model only",
        default_from=DefaultSource.TRANSFORMERS,
        code="mc",
        widget=Widget(
            shape="segments",
            section=Section.MORE,
            label="Model class",
            help="auto loads what AutoModelForCausalLM loads, including vision and audio towers; text loads the text "
            "model only.",
        ),
    )
    lora_r: int = key(
        16,
        WholeNumber(8192),
        "rank of the adapters",
        default_from=DefaultSource.OURS,
        remark="PEFT's is 8",
        code="r",
        widget=Widget(
            shape="slider",
            section=Section.LORA,
            label="Rank",
            help="Rank of the adapter matrices. Adapter size is proportional to it.",
            steps=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512),
        ),
    )
    lora_alpha: int = key(
        32,
        WholeNumber(10**6),
        "scale of the adapters; does not affect memory",
        default_from=DefaultSource.TRL,
        code="la",
        widget="a scale; it affects neither memory nor time",
    )
    lora_target_modules: str | tuple[str, ...] = key(
        ALL_LINEAR,
        Names(ALL_LINEAR),
        "the linear layers that get an adapter",
        default_from=DefaultSource.OURS,
        code="lt",
        widget=Widget(
            shape="options",
            section=Section.LORA,
            label="Target modules",
            help="PEFT's target_modules: the linear layers that get an adapter, by name.",
        ),
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
        widget=Widget(
            shape="options",
            section=Section.LORA,
            label="Left out",
            help="PEFT's exclude_modules: targets that get no adapter.",
        ),
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
        default_from=DefaultSource.TRL,
        code="ld",
        widget=Widget(
            shape="number",
            section=Section.LORA,
            label="Dropout",
            help="Dropout before the adapters. Any value above 0 keeps one more activation per adapter.",
            step=0.05,
            ends=(0.0, 0.95),
        ),
    )
    autocast_adapter_dtype: bool = key(
        True,
        Flag(),
        "cast adapters to float32; otherwise they have the base's dtype",
        default_from=DefaultSource.PEFT,
        remark="TRL turns it off for QLoRA",
        code="ad",
        widget=Widget(
            shape="toggle",
            section=Section.LORA,
            label="Adapters in float32",
            help="PEFT's autocast_adapter_dtype. When off, adapters have the base's dtype.",
        ),
    )
    lora_bias: bool = key(
        False,
        Flag(),
        "adapters have a bias",
        default_from=DefaultSource.PEFT,
        widget=Widget(
            shape="toggle",
            section=Section.LORA,
            label="Bias in adapters",
            help="PEFT's lora_bias: each adapter's second matrix has a bias.",
        ),
    )
    bias: str = key(
        "none",
        Choice(("none", "lora_only", "all")),
        "which biases of the base are trained",
        default_from=DefaultSource.PEFT,
        widget=Widget(
            shape="segments",
            section=Section.LORA,
            label="Trained biases",
            help="PEFT's bias: of the base's own biases none, those of adapted modules, or all are trained.",
        ),
    )
    use_dora: bool = key(
        False,
        Flag(),
        "DoRA: train the column magnitudes of each weight matrix separately",
        default_from=DefaultSource.PEFT,
        code="do",
        widget=Widget(
            shape="toggle",
            section=Section.LORA,
            label="DoRA",
            help="Trains the column magnitudes of each weight matrix separately. With dropout, every adapted weight "
            "is kept "
            "a second time.",
        ),
    )
    modules_to_save: tuple[str, ...] | None = key(
        None,
        Names(nullable=True),
        "modules trained in full, in addition to the adapters",
        default_from=DefaultSource.PEFT,
        null="none",
        code="ms",
        widget=Widget(
            shape="options",
            section=Section.LORA,
            label="Modules trained in full",
            help="PEFT's modules_to_save: a copy of each is trained in full, and the frozen original stays in memory.",
        ),
    )
    bnb_4bit_quant_type: str = key(
        "nf4",
        Choice(("nf4", "fp4")),
        "the 4-bit format",
        default_from=DefaultSource.TRL,
        code="qt",
        widget=Widget(
            shape="segments",
            section=Section.QUANTISATION,
            label="4-bit format",
            help="Both formats take the same memory.",
        ),
    )
    bnb_4bit_use_double_quant: bool = key(
        True,
        Flag(),
        "also quantise the quantisation scales",
        default_from=DefaultSource.OURS,
        code="dq",
        widget=Widget(
            shape="toggle",
            section=Section.QUANTISATION,
            label="Double quantisation",
            help="Also quantises the scales, which saves 0.4 bits per parameter.",
        ),
    )
    bnb_4bit_quant_storage: str = key(
        "uint8",
        Choice(("uint8", "bfloat16", "float16", "float32")),
        "storage dtype of the 4-bit weights; FSDP and ZeRO-3 shard only float dtypes",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(
            shape="select",
            section=Section.QUANTISATION,
            label="4-bit storage dtype",
            help="bnb_4bit_quant_storage: FSDP and ZeRO-3 shard 4-bit weights only if they are stored in a float "
            "dtype.",
        ),
    )
    prepare_model_for_kbit_training: bool = key(
        False,
        Flag(),
        "call PEFT's prepare_model_for_kbit_training, which upcasts the parameters that are not quantised",
        default_from=DefaultSource.TRL,
        code="kb",
        widget=Widget(
            shape="toggle",
            section=Section.QUANTISATION,
            label="Prepare for k-bit training",
            help="PEFT's prepare_model_for_kbit_training: casts norms, embeddings and head to float32.",
        ),
    )
    load_in_8bit: bool = key(
        False,
        Flag(),
        "LLM.int8 base for lora; other methods ignore it",
        default_from=DefaultSource.TRL,
        code="i8",
        widget=Widget(
            shape="toggle",
            section=Section.QUANTISATION,
            label="8-bit base (LoRA only)",
            help="LLM.int8: one byte per weight. Layer inputs stay until backward, even with gradient checkpointing.",
        ),
    )

    freeze_vision: bool = key(
        False,
        Flag(),
        "leave the image tower untrained, and without adapters",
        default_from=DefaultSource.TRL,
        remark="LLaMA-Factory and ms-swift freeze it",
        code="fv",
        widget=Widget(
            shape="toggle",
            section=Section.IMAGES,
            label="Freeze the image tower",
            help="The tower that sees is not trained and gets no adapters.",
        ),
    )
    freeze_projector: bool = key(
        False,
        Flag(),
        "leave what joins the tower to the text untrained, and without adapters",
        default_from=DefaultSource.TRL,
        remark="LLaMA-Factory and ms-swift freeze it",
        code="fp",
        widget=Widget(
            shape="toggle",
            section=Section.IMAGES,
            label="Freeze the projector",
            help="What turns the tower's output into tokens is not trained and gets no adapters.",
        ),
    )
    freeze_language: bool = key(
        False,
        Flag(),
        "leave the text untrained, and without adapters",
        default_from=DefaultSource.TRL,
        code="fl",
        widget=Widget(
            shape="toggle",
            section=Section.IMAGES,
            label="Freeze the text",
            help="Only the tower and the projector are trained.",
        ),
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
