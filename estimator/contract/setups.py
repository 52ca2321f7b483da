"""Setups in the JSON contract: one flat object, read and written; links write the same keys.

Reading never raises: a `Reading` has the valid fields, and one sentence for each invalid one. `parse` raises instead.
Writing includes every key that differs from its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from estimator.families.adapters import adapter_parameters, default_targets
from estimator.families.custom import resized
from estimator.families.target_pattern import is_pattern, with_names
from estimator.families.vision_family import VISION, row_of_images
from estimator.parallel.combinations import SHARING_KEYS, refusal, refused, refused_by_run
from estimator.parallel.module_devices import why_left_on_the_cpu
from estimator.passes.prepared import as_trained
from estimator.sources import catalog
from estimator.sources.repository import from_config
from estimator.tools.defaults import TOOLS, version_of, with_defaults_of
from estimator.tools.meant import meant_keys
from estimator.values.declaration import rows
from estimator.values.facets.images import Images
from estimator.values.json_text import read_object
from estimator.values.keys import BY_NAME, DEFAULT, GPU_KEYS, KEYS
from estimator.values.kinds import not_modelled, one_of, plain
from estimator.values.later_keys import LATER, later_from_text, read_later
from estimator.values.parallelisms import NOT_PARALLEL, key_asks_for
from estimator.values.refusals import NOT_MODELLED, InputError, Refusal, about, show
from estimator.values.setup import KEY_FACET, TrainingSetup
from estimator.values.specs import (
    NETWORK,
    Gpu,
    Model,
    ModelClass,
    Optimizer,
)
from estimator.values.strategies import Strategy

FACTS = ("model", "gpu")
"""The keys that name facts; all others are rows of `keys.KEYS`."""

MODEL_MISSING = "model is missing; give a Hub id such as mistralai/Mistral-7B-v0.1, or the object of a config.json."
NONE_KNOWN: Mapping[str, Model] = MappingProxyType({})
LONGEST_NAME = 200
"""Maximum characters of a name. Our choice, above the Hub's 96."""
MOST_UNKNOWN = 100
"""Keys that are not ours, each of which is looked up and answered. Our choice: four times a TRL script's."""
MORE_UNKNOWN = "{more:,} more keys are not read; leave out what is not a key of a setup."
TRAINER = "trainer"
"""The tool that means the contract's own defaults, so objects without a tool keep their meaning."""
PRICE = "usd_per_gpu_hour"
"""A key of the setup that a custom GPU may also set."""
OWN_GPU = "own GPU"
"""The name of a GPU specified only by its memory."""

Fact = TypeVar("Fact", Model, Gpu | None)

_gpu_of: Callable[..., Gpu] = Gpu
_changed: Callable[..., Gpu] = replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An object as read: its valid fields, defaults for the invalid ones, and a sentence for each of these."""

    model: Model | None
    gpu: Gpu | None
    setup: TrainingSetup
    problems: tuple[str, ...]


# --- reading ------------------------------------------------------------------------------------


def read_setup(given: Mapping[str, object], known: Mapping[str, Model] = NONE_KNOWN) -> Reading:
    """Read a setup from an object of the contract.

    ``known``: models by id that are not in the catalogue, such as those that the caller fetched from the Hub.

    >>> reading = read_setup({"max_length": 2048, "lora_r": True})
    >>> reading.setup.batch.max_length
    2048
    >>> reading.problems[0]
    'lora_r must be a whole number from 1 to 8192, not true.'
    """
    problems: list[str] = []
    given = _with_number(_own_price(given, problems), problems)
    given = _as_its_tool(given, known, problems)
    values = _read_keys(given, problems)
    setup = _build_setup(values, problems)
    if problem := refused(setup) or refused_by_run(setup):
        if (
            "strategy" in values or "strategy" not in given
        ):  # else the problem is in one of our defaults
            problems.append(str(problem))
        setup = replace(setup, **{name: DEFAULT.value(name) for name in SHARING_KEYS})
        if refusal(setup):
            setup = setup.replace(mixed_precision=DEFAULT.precision.mixed_precision)
    model = None
    if "model" in given:
        model = _read_fact("model", lambda value: read_model(value, known), given, problems)
    gpu = _read_fact("gpu", _gpu, given, problems)
    if "model" not in given:
        problems.append(MODEL_MISSING)
    if model is not None:
        setup = _with_images(model, setup, given, problems)
        if setup.adapters.uses_adapters and "lora_target_modules" not in given:
            setup = setup.replace(lora_target_modules=default_targets(model, setup.adapters))
        setup = _with_named_targets(model, setup, problems)
        setup = _agree(model, setup, problems)
        if setup.mesh.strategy.places_layers and (
            sentence := why_left_on_the_cpu(model, gpu, setup)
        ):
            problems.append(sentence)
    return Reading(model=model, gpu=gpu, setup=setup, problems=tuple(problems))


def read_link(
    given: Mapping[str, str | Sequence[str]], known: Mapping[str, Model] = NONE_KNOWN
) -> Reading:
    """Read a setup from the strings of a link or of flags; each key has one string or a list of them.

    >>> read_link({"max_length": "2048", "padded": ["true"]}).setup.batch.max_length
    2048
    """
    values, problems = from_texts(given)
    reading = read_setup(values, known)
    return replace(reading, problems=(*problems, *reading.problems))


def from_texts(
    given: Mapping[str, str | Sequence[str]],
) -> tuple[dict[str, object], tuple[str, ...]]:
    """The object from the strings of a link or of flags, and a sentence for each invalid one.

    >>> from_texts({"max_length": "2048", "padded": ["true"]})
    ({'max_length': 2048, 'padded': True}, ())
    """
    problems: list[str] = []
    values: dict[str, object] = {}
    for name, texts in given.items():
        try:
            values[name] = _from_texts(name, [texts] if isinstance(texts, str) else list(texts))
        except ValueError as problem:
            problems.append(str(problem))
    return values, tuple(problems)


def parse(
    given: Mapping[str, object], known: Mapping[str, Model] = NONE_KNOWN
) -> tuple[Model, Gpu | None, TrainingSetup]:
    """Model, GPU and setup of an object; one `ValueError` with every sentence if anything is wrong."""
    reading = read_setup(given, known)
    if reading.problems or reading.model is None:
        raise InputError(" ".join(reading.problems))
    return reading.model, reading.gpu, reading.setup


IMAGE_KEYS = frozenset(row.name for row in rows(Images)) | {
    "freeze_vision",
    "freeze_projector",
    "freeze_language",
    "vision_gradient_checkpointing",
}
"""Keys that apply only to vision models; naming one implies ``AutoModelForImageTextToText``."""
NO_TOWER = Refusal(
    "{key} needs a vision tower, and none is modelled for {model_type}{known}; leave it out.",
    NOT_MODELLED,
)


def _with_images(
    model: Model, setup: TrainingSetup, given: Mapping[str, object], problems: list[str]
) -> TrainingSetup:
    """The setup with the class that has the vision tower, if an image key is given, and with the row's full length."""
    named = sorted(key for key in IMAGE_KEYS if setup.value(key) != DEFAULT.value(key))
    asks = any(key in given for key in IMAGE_KEYS)
    if model.vision is None:
        if named:
            known = f" (modelled are the towers of {', '.join(sorted(VISION))})"
            problems.append(str(NO_TOWER(key=named[0], model_type=model.model_type, known=known)))
        alone = {key: DEFAULT.value(key) for key in IMAGE_KEYS}
        return replace(setup, **alone) if named else setup
    if asks and "model_class" not in given:
        setup = setup.replace(model_class=ModelClass.IMAGE_TEXT)
    try:
        seen = row_of_images(model, setup.images)
    except ValueError as problem:
        problems.append(str(problem))
        return replace(setup, images=Images())
    if setup.images.text_tokens is not None:
        setup = setup.replace(
            max_length=min(setup.batch.max_length, setup.images.text_tokens + seen)
        )
    if seen > setup.batch.max_length:
        problems.append(
            f"the images of an example are {seen:,} tokens, more than max_length {setup.batch.max_length:,}; raise it, "
            "or use smaller images."
        )
        return replace(setup, images=Images())
    return setup


def _own_price(given: Mapping[str, object], problems: list[str]) -> Mapping[str, object]:
    """Move the price of a custom GPU to the setup's keys."""
    card = given.get("gpu")
    if not isinstance(card, Mapping) or PRICE not in card:
        return given
    asked = card[PRICE]
    if given.get(PRICE, asked) != asked:
        problems.append(f"{PRICE} of the setup and that of its gpu disagree; give one of them.")
    rest = {name: value for name, value in card.items() if name != PRICE}
    return {PRICE: asked, **given, "gpu": rest}


def gpu_keys(name: str) -> dict[str, object]:
    """The keys implied by a name for GPUs: their number, DDP, and GPUs per machine.

    DDP is what torchrun and ``accelerate launch`` use for several GPUs by default.

    >>> gpu_keys("4x A100-80GB"), gpu_keys("RTX 4090")
    ({'num_gpus': 4, 'strategy': 'ddp'}, {})
    """
    meant = catalog.gpus_meant(name)
    if meant is None or meant.number == 1:
        return {}
    keys: dict[str, object] = {"num_gpus": meant.number, "strategy": Strategy.DDP.value}
    if meant.of_a_machine and meant.number > min(meant.of_a_machine, DEFAULT.mesh.gpus_per_node):
        keys["gpus_per_node"] = meant.of_a_machine
    return keys


def _with_number(given: Mapping[str, object], problems: list[str]) -> Mapping[str, object]:
    """The object with the keys implied by the name of its GPU, unless it has its own."""
    name, asked = given.get("gpu"), given.get("num_gpus")
    if not isinstance(name, str) or not (meant := gpu_keys(name)):
        return given
    if asked is None:
        return {**meant, **given}
    machine = catalog.gpus_meant(name)
    if machine and machine.of_a_machine is None and asked != meant["num_gpus"]:
        problems.append(
            f"gpu {name[:100]!r} means {meant['num_gpus']} GPUs, but num_gpus is {show(asked)}; give only one of them."
        )
    return given


PPO_WORD, OF_PPO = "ppo", ("objective", "num_generations")
PPO = Refusal(
    "verl trains PPO unless it is told otherwise (algorithm.adv_estimator gae), which is not modelled yet: set "
    "objective to grpo or rloo, and num_generations.",
    NOT_MODELLED,
)


def _as_its_tool(
    given: Mapping[str, object], known: Mapping[str, Model], problems: list[str]
) -> Mapping[str, object]:
    """The object with its tool's defaults for missing keys; unchanged for ``trainer``, which has the contract's own."""
    tool = TRAINER if given.get("tool") is None else given["tool"]
    if not isinstance(tool, str) or tool not in TOOLS:
        return given  # which `_read_keys` says
    version, newest = given.get("tool_version"), version_of(tool)
    if isinstance(version, str) and version.isprintable() and version != newest:
        problems.append(
            f"tool_version {show(version)}: the defaults of {tool} are only known for {newest}; leave it out."
        )
    if tool == TRAINER:
        return given
    sound = _read_keys({name: value for name, value in given.items() if name in BY_NAME}, [])
    try:
        model = read_model(given.get("model"), known)
    except ValueError:
        model = None  # which is said where it is read
    missing = dict(with_defaults_of(tool, sound, model))
    if "objective" not in given and missing.get("objective") == PPO_WORD:
        problems.append(str(PPO()))
        missing = {name: value for name, value in missing.items() if name not in OF_PPO}
    return {**{name: value for name, value in missing.items() if name not in sound}, **given}


def _read_keys(given: Mapping[str, object], problems: list[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    unknown = 0
    for name, value in given.items():
        if name in FACTS:
            continue
        if name not in BY_NAME and name not in LATER:
            unknown += 1
            if unknown > MOST_UNKNOWN:
                continue
        try:
            key = BY_NAME.get(name)
            if key is None:
                if name in LATER:
                    read_later(name, value)
                    continue
                if parallelism := key_asks_for(plain(name)):
                    _refuse_parallel(name, value, parallelism)
                    continue
                raise InputError(_unknown_key(name))
            read = key.read(value)
            if values.get(key.name, read) != read:
                raise InputError(f"{key.name} and {name} disagree; give one of the two names.")
            values[key.name] = read
        except ValueError as problem:
            problems.append(str(problem))
    if unknown > MOST_UNKNOWN:
        problems.append(MORE_UNKNOWN.format(more=unknown - MOST_UNKNOWN))
    return values


def _refuse_parallel(name: str, value: object, parallelism: str) -> None:
    """Accept a key for an unmodelled parallelism only if its value disables it."""
    if type(value) not in (type(None), bool, int) or value not in NOT_PARALLEL or value is True:
        raise not_modelled(value, parallelism, name)


def _unknown_key(name: str) -> str:
    like = meant_keys(name, (*FACTS, *BY_NAME))
    hint = f"did you mean {one_of(like)}?" if like else "leave it out."
    return f"{_said(name)} is not a key of a setup; {hint}"


def _said(name: str) -> str:
    """A key as sentences name it, safe for any text from an address."""
    return name if name.isidentifier() and len(name) <= 60 else show(name)


def _build_setup(values: dict[str, object], problems: list[str]) -> TrainingSetup:
    """The setup of valid values; if they conflict, drops the first one whose default resolves the conflict."""
    chosen = {name: value for name, value in values.items() if name in KEY_FACET}
    try:
        chosen["optim"] = _with_momentum(values)
    except ValueError as problem:
        problems.append(str(problem))
    try:
        return TrainingSetup(**chosen)
    except ValueError as problem:
        problems.append(str(problem))
    for name in chosen:
        try:
            return TrainingSetup(**{key: value for key, value in chosen.items() if key != name})
        except ValueError:
            continue
    return DEFAULT


def _with_momentum(values: Mapping[str, object]) -> object:
    """The optimizer after ``optim_args``: a momentum turns ``sgd`` into ``sgd_momentum``."""
    optim, momentum = values.get("optim", DEFAULT.optimisation.optim), values.get("optim_args")
    if momentum is None:
        return optim
    if optim not in BY_MOMENTUM.values():
        raise InputError(
            f"optim_args sets a momentum, which optim {optim} does not have; leave it out."
        )
    return BY_MOMENTUM[bool(momentum)]


BY_MOMENTUM = {False: Optimizer.SGD, True: Optimizer.SGD_MOMENTUM}


def _with_named_targets(model: Model, setup: TrainingSetup, problems: list[str]) -> TrainingSetup:
    """The setup with names for a regular expression of target modules."""
    if not is_pattern(setup.adapters):
        return setup
    try:
        return setup.replace(adapters=with_names(model, setup.adapters))
    except ValueError as problem:
        if setup.adapters.uses_adapters:
            problems.append(str(problem))
        return setup.replace(lora_target_modules=default_targets(model, setup.adapters))


def _agree(model: Model, setup: TrainingSetup, problems: list[str]) -> TrainingSetup:
    """The setup without what this model does not support."""
    learned = model.position_limit
    if 0 < learned < setup.batch.max_length:
        problems.append(
            f"max_length {setup.batch.max_length} exceeds the {learned} positions that "
            f"{model.hub_id or model.model_type} has learned; lower it."
        )
        setup = setup.replace(max_length=min(learned, DEFAULT.batch.max_length))
    if setup.adapters.uses_adapters:
        try:
            trained, seen = as_trained(model, setup)
            adapter_parameters(trained, seen.adapters)
        except ValueError as problem:
            problems.append(str(problem))
            setup = setup.replace(
                lora_target_modules=default_targets(model, setup.adapters), modules_to_save=None
            )
    return setup


def _read_fact(
    name: str, read: Callable[[object], Fact], given: Mapping[str, object], problems: list[str]
) -> Fact | None:
    try:
        return read(given.get(name))
    except ValueError as problem:
        said = str(problem)
        named = said.casefold().startswith((f"{name} ", f"{name}: "))
        problems.append(name + said[len(name) :] if named else f"{name}: {said}")
        return None


def read_model(value: object, known: Mapping[str, Model] = NONE_KNOWN) -> Model:
    """The model of a Hub id, of the object of a ``config.json``, or of ``{"like": …}``; ``ValueError`` says why not."""
    if isinstance(value, Mapping):
        return _resized(value, known) if "like" in value else _configured(value)
    name = catalog.as_hub_id(_name(value, "model must be a Hub id or the object of a config.json"))
    if (
        name in known and name not in catalog.models()
    ):  # checked first, because finding similar names takes 30 ms
        return known[name]
    return catalog.model(name)


def _configured(config: Mapping[str, object]) -> Model:
    found = from_config(config)
    if found.model is None:
        raise InputError(found.problem)
    return found.model


def _resized(given: Mapping[str, object], known: Mapping[str, Model]) -> Model:
    """A custom model: ``{"like": a model, and the dimensions that differ}``."""
    like = given["like"]
    if isinstance(like, Mapping) and "like" in like:
        raise InputError("model: like must be a Hub id or the object of a config.json.")
    dimensions = {name: value for name, value in given.items() if name != "like"}
    model = resized(read_model(like, known), dimensions)
    return replace(model, config=json.dumps(dict(given)))


def _gpu(value: object) -> Gpu | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return _own_gpu(value)
    own = '{"memory_bytes": 25757220864}'
    return catalog.gpu(_name(value, f"gpu must be a name, an object such as {own}, or null"))


def _name(value: object, must_be: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise InputError(f"{must_be}, not {show(value)}.")
    return value


def _own_gpu(given: Mapping[str, object]) -> Gpu:
    """A custom GPU: by its figures, or ``{"like": a catalogued one, and the figures that differ}``."""
    values: dict[str, object] = {}
    for name, value in given.items():
        if name == "like":
            continue
        if name not in GPU_KEYS:
            raise InputError(
                f"gpu has no {show(name)}; its keys are like, {', '.join(GPU_KEYS)} and usd_per_gpu_hour."
            )
        try:
            values[name] = GPU_KEYS[name].read(value)
        except ValueError as problem:
            raise about(f"gpu: {name}", problem) from None
    if "like" not in given:
        if "memory_bytes" not in values:
            raise InputError(
                "gpu needs memory_bytes, the memory of the card in bytes, or like, a card of the catalogue."
            )
        return _gpu_of(**{"name": OWN_GPU, **values})
    known = catalog.gpu(_name(given["like"], "gpu: like must be a name"))
    if set(values) <= {NETWORK}:  # the catalogued GPU, in machines with the user's network
        return _changed(known, **values)
    return _changed(_blank(known), **{"name": own_name(known), **values})


def own_name(like: Gpu) -> str:
    """The default name of a custom GPU that is as fast as a catalogued one."""
    return f"{OWN_GPU} like {like.name}"


def _blank(known: Gpu) -> Gpu:
    """A catalogued GPU's figures for a custom GPU, without its name, prices and source."""
    return replace(
        known,
        like=known.name,
        memory_is_derived=False,
        nameplate_gb=0.0,
        device_name="",
        instance="",
        prices=(),
        source="",
    )


def _from_texts(name: str, texts: list[str]) -> object:
    key = BY_NAME.get(name)
    lists = key is not None and key.kind.takes_list
    if len(texts) != 1 and not (lists and texts):
        raise InputError(f"{_said(name)} is given {len(texts)} times; give it once.")
    text = ",".join(texts)
    if key is not None:
        return key.kind.from_text(text)
    if name in LATER:
        return later_from_text(text)
    if key_asks_for(plain(name)):
        words = {"null": None, "false": False, "true": True}
        if text.lower() in words:
            return words[text.lower()]
        return BY_NAME["tp_size"].kind.from_text(text)
    if name in FACTS and text.lstrip().startswith("{"):
        return read_object(text, name)
    return None if name == "gpu" and text in {"", "null"} else text


# --- writing ------------------------------------------------------------------------------------


def write_fields(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> dict[str, object]:
    """The object of a setup: ``model``, and every key that differs from the defaults."""
    written: dict[str, object] = {"model": _write_model(model)}
    if gpu is not None:
        written["gpu"] = _write_gpu(gpu)
    implied = gpu_keys(gpu.instance) if gpu is not None else {}
    for key in KEYS:
        value = setup.value(key.name) if key.in_setup else key.default
        if value != key.default or key.name in implied:
            written[key.name] = _plain(value)
    return written


def plain_keys(keys: Mapping[str, object]) -> dict[str, object]:
    """Keys with values of specs, converted for an object of the contract.

    >>> plain_keys({"strategy": Strategy.DDP, "modules_to_save": ("lm_head",)})
    {'strategy': 'ddp', 'modules_to_save': ['lm_head']}
    """
    return {name: _plain(value) for name, value in keys.items()}


def _plain(value: object) -> object:
    """A value of a spec in JSON types."""
    if isinstance(value, tuple):
        return dict(value) if _is_object(value) else list(value)
    return str(value) if isinstance(value, str) else value


def _is_object(value: tuple[object, ...]) -> bool:
    """Whether a tuple is an object's name-value pairs."""
    return bool(value) and isinstance(value[0], tuple) and isinstance(value[0][0], str)


def _write_model(model: Model) -> object:
    if model.config:  # given as an object, or fetched from the Hub by its id
        return model.hub_id or json.loads(model.config)
    try:
        if catalog.model(model.hub_id) == replace(model, notes=(), num_labels=None):
            return model.hub_id
    except ValueError:
        pass
    raise InputError(
        f"the model {show(model.hub_id or model.model_type)} was built in code and cannot be written; "
        "read it from the catalogue or from a config.json."
    )


def _write_gpu(gpu: Gpu) -> object:
    name = gpu.name_in_a_setup
    try:
        as_named = catalog.gpu(name)
    except ValueError:
        as_named = None
    if as_named == gpu:
        return name
    if as_named == replace(gpu, network_gb_per_s=None):
        return {"like": name, NETWORK: gpu.network_gb_per_s}
    known = {**catalog.gpus(), **catalog.slices()}
    if gpu.like in known:
        plain, kept = (
            replace(_blank(known[gpu.like]), name=own_name(known[gpu.like])),
            {"like": gpu.like},
        )
    else:
        plain, kept = Gpu(name=OWN_GPU, memory_bytes=gpu.memory_bytes), {}
    values = {name: getattr(gpu, name) for name in GPU_KEYS}
    return kept | {
        name: value
        for name, value in values.items()
        if name == "memory_bytes" or value != getattr(plain, name)
    }
