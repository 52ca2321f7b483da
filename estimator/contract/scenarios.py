"""Named setups for comparison, written to and read from links and files; both are untrusted input.

A scenario is a name and an object of the contract. Every valid part of a link or file is read; each dropped part is
reported in one sentence. In a link a scenario is one string of fields, the name first:

    QLoRA on one L4~m.mistralai/Mistral-7B-v0.1~g.L4~me.qlora~b.4

A field is a key or its short code, a dot, and a value. A code is never reassigned, and a key without a code is
written by its name, so old links keep their meaning in later releases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from estimator.contract.setups import (
    MODEL_MISSING,
    NONE_KNOWN,
    Reading,
    read_link,
    read_setup,
    write_fields,
)
from estimator.sources import catalog
from estimator.values.json_text import read_object
from estimator.values.refusals import InputError, show
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

Given = TypeVar("Given")
Value = TypeVar("Value")

VERSION = 1
"""Version of the contract, written to links and files as ``v``."""
MOST_SCENARIOS = 8
"""Maximum scenarios of a comparison. Our choice: as many bars as can be told apart."""
LONGEST_NAME = 60
"""Maximum characters of a scenario's name. Our choice: one line of the table."""
LONGEST_TEXT = 4000
"""Maximum characters of one scenario in a link. Our choice: twice the length of a link that mail programs accept."""
LONGEST_WRITTEN = 1500
"""Maximum URL-encoded characters of a scenario written to a link. Our choice, the same as for a single model."""
SEPARATOR = "~"
"""Separates fields. Takes one character in a URL, where all others except letters, digits and ``-._~`` take three."""

_CODES = """
    model=m gpu=g method=me model_class=mc lora_r=r lora_alpha=la lora_target_modules=lt lora_dropout=ld
    autocast_adapter_dtype=ad use_dora=do modules_to_save=ms bnb_4bit_quant_type=qt bnb_4bit_use_double_quant=dq
    prepare_model_for_kbit_training=kb load_in_8bit=i8 freeze_vision=fv freeze_projector=fp freeze_language=fl
    dtype=dt mixed_precision=mp optim=op optim_state_dtype=os max_grad_norm=gn optim_args=oa
    per_device_train_batch_size=b gradient_accumulation_steps=a max_length=l padded=pa images_per_example=in
    image_height=ih image_width=iw image_sizes=is text_tokens=tt min_pixels=ip max_pixels=xp do_image_splitting=sp
    image_longest_edge=le crop_to_patches=cr max_patches=xt do_pan_and_scan=ps max_soft_tokens=sf
    videos_per_example=vp video_frames=vf video_height=vh video_width=vw video_min_pixels=vi video_max_pixels=vx
    cap_pixels_per_frame=vc gradient_checkpointing=gc vision_gradient_checkpointing=vgc use_reentrant=re
    attn_implementation=at use_liger_kernel=lk objective=oj loss=lo completion_fraction=cf max_prompt_length=pl
    precompute_ref_log_probs=pr loss_type=ly beta=be max_completion_length=cl num_generations=ng
    steps_per_generation=sg num_iterations=ni num_labels=nl mini_batch_size=mb label_smoothing_factor=sm
    hold_outputs=ho use_vllm=uv vllm_mode=vm vllm_gpu_memory_utilization=vu vllm_enable_sleep_mode=vs
    vllm_tensor_parallel_size=vt vllm_data_parallel_size=vdp vllm_max_model_length=vl vllm_max_num_seqs=vns
    vllm_max_num_batched_tokens=vbt generation_offload_model=gm generation_offload_optimizer=go
    use_transformers_continuous_batching=tc ds3_gather_for_generation=dg num_gpus=n strategy=st gpus_per_node=nn
    dp_replicate_size=dr tp_size=tp pp_size=pp cp_size=cp ep_size=ep offload_optimizer=oo offload_param=of
    num_train_examples=x num_train_epochs=e mean_tokens_per_example=mt eval_strategy=es
    per_device_eval_batch_size=eb compute_metrics=cm eval_accumulation_steps=ea save_strategy=ss
    save_total_limit=sl save_only_model=so fsdp_state_dict_type=sd zero3_save_16bit_model=z6 usd_per_gpu_hour=us
"""
CODES: Mapping[str, str] = MappingProxyType(dict(pair.split("=") for pair in _CODES.split()))
"""Short names of keys in a link, never changed or reused; a key without one has its own."""
KEY_OF: Mapping[str, str] = MappingProxyType({code: key for key, code in CODES.items()})


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named setup: the contract's keys that differ from its defaults, as ``write_fields`` writes them."""

    name: str
    setup: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ReadScenarios:
    """Contents of a link or file: its valid scenarios in order, and a sentence for each dropped part."""

    scenarios: tuple[Scenario, ...]
    problems: tuple[str, ...] = ()
    setup: Mapping[str, object] | None = None
    """The file's current setup, in addition to its scenarios; None if it has none."""


def scenario_of(name: str, model: Model, gpu: Gpu | None, setup: TrainingSetup) -> Scenario:
    """A named setup; ``ValueError`` if the name is invalid or the model cannot be named."""
    return Scenario(sound_name(name), write_fields(model, gpu, setup))


def read(scenario: Scenario, known: Mapping[str, Model] = NONE_KNOWN) -> Reading:
    """The specs of a scenario; without a model if only the Hub may know it.

    ``known``: models by id that are not in the catalogue.
    """
    if unknown_model(scenario, known):
        others = {key: value for key, value in scenario.setup.items() if key != "model"}
        return replace(read_setup(others), problems=())
    return read_setup(scenario.setup, known)


def unknown_model(scenario: Scenario, known: Mapping[str, Model] = NONE_KNOWN) -> str:
    """The id of a scenario's model if neither the catalogue nor ``known`` has it; else empty."""
    return _hub_id(scenario.setup.get("model"), known)


def sound_name(text: str) -> str:
    """The name without surrounding whitespace; ``ValueError`` says what is allowed.

    >>> sound_name(" QLoRA, 4k ")
    'QLoRA, 4k'
    """
    name = text.strip()
    if 0 < len(name) <= LONGEST_NAME and name.isprintable() and SEPARATOR not in name:
        return name
    raise InputError(
        f"A scenario's name must be 1 to {LONGEST_NAME} characters in one line, without {SEPARATOR}; not {show(text)}."
    )


def free_name(name: str, scenarios: Sequence[Scenario], *others: str) -> str:
    """The name; if a scenario already has it, another one that is short enough; else the name with a number.

    >>> free_name("LoRA", [Scenario("LoRA", {}), Scenario("LoRA 2", {})])
    'LoRA 3'
    >>> free_name("LoRA", [Scenario("LoRA", {})], "LoRA, context 4,096")
    'LoRA, context 4,096'
    """
    taken = {scenario.name for scenario in scenarios}
    tried, number = name[:LONGEST_NAME], 1
    for other in (name, *others):
        if len(other) <= LONGEST_NAME and other not in taken:
            return other
    while tried in taken:
        number += 1
        tried = f"{name[: LONGEST_NAME - 4]} {number}"
    return tried


# --- links --------------------------------------------------------------------------------------


def write_text(scenario: Scenario) -> str:
    """A scenario as one string of a link.

    >>> write_text(Scenario("LoRA, 4k", {"model": "openai-community/gpt2", "method": "lora", "lora_r": 8}))
    'LoRA, 4k~m.openai-community/gpt2~me.lora~r.8'
    """
    fields = [scenario.name]
    for key, value in scenario.setup.items():
        values = value if isinstance(value, list) else [value]
        fields += [f"{CODES.get(key, key)}.{_text(one)}" for one in values]
    return SEPARATOR.join(fields)


def read_texts(
    texts: Sequence[str],
    known: Mapping[str, Model] = NONE_KNOWN,
    version: Sequence[str] = (),
) -> ReadScenarios:
    """The scenarios of a link's strings; ``version``: the link's ``v``."""
    problems = list(read_link({"v": version}).problems) if version else []
    problems = [said for said in problems if said != MODEL_MISSING]

    def one(number: int, text: str) -> Scenario:
        return _read_text(number, text, known, problems)

    return ReadScenarios(_each(texts, one, problems), tuple(problems))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    # in JSON a ~ appears only in strings, where this escape is the same character
    return json.dumps(value, separators=(",", ":")).replace(SEPARATOR, "\\u007e")


def _read_text(number: int, text: str, known: Mapping[str, Model], problems: list[str]) -> Scenario:
    if len(text) > LONGEST_TEXT:
        raise InputError(f"it is longer than {LONGEST_TEXT} characters.")
    name, *fields = text.split(SEPARATOR)
    called = _called(number, name, problems)
    texts: dict[str, list[str]] = {}
    for field in fields:
        code, point, value = field.partition(".")
        if not point:
            problems.append(
                f"{_of(called)}{show(field)} was dropped: a field is a key, a point and a value."
            )
            continue
        texts.setdefault(KEY_OF.get(code, code), []).append(value)
    return _sound(called, texts, read_link, known, problems)


# --- files --------------------------------------------------------------------------------------


def write_file(scenarios: Sequence[Scenario], setup: Mapping[str, object] | None = None) -> str:
    """Scenarios and the current setup, as the text of a file."""
    written: dict[str, object] = {"v": VERSION}
    if setup:
        written["setup"] = dict(setup)
    written["scenarios"] = [
        {"name": scenario.name, "setup": dict(scenario.setup)} for scenario in scenarios
    ]
    return json.dumps(written, indent=1, ensure_ascii=False) + "\n"


def read_file(text: str | bytes, known: Mapping[str, Model] = NONE_KNOWN) -> ReadScenarios:
    """Contents of a file: scenarios, or one object of the contract, which becomes one scenario.

    ``ValueError`` holds one sentence if the text is not such an object.
    """
    given = read_object(text, "The file", 'one JSON object such as {"v": 1, "scenarios": […]}')
    problems: list[str] = []
    if "scenarios" not in given:
        given = {"scenarios": [{"name": _name_of(given), "setup": given}]}
    version = given.pop("v", VERSION)
    problems += [
        problem for problem in read_setup({"v": version}).problems if problem != MODEL_MISSING
    ]
    listed, beside = given.pop("scenarios"), given.pop("setup", None)
    problems += [f"The file's {show(key)} was dropped: it is not a known key." for key in given][
        :MOST_SCENARIOS
    ]
    if not isinstance(listed, list):
        raise InputError(f"The file's scenarios must be a list, not {show(listed)}.")

    def one(number: int, entry: object) -> Scenario:
        return _read_entry(number, entry, known, problems)

    scenarios = _each(listed, one, problems)
    setup = None
    if beside is not None:
        try:
            setup = _read_entry(0, {"name": "Setup", "setup": beside}, known, problems).setup
        except ValueError as problem:
            problems.append(f"The file's setup was dropped: {problem}")
    return ReadScenarios(scenarios, tuple(problems), setup)


def _name_of(given: Mapping[str, object]) -> str:
    model = given.get("model")
    named = model.rpartition("/")[2] if isinstance(model, str) else ""
    return named if 0 < len(named) <= LONGEST_NAME else "Scenario 1"


def _read_entry(
    number: int, entry: object, known: Mapping[str, Model], problems: list[str]
) -> Scenario:
    if not isinstance(entry, Mapping):
        raise InputError(f"it must be an object with a name and a setup, not {show(entry)}.")
    name, setup = entry.get("name", ""), entry.get("setup")
    if not isinstance(setup, Mapping):
        raise InputError(f"its setup must be an object of the contract, not {show(setup)}.")
    called = _called(number, name, problems)
    return _sound(called, setup, read_setup, known, problems)


# --- what both share ----------------------------------------------------------------------------


def _each(
    given: Sequence[Given], one: Callable[[int, Given], Scenario], problems: list[str]
) -> tuple[Scenario, ...]:
    """The valid scenarios among the first ``MOST_SCENARIOS``."""
    scenarios = []
    for number, entry in enumerate(given[:MOST_SCENARIOS], start=1):
        try:
            scenarios.append(one(number, entry))
        except ValueError as problem:
            problems.append(f"Scenario {number} was dropped: {problem}")
    if len(given) > MOST_SCENARIOS:
        problems.append(
            f"A comparison holds {MOST_SCENARIOS} scenarios; "
            f"the last {len(given) - MOST_SCENARIOS} of {len(given)} were dropped."
        )
    return tuple(scenarios)


def _called(number: int, name: object, problems: list[str]) -> str:
    """The name; ``Scenario 1`` and so on if it is invalid."""
    try:
        return sound_name(name if isinstance(name, str) else str(show(name)))
    except ValueError as problem:
        problems.append(f"Scenario {number}: {problem}")
        return f"Scenario {number}"


def _of(name: str) -> str:
    return f"“{name}”: "


def _sound(
    name: str,
    given: Mapping[str, Value],
    reader: Callable[[Mapping[str, Value], Mapping[str, Model]], Reading],
    known: Mapping[str, Model],
    problems: list[str],
) -> Scenario:
    """The scenario from its valid keys; ``ValueError`` if it has no model."""
    later = _hub_id(given.get("model"), known)
    if later:  # only the Hub may know the model, so other keys are read without it
        given = {key: value for key, value in given.items() if key != "model"}
    reading = reader(given, known)
    model = catalog.model(next(iter(catalog.models()))) if later else reading.model
    if model is None:
        raise InputError(next(said for said in reading.problems if said.startswith("model")))
    written = write_fields(model, reading.gpu, reading.setup)
    problems += [_of(name) + said for said in reading.problems if said != MODEL_MISSING]
    return Scenario(name, {**written, "model": later or written["model"]})


def _hub_id(model: object, known: Mapping[str, Model]) -> str:
    """The model's id if it looks like ``owner/name`` and is not known here; else empty."""
    if isinstance(model, list) and len(model) == 1:
        model = model[0]
    if not isinstance(model, str) or not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", model):
        return ""
    spelled = {*map(str.casefold, (*catalog.models(), *known))}
    return "" if model.casefold() in spelled else model
