"""How transformers loads a checkpoint with quantised weights, and which runs it refuses."""

from __future__ import annotations

from estimator.resident.stored import modules_packed_otherwise
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.precision import Precision
from estimator.values.methods import Method
from estimator.values.quantization import Quantization, StorageRule
from estimator.values.refusals import NOT_MODELLED, Line, Refusal
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

UNKNOWN_FORMAT = Refusal(
    "{model} is stored as {name}, which is not modelled yet; take its original 16-bit checkpoint.",
    NOT_MODELLED,
)
FULL_ON_QUANTISED = Refusal(
    "method full cannot train {model}, whose weights are stored as {name}: Trainer only trains adapters on them; "
    "take {instead}.",
    Line(
        "transformers",
        "trainer_utils.py",
        133,
        "You cannot perform fine-tuning on purely quantized models.",
    ),
)
NO_TRAINING = Refusal(
    "{model} is stored as {name}, a format that transformers does not train, even with adapters; take its original "
    "16-bit checkpoint.",
    Line(
        "transformers",
        "trainer_utils.py",
        140,
        "but that quantization method do not support training.",
    ),
)
SECOND_QUANTISATION = Refusal(
    "{model} is stored as {name}, which transformers does not quantise again with bitsandbytes (it finds a "
    "{config_class} but a BitsAndBytesConfig is passed); take {instead}.",
    Line("transformers", "quantizers/auto.py", 264, "but you are passing a"),
)
DORA_ON_GPTQ = Refusal(
    "PEFT refuses use_dora on weights stored as {name}; leave use_dora at false.",
    Line("peft", "tuners/lora/gptq.py", 40, "does not support DoRA yet"),
)
DORA_ON_AWQ = Refusal(
    "PEFT refuses use_dora on weights stored as {name}; leave use_dora at false.",
    Line("peft", "tuners/lora/awq.py", 37, "does not support DoRA yet"),
)
LORA_ON_INT32 = Refusal(
    "method lora on weights stored as {name} is not modelled yet (GPTQModel trains them with a backend such as "
    "auto_trainable, and what its kernels unpack is not counted here); take the original 16-bit checkpoint.",
    NOT_MODELLED,
)
PACKED_OTHERWISE = Refusal(
    "{model} is stored as {name}, but its {module} differs from what bitsandbytes would pack, which is not modelled "
    "yet; "
    "take its original 16-bit checkpoint.",
    NOT_MODELLED,
)


def as_loaded(model: Model, setup: TrainingSetup) -> TrainingSetup:
    """The setup that transformers actually runs on this checkpoint (no unit; the same on every GPU).

    Weights that bitsandbytes packed stay packed without being asked, with the checkpoint's own settings; those in FP8,
    MXFP4 or compressed-tensors are loaded as plain floats (``dequantize=True``), as Trainer requires. What the
    libraries refuse, or is not modelled, raises a ``RefusedError``. ORPO's trainer prepares a packed base by itself.

    Source: transformers 5.23, trainer_utils.py, ``validate_quantization_for_training``; quantizers/auto.py,
    ``merge_quantization_configs``; quantizers/base.py, ``postprocess_model``; gptqmodel 7.3.4,
    nn_modules/qlinear/__init__.py, ``train`` (inference kernels refuse it), and torch.py, ``_forward_eager`` (its
    product uses unpacked weights, which autograd keeps); trl 1.16, experimental/orpo/orpo_trainer.py:220-232.

    >>> from dataclasses import replace
    >>> from estimator.families.modules import TINY_LLAMA
    >>> from estimator.sources.quantization_config import quantization_of
    >>> packed = quantization_of({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}})
    >>> run = as_loaded(replace(TINY_LLAMA, quantization=packed), TrainingSetup(method=Method.LORA))
    >>> run.adapters.method.value, run.adapters.bnb_4bit_use_double_quant
    ('qlora', False)
    """
    setup = _as_stored(model, setup)
    if setup.task.objective.prepares_base and setup.adapters.has_packed_base:
        return setup.replace(prepare_model_for_kbit_training=True)
    return setup


def _as_stored(model: Model, setup: TrainingSetup) -> TrainingSetup:
    stored = model.quantization
    if stored is None:
        return setup
    said = _said(model, stored, setup.adapters)
    if stored.storage is None:
        raise UNKNOWN_FORMAT(**said)
    if stored.storage in (StorageRule.BNB_4BIT, StorageRule.BNB_8BIT):
        return _packed(model, stored, setup)
    if setup.adapters.has_packed_base:
        raise SECOND_QUANTISATION(**said)
    if stored.can_dequantize:
        return setup
    if not setup.adapters.uses_adapters:
        raise FULL_ON_QUANTISED(**said)
    if stored.storage is StorageRule.FP8:
        raise NO_TRAINING(**said)
    if setup.adapters.use_dora:
        raise (DORA_ON_GPTQ if stored.storage is StorageRule.GPTQ else DORA_ON_AWQ)(**said)
    raise LORA_ON_INT32(**said)


def _packed(model: Model, stored: Quantization, setup: TrainingSetup) -> TrainingSetup:
    """The run on weights already packed by bitsandbytes: the checkpoint's settings override the user's.

    Source: transformers 5.23, quantizers/auto.py, ``merge_quantization_configs`` (BitsAndBytesConfig is not in
    ``LOADING_ATTRIBUTES_CONFIG_TYPES``).
    """
    said = _said(model, stored, setup.adapters)
    if not setup.adapters.uses_adapters:
        raise FULL_ON_QUANTISED(**said)
    if stored.storage is StorageRule.BNB_8BIT:
        run = setup.replace(method=Method.LORA, load_in_8bit=True)
    else:
        run = setup.replace(
            method=Method.QLORA,
            load_in_8bit=False,
            bnb_4bit_quant_type=stored.quant_type,
            bnb_4bit_use_double_quant=stored.double_quant,
            bnb_4bit_quant_storage=stored.quant_storage,
        )
    if other := next(modules_packed_otherwise(model, run.adapters), None):
        raise PACKED_OTHERWISE(module=other, **said)
    return run


def loading_sentence(model: Model, adapters: Adapters, precision: Precision) -> str:
    """How the checkpoint's weights are loaded, in a sentence; empty if they are stored as plain floats.

    Source: as ``as_loaded``.
    """
    stored = model.quantization
    if stored is None:
        return ""
    if stored.can_dequantize:
        beside = (
            " LoRA on FP8 weights without dequantising them is not modelled yet."
            if stored.storage is StorageRule.FP8 and adapters.uses_adapters
            else ""
        )
        return (
            f"The checkpoint's {stored.name} weights are loaded with {stored.config_class}(dequantize=True), so they "
            f"are "
            f"{precision.dtype} on the GPU. Memory for dequantising while loading is not counted.{beside}"
        )
    run = "LoRA over 8-bit weights" if adapters.has_8bit_base else "QLoRA"
    double = (
        "" if adapters.has_8bit_base or stored.double_quant else ", without double quantisation"
    )
    return f"The checkpoint's weights are stored as {stored.name} and stay quantised: the run is {run}{double}."


def _said(model: Model, stored: Quantization, adapters: Adapters) -> dict[str, object]:
    is_packed = stored.storage in (StorageRule.BNB_4BIT, StorageRule.BNB_8BIT)
    original = "its original 16-bit checkpoint"
    lora = "method lora" + " without load_in_8bit" * (adapters.has_8bit_base and not is_packed)
    return {
        "model": model.hub_id or "this model",
        "name": stored.name,
        "config_class": stored.config_class,
        "instead": f"{lora}, or {original}" if is_packed or stored.can_dequantize else original,
    }
