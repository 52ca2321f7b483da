"""InternLM 3: Llama's layer; its class is the repository's own.

Source: the repository's own modeling_internlm3.py.
"""

from __future__ import annotations

from estimator.families.config_class import ConfigClass
from estimator.families.family import Family
from estimator.families.known.llama import LLAMA_LAYER
from estimator.families.reader import Config


def _biases(read: Config) -> tuple[bool, bool, bool]:
    """``InternLM3Config.attribute_map``: the names of the file, and those that transformers saves."""
    output = read.flag(read.has("bias", "mlp_bias") or "bias", default=False)
    attention = read.flag(read.has("qkv_bias", "attention_bias") or "bias", default=False)
    return attention, output, output


FAMILIES = (
    Family(
        model_type="internlm3",
        config=ConfigClass(biases=_biases),
        prefix="InternLM3",
        layer=LLAMA_LAYER,
        like="llama",
    ),
)
