"""From a config.json to a model, or to one sentence that says what to do instead.

Configs from the Hub, pasted or dropped, take the same path. All are untrusted: nothing in them is executed, not even a
regular expression.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from estimator.families.hf_config import ignored_keys, model_from_config, text_parts
from estimator.families.loaded import tower_parameters
from estimator.families.model_tree import total_parameters
from estimator.families.registry import BEYOND, NotModelledError
from estimator.families.towers import with_towers
from estimator.families.vision_family import with_vision
from estimator.families.wrapped import uncounted_sentence
from estimator.resident.stored import checkpoint_bytes, stored_elements
from estimator.sources.quantization_config import quantization_of
from estimator.values.facets.adapters import Adapters
from estimator.values.json_text import read_object
from estimator.values.quantization import Quantization
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal, RefusedError, show
from estimator.values.specs import Model

CLOSE_ENOUGH = 0.001
"""The largest relative difference between the Hub's count and ours that is not reported: ours."""

MOST_KEYS = 8
"""Unknown keys that are named at most: ours."""


class Trouble(StrEnum):
    """Why there is no model; callers decide what to do from this alone."""

    BAD_ID = "bad_id"
    BAD_TOKEN = "bad_token"
    NOT_FOUND = "not_found"
    GATED = "gated"
    DISABLED = "disabled"
    NO_CONFIG = "no_config"
    UNREADABLE = "unreadable"
    NOT_A_DECODER = "not_a_decoder"
    NOT_MODELLED = "not_modelled"
    DOWN = "down"
    SLOW = "slow"
    RATE_LIMITED = "rate_limited"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the Hub reports about a repository besides its files; empty for a pasted config."""

    hub_id: str = ""
    """The id as the Hub spells it now."""
    license: str = "unknown"
    gated: str = "unknown"
    """``yes``, ``no`` or ``unknown``, as in the catalogue."""
    published_parameters: int | None = None
    """Elements that the Hub counts in the safetensors files; None: no such files, or no count."""
    pipeline_tag: str = ""
    origin: str = ""
    """The repository that it was derived from, by its own tags."""


UNKNOWN = About()


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """The result of looking up a model by its id or config: the model, or why there is none."""

    about: About = UNKNOWN
    model: Model | None = None
    trouble: Trouble | None = None
    problem: str = ""
    """If there is no model: what is wrong and what to do."""
    notes: tuple[str, ...] = ()
    """What the user must know about the model; the estimate repeats it among its assumptions."""
    left_out: str = ""
    """Parts of a multimodal model that the estimate omits: ``the vision tower and the projector``."""

    @property
    def stored_bytes(self) -> int | None:
        """Bytes of the weights as stored in the files; None if unknown."""
        return checkpoint_bytes(self.model) if self.model else None

    @property
    def parameters(self) -> int | None:
        """Our own count, in elements."""
        return _made_parameters(self.model) if self.model else None

    @property
    def sentences(self) -> tuple[str, ...]:
        """All sentences to show: the problem if any, then the notes."""
        return (self.problem, *self.notes) if self.problem else self.notes


def from_text(text: str | bytes, subject: str = "The config.json") -> HubModel:
    """The model of a pasted or dropped config.json.

    >>> from_text("<!DOCTYPE html>").problem
    'The config.json is a web page, not JSON; open the file on the Hub and copy it with its raw button.'
    """
    start = text[:200].lstrip()
    if start[:1] in {"<", b"<"}:
        return HubModel(
            trouble=Trouble.UNREADABLE,
            problem=f"{subject} is a web page, not JSON; open the file on the Hub and copy it with its raw button.",
        )
    try:
        config = read_object(text, subject, "the object of a config.json")
    except ValueError as problem:
        return HubModel(trouble=Trouble.UNREADABLE, problem=str(problem))
    return from_config(config)


def from_config(config: Mapping[str, object], about: About = UNKNOWN) -> HubModel:
    """The model of a config.json object, with its notes."""
    name = about.hub_id or "this config"
    if refused := _not_a_decoder(config, about, name):
        return HubModel(about=about, trouble=Trouble.NOT_A_DECODER, problem=_capital(str(refused)))
    try:
        model = model_from_config(config, about.hub_id)
        quantization = quantization_of(config)
        if (
            quantization is None
        ):  # which of a tower's linears are stored quantised is not known here
            model = with_vision(with_towers(model, config), config)
        written = _as_json(config)
    except NotModelledError as problem:
        refused = _not_modelled(config, about) if about.hub_id else problem
        return HubModel(about=about, trouble=Trouble.NOT_MODELLED, problem=str(refused))
    except ValueError as problem:
        where = f"The config.json of {name} cannot be used: " if about.hub_id else ""
        return HubModel(about=about, trouble=Trouble.UNREADABLE, problem=f"{where}{problem}")
    left_out = "" if model.towers else _left_out(config)
    notes = (
        *_text_notes(model, left_out),
        *_count_notes(model, quantization, about, left_out),
        *_key_notes(config),
    )
    found = replace(
        model,
        config=written,
        notes=notes,
        quantization=quantization,
        stored_width=_stored_width(config),
    )
    return HubModel(
        about=about,
        model=found,
        notes=(*_quantization_notes(quantization, about), *notes),
        left_out=left_out,
    )


def _as_json(config: Mapping[str, object]) -> str:
    try:
        return json.dumps(dict(config))
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "the config holds what JSON cannot; give the object of a config.json."
        ) from None


# --- what is no decoder -------------------------------------------------------------------------

# transformers 5.23, models/auto/modeling_auto.py: the model types of MODEL_FOR_MASKED_LM, SEQ_TO_SEQ_CAUSAL_LM,
# IMAGE_CLASSIFICATION, CTC and SPEECH_SEQ_2_SEQ that people train, less those that hold a decoder as text_config.
_NAMES = {
    "an encoder": """
        albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm eurobert
        flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm longformer luke megatron-bert mobilebert modernbert
        mpnet mra new nomic_bert nystromformer perceiver rembert roberta roberta-prelayernorm roc_bert roformer
        squeezebert xlm xlm-roberta xlm-roberta-xl xmod yoso""",
    "an encoder-decoder": """
        bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led longt5 m2m_100 marian mbart mt5 mvp
        nllb-moe pegasus pegasus_x plbart prophetnet seamless_m4t seamless_m4t_v2 switch_transformers t5 t5gemma
        t5gemma2 umt5""",
    "an image model": """
        beit bit clip convnext convnextv2 deit detr dinov2 dinov2_with_registers efficientnet mobilenet_v2 resnet sam
        sam2 segformer siglip siglip2 swin swinv2 timm_wrapper vit vit_mae yolos""",
    "a speech model": """
        hubert moonshine sew speech_to_text speecht5 unispeech wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm
        whisper""",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
CLASSIFIERS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "RewardModel",
)
"""How names of classes end whose head is not for words."""
_EMBEDDING_TAGS = frozenset({"feature-extraction", "sentence-similarity"})


NO_DECODER = Refusal(
    "{name} is {kind} ({named}); only decoders, which write text token by token, are estimated. Choose one of those.",
    NOT_MODELLED,
)
HEAD_FOR_CLASSES = Refusal(
    "{name} has a head for classes ({architecture}), not for words; only training with a language-model head is "
    "modelled. Choose the decoder that it was made from{origin}.",
    NOT_MODELLED,
)
EMBEDDING_MODEL = Refusal(
    "{name} is an embedding model{architecture}; only training with a language-model head is modelled, not on pooled "
    "vectors. Choose the decoder that it was made from{origin}.",
    NOT_MODELLED,
)
UNKNOWN_REPOSITORY = Refusal(
    "{name} is of the architecture {architecture}, which is not modelled{why}; choose a model of another one, or "
    "change the dimensions of the nearest known model.",
    NOT_MODELLED,
)


def _not_a_decoder(config: Mapping[str, object], about: About, name: str) -> RefusedError | None:
    """The refusal for a model that is not a decoder: what it is and what to choose; None for a decoder."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return None
    architecture = _architecture(config)
    if model_type in _KINDS:
        return NO_DECODER(name=name, kind=_KINDS[model_type], named=model_type)
    if architecture.endswith("ForMaskedLM"):
        return NO_DECODER(name=name, kind="an encoder", named=architecture)
    if config.get("is_encoder_decoder") is True and "text_config" not in config:
        return NO_DECODER(name=name, kind="an encoder-decoder", named=model_type[:100])
    origin = f", {about.origin}" * bool(about.origin)
    if architecture.endswith(CLASSIFIERS):
        return HEAD_FOR_CLASSES(name=name, architecture=architecture, origin=origin)
    bare = architecture.endswith("Model") and not architecture.endswith("LMHeadModel")
    if bare or about.pipeline_tag in _EMBEDDING_TAGS:
        what = f" ({architecture})" if architecture else ""
        return EMBEDDING_MODEL(name=name, architecture=what, origin=origin)
    return None


def _architecture(config: Mapping[str, object]) -> str:
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else ""
    return first[:100] if isinstance(first, str) else ""


def _not_modelled(config: Mapping[str, object], about: About) -> RefusedError:
    texts = config.get("text_config")
    inner = texts.get("model_type") if isinstance(texts, Mapping) else None
    code = (
        ", and code that lies in a repository is never run here" if config.get("auto_map") else ""
    )
    named = inner or config.get("model_type")
    because = f": {BEYOND[named]}" if isinstance(named, str) and named in BEYOND else ""
    return UNKNOWN_REPOSITORY(name=about.hub_id, architecture=show(named), why=f"{code}{because}")


# --- what is said of a model --------------------------------------------------------------------

_TOWERS = {
    "vision_config": "the vision tower",
    "vision_tower_config": "the vision tower",
    "audio_config": "the audio encoder",
}


def _left_out(config: Mapping[str, object]) -> str:
    """The parts of a wrapper besides its text model, in words; empty for a text-only model."""
    if "text_config" not in config and config.get("model_type") not in text_parts():
        return ""
    towers = dict.fromkeys(name for key, name in _TOWERS.items() if config.get(key) is not None)
    return (
        " and ".join([*towers, "what joins it to the text"]) if towers else "all but the text part"
    )


def _made_parameters(model: Model) -> int:
    """The note on the class created by default."""
    return total_parameters(model) + tower_parameters(model, Adapters())


def _text_notes(model: Model, left_out: str) -> tuple[str, ...]:
    if not left_out:
        return ()
    said = f"Only the text part ({model.model_type}) is estimated; left out: {left_out}."
    return tuple(filter(None, (said, uncounted_sentence(model.model_type))))


def _quantization_notes(quantization: Quantization | None, about: About) -> tuple[str, ...]:
    if quantization is None:
        return ()
    original = f", made from {about.origin}" * bool(about.origin)
    return (f"The weights are stored as {quantization.name}{original}.",)


def _count_notes(
    model: Model, quantization: Quantization | None, about: About, left_out: str
) -> tuple[str, ...]:
    """A note with both counts if the Hub's and ours differ."""
    ours, theirs = _made_parameters(model), about.published_parameters
    if not about.hub_id:
        return ()
    if theirs is None:
        return (
            f"The Hub has no count of {about.hub_id}, which has no safetensors files; ours, {ours:,}, is unchecked.",
        )
    if left_out:
        return (
            f"The Hub counts {theirs:,} parameters in all of {about.hub_id}; the text part has {ours:,}.",
        )
    if any(_close(theirs, count) for count in (ours, *_hub_counts(model, quantization))):
        return ()
    more = "more" if ours > theirs else "fewer"
    percent = 100 * abs(ours - theirs) / max(theirs, 1)
    copy = model.tie_word_embeddings and theirs - ours == model.vocab_size * model.hidden_size
    why = " Its files hold the tied head twice." if copy else ""
    return (
        f"The Hub counts {theirs:,} parameters in {about.hub_id}, we count {ours:,} ({percent:,.1f} % {more}); "
        f"the estimate is of ours.{why}",
    )


def _key_notes(config: Mapping[str, object]) -> tuple[str, ...]:
    """One sentence for each ignored key, up to a limit."""
    said = ignored_keys(config)
    left = len(said) - MOST_KEYS
    return (*said[:MOST_KEYS], f"{left} more of its keys are not known here.") if left > 1 else said


def _close(theirs: int, ours: int) -> bool:
    return abs(theirs - ours) <= CLOSE_ENOUGH * theirs


def _hub_counts(model: Model, quantization: Quantization | None) -> tuple[int, ...]:
    """Other counts that the Hub gives for quantised files: elements as stored, and of bitsandbytes each byte twice.

    Source: huggingface.js, hub/src/lib/parse-safetensors-metadata.ts, ``getQuantizationMultiplier``; the totals of
    unsloth's bnb-4bit repositories, which count the scales' bytes twice.
    """
    if quantization is None or quantization.storage is None:
        return ()
    stored = stored_elements(model, quantization)
    return (sum(stored.values()), sum(stored.values()) + stored.get(1, 0))


def _stored_width(config: Mapping[str, object]) -> int:
    """Bytes of an unquantised number: the config's dtype, or 16 bits."""
    texts = config.get("text_config")
    places = [config, texts] if isinstance(texts, Mapping) else [config]
    named = [place[key] for place in places for key in ("dtype", "torch_dtype") if place.get(key)]
    return 4 if "float32" in named[:1] else 2


def _capital(sentence: str) -> str:
    """Capitalises a sentence that starts with a word; an id keeps its spelling."""
    return "This" + sentence[4:] if sentence.startswith("this ") else sentence
