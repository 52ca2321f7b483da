"""Questions as objects: read from JSON or YAML, and written back. One sentence for each thing that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator.plan.question import TRIED, Offer, Question, TokenLengths
from estimator.sources import catalog
from estimator.tools.defaults import TOOLS
from estimator.tools.meant import meant_keys
from estimator.tools.parsed import decoded
from estimator.tools.reading.yaml_text import read_yaml
from estimator.values.json_text import read_object
from estimator.values.keys import BY_NAME
from estimator.values.kinds import near, one_of
from estimator.values.methods import Method
from estimator.values.refusals import InputError, show

OFFER_KEYS = (
    "gpu",
    "most",
    "owned",
    "usd_per_gpu_hour",
    "provider",
    "region",
    "commitment",
    "gpus_per_node",
    "spot_share",
    "interruptions_per_hour",
    "checkpoint_hours",
    "restart_hours",
)
QUESTION_KEYS = (
    "model",
    "cards",
    "examples",
    "epochs",
    "lengths",
    "context",
    "rows",
    "effective_batch",
    "methods",
    "lora_r",
    "deadline_hours",
    "budget_usd",
    "tool",
    "keys",
    "try",
    "micro_batches",
)
OWN = frozenset(
    {
        "model",
        "gpu",
        "tool",
        "method",
        "lora_r",
        "num_gpus",
        "gpus_per_node",
        "max_length",
        "padded",
        "packing",
        "padding_free",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_examples",
        "num_train_epochs",
        "mean_tokens_per_example",
        "usd_per_gpu_hour",
    }
)
"""Keys of a setup that the question says in its own words, or that the answer chooses."""
IN_A_QUESTION: Mapping[str, str] = {
    "gpu": "cards",
    "num_gpus": "cards",
    "usd_per_gpu_hour": "cards",
    "method": "methods",
    "max_length": "context",
    "padded": "rows",
    "packing": "rows",
    "padding_free": "rows",
    "per_device_train_batch_size": "micro_batches",
    "gradient_accumulation_steps": "effective_batch",
    "num_train_examples": "examples",
    "num_train_epochs": "epochs",
    "mean_tokens_per_example": "lengths",
}
"""A question's word for a key of a setup."""
NOT_TRIED = OWN | {"objective", "model_class"}


def question_of_text(text: str | bytes, name: str) -> Question:
    r"""The question in a JSON or YAML file.

    >>> question_of_text("model: Qwen/Qwen3-8B\ncards: [{gpu: L4, most: 2}]\n", "q.yaml").offers[0].counts
    (1, 2)
    """
    return question_of(object_of_text(text, name))


def object_of_text(text: str | bytes, name: str) -> dict[str, object]:
    """The object in a JSON or YAML file."""
    plain = decoded(text, name)
    if plain.lstrip().startswith("{"):
        return read_object(plain, name)
    return _nested((key.path, key.value) for key in read_yaml(plain, name).keys)


def _nested(pairs: Any) -> dict[str, object]:
    """Paths and values as nested objects; a level whose keys are 0, 1, 2 … is a list."""
    root: dict[str, Any] = {}
    for path, value in pairs:
        level = root
        for part in path[:-1]:
            level = level.setdefault(part, {})
            if not isinstance(level, dict):
                raise InputError(f"{'.'.join(path)} is given twice, in two ways.")
        level[path[-1]] = value
    return {key: _with_lists(value) for key, value in root.items()}


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(part) for key, part in value.items()}
    numbers = [str(place) for place in range(len(inner))]
    return list(inner.values()) if inner and list(inner) == numbers else inner


def question_of(given: Mapping[str, object]) -> Question:
    """The question of an object, as ``question_object`` writes it; ``InputError`` has one sentence about what is wrong.

        model             a Hub id, or a list of them
        cards             a list of cards that can be had: {gpu, most, owned, usd_per_gpu_hour, provider, region,
                          commitment, gpus_per_node, spot_share, interruptions_per_hour, checkpoint_hours,
                          restart_hours}; or a name
        examples, epochs  how much is trained on
        lengths           tokens of the examples: {p50: …, p90: …, max: …}, {mean: …, max: …}, or a list of counts
        context, rows, effective_batch, methods, lora_r, deadline_hours, budget_usd, tool, keys, try, micro_batches

    >>> asked = question_of({"model": "Qwen/Qwen3-8B", "cards": ["L4"], "lengths": {"mean": 300, "max": 2048}})
    >>> asked.row_tokens, asked.mean_tokens
    (2048, 300)
    """
    _known(given, QUESTION_KEYS, "a question")
    models = given.get("model")
    listed = models if isinstance(models, list) else [models] if models is not None else []
    said: dict[str, Any] = {
        "models": tuple(listed),
        "offers": tuple(map(_offer, as_list(given["cards"], "cards") if "cards" in given else [])),
    }
    plain: Mapping[str, tuple[str, Callable[[object, str], object]]] = {
        "examples": ("num_train_examples", as_whole),
        "epochs": ("num_train_epochs", as_number),
        "lengths": ("lengths", lambda value, _: _lengths(value)),
        "context": ("context", as_whole),
        "rows": ("rows", _word),
        "effective_batch": ("effective_batch", as_whole),
        "methods": ("methods", lambda value, _: tuple(map(_method, as_list(value, "methods")))),
        "lora_r": ("ranks", _wholes),
        "deadline_hours": ("deadline_hours", as_number),
        "budget_usd": ("budget_usd", as_number),
        "tool": ("tool", lambda value, _: _tool(value)),
        "keys": ("keys", lambda value, _: _keys(value)),
        "try": ("tried", lambda value, _: _tried(value)),
        "micro_batches": ("micro_batches", _wholes),
    }
    for key, (name, read) in plain.items():
        if given.get(key) is not None:
            said[name] = read(given[key], key)
    return Question(**said)


def question_object(question: Question) -> dict[str, object]:
    """The question as an object of JSON types, with what differs from the defaults; ``question_of`` reads it back.

    A question whose cards are the catalogue's; a card of one's own is written by its name and bytes.

    >>> asked = question_of({"model": "Qwen/Qwen3-8B", "cards": [{"gpu": "L4", "owned": True}]})
    >>> question_object(asked)
    {'model': ['Qwen/Qwen3-8B'], 'cards': [{'gpu': 'L4', 'owned': True}]}
    """
    usual = _plain(Question(models=question.models, offers=question.offers))
    changed = {key: value for key, value in _plain(question).items() if value != usual[key]}
    return {
        "model": list(question.models),
        "cards": [*map(_write_offer, question.offers)],
        **changed,
    }


def _plain(question: Question) -> dict[str, object]:
    return {
        "examples": question.num_train_examples,
        "epochs": question.num_train_epochs,
        "lengths": _write_lengths(question.lengths),
        "context": question.context,
        "rows": question.rows,
        "effective_batch": question.effective_batch,
        "methods": [method.value for method in question.methods],
        "lora_r": list(question.ranks),
        "deadline_hours": question.deadline_hours,
        "budget_usd": question.budget_usd,
        "tool": question.tool,
        "keys": dict(question.keys),
        "try": {
            key: list(values) for key, values in question.tried.items() if values != TRIED.get(key)
        },
        "micro_batches": list(question.micro_batches),
    }


def _write_offer(offer: Offer) -> dict[str, object]:
    usual = Offer(gpu=offer.gpu)
    named: Mapping[str, str] = {"owned": "is_owned"}
    written: dict[str, object] = {"gpu": offer.gpu.name_in_a_setup}
    for key in OFFER_KEYS[1:]:
        name = named.get(key, key)
        if getattr(offer, name) != getattr(usual, name):
            written[key] = getattr(offer, name)
    return written


def _write_lengths(lengths: TokenLengths) -> dict[str, object]:
    if not lengths.quantiles:
        return {"mean": lengths.mean, "max": lengths.longest}
    named: dict[str, object] = {
        f"p{100 * share:.10g}": tokens for share, tokens in lengths.quantiles if share < 1
    }
    return {**named, "max": lengths.longest, "mean": lengths.mean}


def _known(given: Mapping[str, object], keys: Sequence[str], what: str) -> None:
    for name in given:
        if name not in keys:
            meant = near(name, keys)
            hint = f"did you mean {one_of(meant)}?" if meant else f"it has {', '.join(keys)}."
            if not meant and keys is QUESTION_KEYS:
                hint = _of_a_setup(name) or hint
            raise InputError(f"{show(name)} is not a key of {what}; {hint}")


def _of_a_setup(name: str) -> str:
    """Where a question has what a setup, or a tool, has under this name; empty if nowhere."""
    ours = next(iter(meant_keys(name, (*BY_NAME, "model", "gpu"))), "")
    if ours in IN_A_QUESTION:
        return f"did you mean {IN_A_QUESTION[ours]}?"
    return f"say {ours} in keys." if ours and ours not in OWN else ""


def _offer(given: object) -> Offer:
    if isinstance(given, str):
        given = {"gpu": given}
    if not isinstance(given, Mapping):
        raise InputError(f"a card is a name or {{gpu: …, most: …}}, not {show(given)}.")
    _known(given, OFFER_KEYS, "a card")
    name = given.get("gpu")
    if not isinstance(name, str):
        raise InputError("a card needs its name; give gpu.")
    meant = catalog.gpus_meant(name)
    said: dict[str, Any] = {"gpu": catalog.gpu(name)}
    if meant is not None:
        said["most"] = meant.number
        said |= {"gpus_per_node": meant.of_a_machine} if meant.of_a_machine else {}
    readers: Mapping[str, tuple[str, Callable[[object, str], object]]] = {
        "most": ("most", as_whole),
        "owned": ("is_owned", _flag),
        "usd_per_gpu_hour": ("usd_per_gpu_hour", as_number),
        "provider": ("provider", _word),
        "region": ("region", _word),
        "commitment": ("commitment", _word),
        "gpus_per_node": ("gpus_per_node", as_whole),
        "spot_share": ("spot_share", as_number),
        "interruptions_per_hour": ("interruptions_per_hour", as_number),
        "checkpoint_hours": ("checkpoint_hours", as_number),
        "restart_hours": ("restart_hours", as_number),
    }
    for key, (field, read) in readers.items():
        if given.get(key) is not None:
            said[field] = read(given[key], key)
    return Offer(**said)


def _lengths(given: object) -> TokenLengths:
    if isinstance(given, list):
        return TokenLengths.counted([as_whole(count, "lengths") for count in given])
    if not isinstance(given, Mapping):
        raise InputError("lengths are percentiles, mean and max, or a list of token counts.")
    longest = given.get("max", given.get("p100"))
    if longest is None:
        raise InputError("lengths need max, the tokens of the longest example: it decides memory.")
    quantiles: dict[float, int] = {}
    for name, value in given.items():
        if name in ("max", "mean"):
            continue
        found = re.fullmatch(r"p(\d{1,3}(?:\.\d{1,6})?)", str(name))
        if not found:
            raise InputError(
                f"{show(name)} is no length; give mean, max, or percentiles such as p90."
            )
        quantiles[float(found[1]) / 100] = as_whole(value, str(name))
    most = as_whole(longest, "max")
    if not quantiles:
        mean = as_number(given["mean"], "mean") if "mean" in given else float(most)
        return TokenLengths(mean=mean, longest=most)
    read = TokenLengths.of_quantiles({**quantiles, 1.0: most})
    if "mean" not in given:
        return read
    mean = as_number(given["mean"], "mean")
    least, greatest = read.possible_means
    if len(quantiles) <= MOST_BY_HAND and not least <= mean <= greatest:
        raise InputError(
            f"with these percentiles the mean is from {least:,.0f} to {greatest:,.0f} tokens, "
            f"not {show(given['mean'])}; correct it, or leave it out."
        )
    return TokenLengths(mean=mean, longest=most, quantiles=read.quantiles)


MOST_BY_HAND = 20
"""Percentiles that are given by hand at most: ours. Those of a count fall on whole examples, so its mean may lie
outside their steps."""


def _keys(given: object) -> dict[str, object]:
    if not isinstance(given, Mapping):
        raise InputError("keys are keys of a setup with their values, such as {dtype: bfloat16}.")
    for name in given:
        if name in OWN:
            raise InputError(
                f"{name} is not one of keys: the question says it itself, or the answer does."
            )
    return {str(name): value for name, value in given.items()}


def _tried(given: object) -> dict[str, tuple[object, ...]]:
    if not isinstance(given, Mapping):
        raise InputError(
            "try has keys of a setup with lists of values, such as {optim: [adamw_8bit]}."
        )
    tried: dict[str, tuple[object, ...]] = dict(TRIED)
    for name, values in given.items():
        if name in NOT_TRIED or name not in BY_NAME:
            raise InputError(
                f"{show(name)} cannot be tried; name a key of a setup that the question lacks."
            )
        tried[str(name)] = tuple(as_list(values, str(name)))
    return tried


def _method(given: object) -> Method:
    words = [method.value for method in Method]
    if given not in words:
        raise InputError(f"methods has {show(given)}; take {one_of(words)}.")
    return Method(given)


def _tool(given: object) -> str:
    if given not in TOOLS:
        raise InputError(f"tool must be one of {one_of(TOOLS)}, not {show(given)}.")
    return str(given)


def as_list(given: object, name: str) -> list[object]:
    """A list of at least one; a single value is a list of itself."""
    found = given if isinstance(given, list) else [given]
    if not found:
        raise InputError(f"{name} is empty; give at least one.")
    return found


def _wholes(given: object, name: str) -> tuple[int, ...]:
    return tuple(as_whole(number, name) for number in as_list(given, name))


def as_whole(given: object, name: str) -> int:
    """A whole number from 1 up."""
    if type(given) is not int or given < 1:
        raise InputError(f"{name} must be a whole number from 1 up, not {show(given)}.")
    return given


def as_number(given: object, name: str) -> float:
    """A number from 0 up."""
    if type(given) not in (int, float) or not 0 <= given < float("inf"):  # type: ignore[operator]
        raise InputError(f"{name} must be a number from 0 up, not {show(given)}.")
    return float(given)  # type: ignore[arg-type]


def _flag(given: object, name: str) -> bool:
    if type(given) is not bool:
        raise InputError(f"{name} must be true or false, not {show(given)}.")
    return given


def _word(given: object, name: str) -> str:
    if not isinstance(given, str):
        raise InputError(f"{name} must be a word, not {show(given)}.")
    return given
