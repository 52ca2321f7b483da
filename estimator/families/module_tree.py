"""The module tree of a model, named and ordered as transformers' class has it, with the tensors that each module holds.

``parameters.py`` knows what holds weights and how many; here stands where it hangs: full names, the order of
definition, the modules that hold nothing (activations, dropouts), and the buffers. Whoever walks a model child by
child, as accelerate does to place it on devices, needs these. Read in transformers 5.23, ``models/*/modeling_*.py``;
compared with the real classes on the meta device, family by family, in tests/verify.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod

from estimator.families.counts import layer_kind, layer_modules, outer_modules
from estimator.families.layer_kinds import DELTA, DENSE, GLOBAL, REUSING, UNTURNED
from estimator.families.modules import Bare, Linear, Module, weight_shapes
from estimator.families.parameters import check_modelled
from estimator.values.specs import Model


class Kind(Enum):
    """What decides the width of a tensor's elements."""

    WEIGHT = "made in the model's dtype, as are buffers without a dtype of their own"
    MATRIX = "the weight of a linear layer: made in the model's dtype, unless a quantiser packs it"
    FLOAT32 = "a buffer that is float32 whatever the model's dtype"
    BOOL = "a mask"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter or a buffer."""

    name: str
    elements: int
    kind: Kind
    is_buffer: bool = False
    """One beside children, which no split of the module places."""


@dataclass(frozen=True, slots=True)
class Node:
    """A module with its own tensors and its children; or one parameter, where a module falls apart."""

    name: str
    """From the root on: ``model.layers.0.mlp``; empty: the root."""
    class_name: str = ""
    """Of modules with children; empty: a leaf's, which decides nothing."""
    tensors: tuple[Tensor, ...] = ()
    children: tuple[Node, ...] = ()
    is_parameter: bool = False

    @property
    def parts(self) -> tuple[Node, ...]:
        """What it falls into where it is split: its own parameters, then its children; buffers are left out.

        Only the experts of a mixture have both, and Gemma 4's routers.
        """
        stacks = (
            one
            for one in self.tensors
            if self.children and one.kind is Kind.WEIGHT and not one.is_buffer
        )
        alone = (
            Node(f"{self.name}.{one.name}", tensors=(one,), is_parameter=True) for one in stacks
        )
        return (*alone, *self.children)

    def walk(self) -> Iterator[Node]:
        """Itself and all below it, in the order of ``named_modules``."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a class writes its tree.

    ``name:Class(children)``, children in the order of definition; ``@`` is the family's prefix of class names; ``*`` a
    layer, once for each, ``dense*`` one that ``layer_kind`` calls so; ``?`` a module that only some configs have, those
    whose table in ``parameters.py`` names it; ``#`` whatever that table has below.
    """

    prefix: str
    tree: str
    splits_packed_experts: bool = False
    """Stacked experts are taken apart before they are packed in 4 or 8 bits."""


BARE_VECTORS = frozenset(
    {"A_log", "D", "correct_output_scale", "dt_bias", "per_expert_scale", "scale", "sinks"}
)
"""Parameters of one dimension that stand in their parent's tables by themselves, without a module."""

_ATTENTION = "self_attn:@Attention(q_proj k_proj v_proj o_proj q_norm? k_norm?)"
_GATED = "mlp:@MLP(gate_proj up_proj down_proj act_fn)"
_PLAIN = "mlp:@MLP(up_proj down_proj act_fn)"
_FUSED = "mlp:@MLP(gate_up_proj down_proj activation_fn)"
_SPARSE = "mlp:@SparseMoeBlock(gate experts:@Experts(act_fn))"
_SPARSE_GATE_LAST = "mlp:@SparseMoeBlock(experts:@Experts(act_fn) gate)"
_SHARED = (
    "mlp:@SparseMoeBlock(gate experts:@Experts(act_fn) "
    "shared_expert:@MLP(gate_proj up_proj down_proj act_fn) shared_expert_gate)"
)
_SHARED_EXPERTS = "mlp:@MoE(experts:@Experts(act_fn) gate shared_experts:@MLP(gate_proj up_proj down_proj act_fn))"
_LATENT = (
    "self_attn:@Attention(q_proj? q_a_proj? q_a_layernorm? q_b_proj? kv_a_proj_with_mqa kv_a_layernorm kv_b_proj "
    "o_proj)"
)
_SPLIT_PROJECTIONS = "norm out_proj in_proj_qkv in_proj_z in_proj_b in_proj_a"
_TWO_NORMS = "input_layernorm post_attention_layernorm"
_FOUR_NORMS = f"{_TWO_NORMS} pre_feedforward_layernorm post_feedforward_layernorm"
_GPT2_MLP = "mlp:@MLP(c_fc c_proj act dropout)"


def _decoder(layer: str, model: str = "@Model") -> str:
    """As Llama has it."""
    inside = f"embed_tokens layers:ModuleList(*:@DecoderLayer({layer})) norm rotary_emb"
    return f"model:{model}({inside}) lm_head"


def _partly_dense(attention: str, mixture: str) -> str:
    """As DeepSeek has it: the first layers have one MLP, the others a mixture of experts."""
    sparse = f"*:@DecoderLayer({attention} {mixture} {_TWO_NORMS})"
    dense = f"dense*:@DecoderLayer({attention} {_GATED} {_TWO_NORMS})"
    inside = f"embed_tokens layers:ModuleList({sparse} {dense}) norm rotary_emb"
    return f"model:@Model({inside}) lm_head"


def _olmo() -> str:
    """As Llama has it; the last layer, where the head is tied, for itself."""
    layer = f"@DecoderLayer({_ATTENTION} {_GATED} {_TWO_NORMS})"
    return f"model:@Model(embed_tokens layers:ModuleList(*:{layer} last*:{layer}) norm rotary_emb) lm_head"


def _lfm2() -> str:
    """As LFM2 has it: layers with attention, and layers with a short convolution."""
    rest = "feed_forward:@MLP(w1 w3 w2) operator_norm ffn_norm"
    attention = "self_attn:@Attention(q_proj k_proj v_proj out_proj q_layernorm k_layernorm)"
    convolution = "conv:@ShortConv(conv in_proj out_proj)"
    layers = f"*:@DecoderLayer({attention} {rest}) conv*:@DecoderLayer({convolution} {rest})"
    return (
        f"model:@Model(embed_tokens layers:ModuleList({layers}) rotary_emb embedding_norm) lm_head"
    )


def _granite_hybrid() -> str:
    """As Granite 4.0 has it: layers with attention, layers with a mixer; rotary only if the config asks for it."""
    rest = (
        f"{_TWO_NORMS} block_sparse_moe?:@MoE(router experts:@Experts(act_fn)) "
        "shared_mlp:@MLP(activation input_linear output_linear)"
    )
    mixer = "mamba:@MambaLayer(act conv1d in_proj norm out_proj)"
    layers = f"*:@DecoderLayer({rest} {_ATTENTION}) mamba*:@DecoderLayer({rest} {mixer})"
    return f"model:@Model(embed_tokens layers:ModuleList({layers}) norm rotary_emb?) lm_head"


def _delta_net(inside: str, mlp: str) -> str:
    """As Qwen3.5 has it: layers with attention, and layers with a gated delta-net."""
    linear = f"linear_attn:@GatedDeltaNet(conv1d {inside})"
    layers = " ".join(
        f"{kind}*:@DecoderLayer({mixer} {mlp} {_TWO_NORMS})"
        for kind, mixer in (("", _ATTENTION), (DELTA, linear))
    )
    return f"model:@Model(embed_tokens layers:ModuleList({layers}) norm rotary_emb) lm_head"


def _nemotron_h() -> str:
    """As Nemotron-H has it: one mixer a layer, of four kinds."""
    mixers = {
        "": "Attention(q_proj k_proj v_proj o_proj)",
        "mamba": "Mamba2Mixer(act conv1d in_proj norm out_proj)",
        "mlp": "MLP(up_proj down_proj act_fn)",
        "moe": "MoE(experts:@Experts(act_fn) gate shared_experts:@MLP(up_proj down_proj act_fn) "
        "fc1_latent_proj fc2_latent_proj)",
    }
    layers = " ".join(f"{kind}*:@Block(norm mixer:@{mixer})" for kind, mixer in mixers.items())
    return f"model:@Model(embeddings layers:ModuleList({layers}) norm_f) lm_head"


def _llama4() -> str:
    """As Llama 4 has it: layers with experts or one MLP, with or without a norm of queries and keys."""
    attention = "self_attn:@TextAttention(q_proj k_proj v_proj o_proj qk_norm?)"
    mlp = "@TextMLP(gate_proj up_proj down_proj activation_fn)"
    mixture = f"@TextMoe(experts:@TextExperts(act_fn) router shared_expert:{mlp})"
    layers = " ".join(
        f"{kind}*:@TextDecoderLayer({attention} feed_forward:{inside} {_TWO_NORMS})"
        for kind, inside in (
            ("", mixture),
            (DENSE, mlp),
            (UNTURNED, mixture),
            (f"{DENSE}-{UNTURNED}", mlp),
        )
    )
    return f"model:@TextModel(embed_tokens layers:ModuleList({layers}) norm rotary_emb) lm_head"


def _gemma4() -> str:
    """As Gemma 4 has it: layers with and without a window, with and without keys and values of their own."""
    own = "q_proj q_norm k_norm v_norm k_proj v_proj? o_proj"
    rest = (
        f"{_GATED} {_FOUR_NORMS} act_fn? per_layer_input_gate? per_layer_projection? "
        "post_per_layer_input_norm? router?:@TextRouter(norm proj) experts?:@TextExperts(act_fn) "
        "post_feedforward_layernorm_1? post_feedforward_layernorm_2? pre_feedforward_layernorm_2?"
    ).replace("@MLP", "@TextMLP")
    layers = " ".join(
        f"{kind}*:@TextDecoderLayer(self_attn:@TextAttention({inside}) {rest})"
        for kind, inside in (
            ("", own),
            (GLOBAL, own),
            (REUSING, "q_proj q_norm o_proj"),
            (f"{GLOBAL}-{REUSING}", "q_proj q_norm o_proj"),
        )
    )
    return (
        f"model:@TextModel(embed_tokens layers:ModuleList({layers}) norm rotary_emb embed_tokens_per_layer? "
        "per_layer_model_projection? per_layer_projection_norm?) lm_head"
    )


def _gemma3n() -> str:
    """As Gemma 3n has it: layers with and without keys and values of their own; projections for each other stream."""
    rest = (
        f"{_GATED} {_FOUR_NORMS} act_fn altup:@TextAltUp(correction_coefs prediction_coefs modality_router "
        "router_norm) laurel:@TextLaurelBlock(linear_left linear_right post_laurel_norm) per_layer_input_gate "
        "per_layer_projection post_per_layer_input_norm"
    ).replace("@MLP", "@TextMLP")
    layers = " ".join(
        f"{kind}*:@TextDecoderLayer(self_attn:@TextAttention({inside}) {rest})"
        for kind, inside in (
            ("", "q_proj q_norm k_proj v_proj k_norm v_norm o_proj"),
            (REUSING, "q_proj q_norm o_proj"),
        )
    )
    return (
        f"model:@TextModel(embed_tokens layers:ModuleList({layers}) norm rotary_emb embed_tokens_per_layer "
        "per_layer_model_projection per_layer_projection_norm altup_projections:ModuleList(#) "
        "altup_unembed_projections:ModuleList(#)) lm_head"
    )


def _transformer(outer: str) -> str:
    """As GPT-2 has it."""
    return f"transformer:@Model({outer}) lm_head"


_LLAMA = _decoder(f"{_ATTENTION} {_GATED} {_TWO_NORMS}")
_LAYOUTS: Mapping[str, _Layout] = {
    "apertus": _Layout(
        "Apertus", _decoder(f"{_ATTENTION} {_PLAIN} attention_layernorm feedforward_layernorm")
    ),
    "arcee": _Layout("Arcee", _decoder(f"{_ATTENTION} {_PLAIN} {_TWO_NORMS}")),
    "bloom": _Layout(
        "Bloom",
        _transformer(
            "word_embeddings word_embeddings_layernorm h:ModuleList(*:@Block(input_layernorm "
            "self_attention:@Attention(query_key_value dense attention_dropout) post_attention_layernorm "
            "mlp:@MLP(dense_h_to_4h gelu_impl dense_4h_to_h))) ln_f"
        ),
    ),
    "cohere": _Layout("Cohere", _decoder(f"{_ATTENTION} {_GATED} input_layernorm")),
    "cohere2": _Layout("Cohere2", _decoder(f"{_ATTENTION} {_GATED} input_layernorm")),
    "deepseek_v2": _Layout(
        "DeepseekV2", _partly_dense(_LATENT, _SHARED_EXPERTS.replace("@MoE", "@Moe"))
    ),
    "deepseek_v3": _Layout("DeepseekV3", _partly_dense(_LATENT, _SHARED_EXPERTS)),
    "ernie4_5": _Layout("Ernie4_5", _LLAMA),
    "ernie4_5_moe": _Layout(
        "Ernie4_5_Moe",
        _partly_dense(
            _ATTENTION,
            "mlp:@SparseMoeBlock(gate:@TopKRouter(moe_statics) experts:@Experts(act_fn) "
            "shared_experts?:@MLP(gate_proj up_proj down_proj act_fn))",
        ),
    ),
    "exaone4": _Layout(
        "Exaone4",
        _decoder(f"{_ATTENTION} {_GATED} post_attention_layernorm post_feedforward_layernorm"),
    ),
    "falcon": _Layout(
        "Falcon",
        _transformer(
            "word_embeddings h:ModuleList(*:@DecoderLayer("
            "self_attention:@Attention(query_key_value dense attention_dropout) "
            "mlp:@MLP(dense_h_to_4h act dense_4h_to_h) "
            "ln_attn? ln_mlp? post_attention_layernorm? input_layernorm?)) ln_f rotary_emb"
        ),
    ),
    "falcon_h1": _Layout(
        "FalconH1",
        _decoder(
            "feed_forward:@MLP(gate_proj up_proj down_proj act_fn) "
            f"mamba:@Mixer(act conv1d in_proj norm out_proj) {_ATTENTION} input_layernorm pre_ff_layernorm"
        ).replace(" norm rotary_emb", " final_layernorm rotary_emb"),
    ),
    "gemma": _Layout("Gemma", _LLAMA),
    "gemma2": _Layout("Gemma2", _decoder(f"{_ATTENTION} {_GATED} {_FOUR_NORMS}")),
    "gemma3_text": _Layout(
        "Gemma3", _decoder(f"{_ATTENTION} {_GATED} {_FOUR_NORMS}", model="@TextModel")
    ),
    "gemma3n_text": _Layout("Gemma3n", _gemma3n()),
    "gemma4_text": _Layout("Gemma4", _gemma4()),
    "glm": _Layout("Glm", _decoder(f"{_ATTENTION} {_FUSED} {_TWO_NORMS}")),
    "glm4": _Layout(
        "Glm4",
        _decoder(f"{_ATTENTION} {_FUSED} {_TWO_NORMS} post_self_attn_layernorm post_mlp_layernorm"),
    ),
    "glm4_moe": _Layout("Glm4Moe", _partly_dense(_ATTENTION, _SHARED_EXPERTS)),
    "glm4_moe_lite": _Layout("Glm4MoeLite", _partly_dense(_LATENT, _SHARED_EXPERTS)),
    "gpt2": _Layout(
        "GPT2",
        _transformer(
            "wte wpe drop h:ModuleList(*:@Block(ln_1 attn:@Attention(c_attn c_proj attn_dropout resid_dropout) "
            f"ln_2 {_GPT2_MLP})) ln_f"
        ),
    ),
    "gpt_bigcode": _Layout(
        "GPTBigCode",
        _transformer(
            "wte wpe drop h:ModuleList(*:@Block(ln_1 attn:@Attention(c_attn c_proj resid_dropout) "
            f"ln_2 {_GPT2_MLP})) ln_f"
        ),
    ),
    "gpt_neox": _Layout(
        "GPTNeoX",
        "gpt_neox:@Model(embed_in emb_dropout layers:ModuleList(*:@Layer(input_layernorm post_attention_layernorm "
        "post_attention_dropout post_mlp_dropout attention:@Attention(query_key_value dense) "
        "mlp:@MLP(dense_h_to_4h dense_4h_to_h act))) final_layer_norm rotary_emb) lm_head",
    ),
    "gpt_oss": _Layout(
        "GptOss",
        _decoder(f"{_ATTENTION} mlp:@MLP(router experts) {_TWO_NORMS}"),
    ),
    "gptj": _Layout(
        "GPTJ",
        _transformer(
            "wte drop h:ModuleList(*:@Block(ln_1 "
            "attn:@Attention(attn_dropout resid_dropout k_proj v_proj q_proj out_proj) "
            "mlp:@MLP(fc_in fc_out act dropout))) ln_f"
        ),
    ),
    "granite": _Layout("Granite", _LLAMA),
    "granitemoe": _Layout(
        "GraniteMoe",
        _decoder(
            f"{_ATTENTION} {_TWO_NORMS} block_sparse_moe:@MoE(router experts:@Experts(act_fn))"
        ),
    ),
    "granitemoehybrid": _Layout("GraniteMoeHybrid", _granite_hybrid()),
    "hunyuan_v1_dense": _Layout(
        "HunYuanDenseV1",
        _decoder(
            "self_attn:@Attention(q_proj k_proj v_proj o_proj query_layernorm key_layernorm) "
            f"{_GATED} {_TWO_NORMS}"
        ),
    ),
    # the repository's own class, written as Llama's (the only one that tests/verify cannot build)
    "internlm3": _Layout("InternLM3", _LLAMA),
    "lfm2": _Layout("Lfm2", _lfm2()),
    "llama": _Layout("Llama", _LLAMA),
    "llama4_text": _Layout("Llama4", _llama4(), splits_packed_experts=True),
    "ministral3": _Layout("Ministral3", _LLAMA),
    "mistral": _Layout("Mistral", _LLAMA),
    "mixtral": _Layout("Mixtral", _decoder(f"{_ATTENTION} {_SPARSE} {_TWO_NORMS}")),
    "mpt": _Layout(
        "Mpt",
        _transformer(
            "wte blocks:ModuleList(*:@Block(norm_1 attn:@Attention(Wqkv out_proj) norm_2 "
            "ffn:@MLP(up_proj act down_proj) resid_attn_dropout)) norm_f"
        ),
    ),
    "nemotron": _Layout("Nemotron", _decoder(f"{_ATTENTION} {_PLAIN} {_TWO_NORMS}")),
    "nemotron_h": _Layout("NemotronH", _nemotron_h()),
    "olmo": _Layout("Olmo", _olmo()),
    "olmo2": _Layout(
        "Olmo2",
        _decoder(f"{_ATTENTION} {_GATED} post_attention_layernorm post_feedforward_layernorm"),
    ),
    "olmo3": _Layout(
        "Olmo3",
        _decoder(f"{_ATTENTION} {_GATED} post_attention_layernorm post_feedforward_layernorm"),
    ),
    "olmoe": _Layout("Olmoe", _decoder(f"{_ATTENTION} {_SPARSE} {_TWO_NORMS}")),
    "opt": _Layout(
        "OPT",
        "model:@Model(decoder:@Decoder(embed_tokens embed_positions project_out? project_in? final_layer_norm? "
        "layers:ModuleList(*:@DecoderLayer(self_attn:@Attention(k_proj v_proj q_proj out_proj) activation_fn "
        "self_attn_layer_norm fc1 fc2 final_layer_norm)))) lm_head",
    ),
    "phi": _Layout(
        "Phi",
        "model:@Model(embed_tokens layers:ModuleList(*:@DecoderLayer("
        "self_attn:@Attention(q_proj k_proj v_proj dense q_layernorm? k_layernorm?) "
        "mlp:@MLP(activation_fn fc1 fc2) input_layernorm resid_dropout)) rotary_emb embed_dropout final_layernorm) "
        "lm_head",
    ),
    "phi3": _Layout(
        "Phi3",
        _decoder(
            f"self_attn:@Attention(o_proj qkv_proj) {_FUSED} {_TWO_NORMS} "
            "resid_attn_dropout resid_mlp_dropout"
        ),
    ),
    "phimoe": _Layout(
        "Phimoe",
        _decoder(f"{_ATTENTION} mlp:@SparseMoeBlock(router experts:@Experts(act_fn)) {_TWO_NORMS}"),
    ),
    "qwen2": _Layout("Qwen2", _LLAMA),
    "qwen2_moe": _Layout("Qwen2Moe", _decoder(f"{_ATTENTION} {_SHARED} {_TWO_NORMS}")),
    "qwen3": _Layout("Qwen3", _LLAMA),
    "qwen3_5_moe_text": _Layout(
        "Qwen3_5Moe", _delta_net(_SPLIT_PROJECTIONS, _SHARED).replace("@Model", "@TextModel")
    ),
    "qwen3_5_text": _Layout(
        "Qwen3_5", _delta_net(_SPLIT_PROJECTIONS, _GATED).replace("@Model", "@TextModel")
    ),
    "qwen3_moe": _Layout("Qwen3Moe", _decoder(f"{_ATTENTION} {_SPARSE_GATE_LAST} {_TWO_NORMS}")),
    "qwen3_next": _Layout(
        "Qwen3Next", _delta_net("in_proj_qkvz in_proj_ba norm out_proj", _SHARED)
    ),
    "seed_oss": _Layout("SeedOss", _LLAMA),
    "smollm3": _Layout("SmolLM3", _LLAMA),
    "stablelm": _Layout(
        "StableLm",
        _decoder(
            "self_attn:@Attention(q_proj k_proj v_proj o_proj "
            "q_layernorm?:@LayerNormPerHead(norms:ModuleList(#)) k_layernorm?:@LayerNormPerHead(norms:ModuleList(#))) "
            f"{_GATED} input_layernorm post_attention_layernorm? dropout"
        ),
    ),
    "starcoder2": _Layout(
        "Starcoder2", _decoder(f"{_ATTENTION} mlp:@MLP(c_fc c_proj act) {_TWO_NORMS}")
    ),
}


@lru_cache(maxsize=64)
def module_tree(model: Model) -> Node:
    """The root of the model's tree, as ``named_children`` would walk it; tensors in elements, whole model.

    A head that is tied stands there without a weight: the embedding has it.

    Leaves out: vision and audio towers; a rotary embedding's attention factor.
    Error: none; compared with the real class on the meta device in tests/verify (InternLM3: not, it has none).
    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, each module's ``__init__``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> [node.name for node in module_tree(TINY_LLAMA).walk()][:6]
    ['', 'model', 'model.embed_tokens', 'model.layers', 'model.layers.0', 'model.layers.0.self_attn']
    """
    check_modelled(model.model_type)
    return _Builder(model).root()


def splits_packed_experts(model: Model) -> bool:
    """Whether transformers makes other modules of its stacked experts before it packs them.

    Source: transformers 5.23, quantizers/base.py, ``MODULES_TO_PATCH_FOR_QUANTIZATION``.
    """
    return _LAYOUTS[model.model_type].splits_packed_experts


def layer_class(model: Model) -> str:
    """Class of the decoder layer, which is what ``_no_split_modules`` names in every family modelled (a name).

    Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py, ``_no_split_modules``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> layer_class(TINY_LLAMA)
    'LlamaDecoderLayer'
    """
    check_modelled(model.model_type)
    layout = _LAYOUTS[model.model_type]
    _, _, layer = layout.tree.partition("*:")
    return layer.partition("(")[0].replace("@", layout.prefix)


class _Builder:
    """Reads a layout beside the tables of ``parameters.py``."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.layout = _LAYOUTS[model.model_type]
        self.outer = {module.name: module for module in outer_modules(model)}
        self.layer: dict[str, Module] = {}
        """What the layer that is being written holds."""

    def root(self) -> Node:
        return Node("", children=self._children(_read(self.layout.tree), "", None))

    def _children(
        self, items: tuple[_Item, ...], above: str, in_layer: str | None
    ) -> tuple[Node, ...]:
        """``above``: the parent's full name; ``in_layer``: its name from the layer on, None outside."""
        nodes: list[Node] = []
        for item in items:
            if item.name == "*":
                nodes += self._layers(items, above)
            elif item.name.endswith("*"):
                continue
            elif item.name == "#":
                known = self.outer if in_layer is None else self.layer
                block = above.rpartition(".")[2] if in_layer is None else in_layer
                below = [name for name in known if name.startswith(f"{block}.")]
                nodes += (
                    Node(
                        f"{above}.{name.rpartition('.')[2]}",
                        tensors=_tensors(known[name]),
                    )
                    for name in below
                )
            else:
                name = f"{above}.{item.name}" if above else item.name
                within = None if in_layer is None else f"{in_layer}.{item.name}".lstrip(".")
                if not item.optional or self._exists(item.name, within):
                    nodes.append(self._node(item, name, within))
        return tuple(nodes)

    def _layers(self, items: tuple[_Item, ...], above: str) -> Iterator[Node]:
        kinds = {item.name.removesuffix("*"): item for item in items}
        for index in range(self.model.num_hidden_layers):
            self.layer = {module.name: module for module in layer_modules(self.model, index)}
            yield self._node(kinds[layer_kind(self.model, index)], f"{above}.{index}", "")

    def _exists(self, name: str, within: str | None) -> bool:
        if within is None:
            turns = not (self.model.no_rope_layers and all(self.model.no_rope_layers))
            return name in self.outer or (name == "rotary_emb" and turns)
        if within == "act_fn":  # of Gemma 4's layer, beside that of its MLP
            return bool(self.model.hidden_size_per_layer_input)
        return any(known == within or known.startswith(f"{within}.") for known in self.layer)

    def _node(self, item: _Item, name: str, within: str | None) -> Node:
        last = name.rpartition(".")[2]
        module = self.outer.get(last) if within is None else self.layer.get(within)
        bare = [
            (held, one.rpartition(".")[2] + suffix, shape)
            for one, held in self.layer.items()
            if one.rpartition(".")[0] == within
            for suffix, shape in zip(("", "_bias"), weight_shapes(held), strict=False)
        ]
        stacks = [
            Tensor(tensor, prod(shape), Kind.WEIGHT)
            for held, tensor, shape in bare
            if (isinstance(held, Bare) and held.stack) or tensor in BARE_VECTORS
        ]
        return Node(
            name,
            item.class_name.replace("@", self.layout.prefix),
            (*_tensors(module), *stacks, *_buffers(self.model, last)),
            self._children(item.items, name, within),
        )


def _tensors(module: Module | None) -> tuple[Tensor, ...]:
    if module is None:
        return ()
    # bitsandbytes' quantisers take what is of type nn.Linear or Conv1D itself, and Falcon's are of type FalconLinear:
    # transformers 5.23, integrations/bitsandbytes.py, replace_with_bnb_linear
    packed = (
        isinstance(module, Linear)
        and module.name != "lm_head"
        and not (module.own_class or module.is_last)
    )
    return tuple(
        Tensor(name, prod(shape), Kind.MATRIX if packed and name == "weight" else Kind.WEIGHT)
        for name, shape in zip(("weight", "bias"), weight_shapes(module), strict=False)
    )


def _buffers(model: Model, module: str) -> tuple[Tensor, ...]:
    """Buffers of the module with this name, shapes flattened.

    Source: transformers 5.23, each ``register_buffer`` of models/<model_type>/modeling_<model_type>.py.
    """
    rotary = model.qk_rope_head_dim or int(model.head_dim * model.partial_rotary_factor)
    positions = model.max_position_embeddings
    match model.model_type, module:
        case "gemma3n_text", "model":
            return tuple(
                Tensor(name, 1, Kind.WEIGHT, is_buffer=True)
                for name in ("per_layer_projection_scale", "per_layer_input_scale")
            )
        case "gemma3n_text", "altup":
            return (Tensor("router_input_scale", 1, Kind.WEIGHT, is_buffer=True),)
        case "gemma4_text", "rotary_emb":
            widths = (model.global_head_dim or rotary, rotary)
            return tuple(Tensor("inv_freq", it // 2, Kind.FLOAT32) for it in widths for _ in "12")
        case "gemma4_text", name if name.isdecimal():
            return (Tensor("layer_scalar", 1, Kind.WEIGHT, is_buffer=True),)
        case _, "rotary_emb":
            by_type = model.model_type in {"gemma3_text", "gemma3n_text", "olmo3"}
            copies = 2 * max(1, len(set(model.layer_types))) if by_type else 2
            frequencies = (rotary + 1) // 2
            return (Tensor("inv_freq", frequencies, Kind.FLOAT32),) * copies
        case "deepseek_v3", "gate":
            return (Tensor("e_score_correction_bias", model.num_experts, Kind.WEIGHT),)
        case "glm4_moe" | "glm4_moe_lite", "gate":
            return (Tensor("e_score_correction_bias", model.num_experts, Kind.FLOAT32),)
        case "falcon_h1", "mamba":
            assert model.state_space is not None
            return (
                Tensor(
                    "mup_vector", model.state_space.projected_width, Kind.WEIGHT, is_buffer=True
                ),
            )
        case "nemotron_h", "gate":
            return (Tensor("e_score_correction_bias", model.num_experts, Kind.FLOAT32),)
        case "ernie4_5_moe", "moe_statics":
            return (Tensor("e_score_correction_bias", model.num_experts, Kind.FLOAT32),)
        case "gptj", "attn":
            return (Tensor("embed_positions", positions * rotary, Kind.FLOAT32),)
        case "gpt_bigcode", "transformer":
            return (Tensor("bias", positions**2, Kind.BOOL),)
        case "gemma3n_text" | "gemma4_text", "embed_tokens_per_layer":
            return (Tensor("embed_scale", 1, Kind.WEIGHT),)
        case "gemma" | "gemma2" | "gemma3_text" | "gemma3n_text" | "gemma4_text", "embed_tokens":
            return (Tensor("embed_scale", 1, Kind.WEIGHT),)
        case "apertus", "act_fn":
            return (Tensor("beta", 1, Kind.WEIGHT), Tensor("eps", 1, Kind.WEIGHT))
        case _:
            return ()


# --- the notation ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Item:
    name: str
    class_name: str
    optional: bool
    items: tuple[_Item, ...]


@lru_cache(maxsize=64)
def _read(text: str) -> tuple[_Item, ...]:
    """The items of a layout.

    >>> [(one.name, one.class_name, len(one.items)) for one in _read("model:@Model(a b?:C(#)) lm_head")]
    [('model', '@Model', 2), ('lm_head', '', 0)]
    """
    return _read_items(iter(re.findall(r"[^\s()]+|[()]", text)))


def _read_items(words: Iterator[str]) -> tuple[_Item, ...]:
    items: list[_Item] = []
    for word in words:
        if word == ")":
            break
        if word == "(":
            opened = items.pop()
            items.append(_Item(opened.name, opened.class_name, opened.optional, _read_items(words)))
            continue
        name, _, class_name = word.partition(":")
        items.append(_Item(name.removesuffix("?"), class_name, name.endswith("?"), ()))
    return tuple(items)
