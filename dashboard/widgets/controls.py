"""Widgets ↔ setup ↔ link.

Every control stands for a key of the contract and has the contract's default: what differs from it stands in the link,
so a link means the same here as on the command line. A bare address opens on ``EXAMPLE``, written out in the address.
Widgets that are always drawn are bound to the address; those in an expander show what ``session`` keeps.

Streamlit drops what it cannot read in an address without a word; so the address is read here first, through
the contract, and what was not sound is reported.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, cast

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard.address import unbound
from dashboard.address.example import EXAMPLE
from dashboard.state import actions, comparison, session
from dashboard.widgets import gpu_box, model_box
from dashboard.words import wording
from estimator import catalog, estimate
from estimator.contract.setups import Reading, read_link, read_setup, write_fields
from estimator.families.adapters import default_targets
from estimator.families.counts import layer_groups, layer_modules, outer_modules, tied_head
from estimator.families.modules import Embedding, Linear
from estimator.parallel.combinations import OFFLOADS, resting_places, sharing
from estimator.search.limits import evaluation_stops, largest_micro_batch, longest_context
from estimator.sources.repository import HubModel
from estimator.values.keys import BY_NAME
from estimator.values.results import Estimate
from estimator.values.specs import (
    ALL_LINEAR,
    FULL_STATE_DICT,
    LARGEST,
    LOWEST_MFU,
    NETWORK,
    RATE_SPAN,
    SHARDED_STATE_DICT,
    AttnImplementation,
    Dtype,
    Gpu,
    Loss,
    Method,
    MixedPrecision,
    Model,
    Offload,
    Optimizer,
    Strategy,
    TrainingSetup,
)

REAL_NEIGHBOURS: Mapping[str, Mapping[str, Any]] = {
    "bfloat16 states too": {
        "dtype": Dtype.BFLOAT16,
        "optim_state_dtype": None,
    },
    "float32 weights with bfloat16 autocast": {
        "dtype": Dtype.FLOAT32,
        "mixed_precision": MixedPrecision.BF16,
        "optim_state_dtype": None,
    },
}
"""What really runs beside the what-if of float32 states on 16-bit weights."""

BARS, VERDICT, CARDS, BATCH, CONTEXT, MORE = PARTS = (
    "bars",
    "verdict",
    "cards",
    "effective batch",
    "longest context",
    "more",
)
"""The parts that a moved number runs again, as fragments; the figure first, since it takes the browser longest."""
REST_SECONDS = 0.2
"""How long a slider rests before what stands around figure and verdict follows: ours, as the browser takes to draw."""
UNBOUND = tuple(f.name for f in fields(TrainingSetup) if f.name not in session.BOUND)
"""The contract's keys that ``session`` keeps: of those in expanders, and of those that have no widget."""
PAGE_KEYS = ("section", *comparison.KEYS)
"""What an address says of the page, not of the setup."""

STEPS: Mapping[str, tuple[int, ...]] = {
    "per_device_train_batch_size": (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 192, 256),
    "gradient_accumulation_steps": (*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 256, 512),
    "max_length": tuple(sorted({n << k for n in (128, 192) for k in range(11)} - {196_608})),
    "num_gpus": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024),
    "lora_r": (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512),
}
"""What a slider offers; a sound value of an address that lies between is added to it."""

GPUS, LORA, QUANTISATION = "Several GPUs", "LoRA", "Quantisation"
RUN, OTHERS = "Run: examples, price", "More"
EXPANDERS = "expanders"
"""The part that runs again when one of them is opened."""
BEHIND_PRECISION = ("dtype", "mixed_precision")
"""What the box for precision sets, so that it must be drawn again where one of them is set."""
EVERY, ATTENTION, CUSTOM = "all linear", "attention", "custom"
"""Which linear layers get an adapter, by name."""


# --- the address --------------------------------------------------------------------------------


def open_address() -> None:
    """Once a visit: read the address, keep what is unsound in it as sentences, set the widgets to the rest."""
    state = st.session_state
    if model_box.is_known(state.get("model")) and not unbound.moved(UNBOUND):
        return
    params = st.query_params
    given = {key: params.get_all(key) for key in params if key not in PAGE_KEYS}
    asked = given or {key: [str(value)] for key, value in EXAMPLE.items()}
    if "model" not in given:
        asked = comparison.noted() or asked
    read = read_link(asked, model_box.known())
    problems = list(read.problems)
    if read.model is None:
        problems = model_box.instead(asked, problems)
        read = replace(read, model=catalog.model(str(EXAMPLE["model"])))
    assert read.model is not None
    state["address_problems"] = problems
    state["kept"] = {}
    state["steps"] = {
        key: tuple(sorted({*steps, getattr(read.setup, key)})) for key, steps in STEPS.items()
    }
    values = _values_of(read)
    state["own"] = {"gpu": values["gpu"]}
    if not model_box.is_known(values["model"]):
        model_box.remember(str(values["model"]), HubModel(model=read.model, notes=read.model.notes))
    spelled = {key: unbound.spelled(values[key]) for key in asked if key in session.BOUND}
    spelled |= {"model": unbound.spelled(values["model"])}
    is_written = False
    if any(given.get(key) != texts for key, texts in spelled.items()):
        spelled |= {key: texts for key, texts in session.spelled(values).items() if texts}
        # back to a bare address: the widgets stand and write it
        with suppress(StreamlitAPIException):
            st.query_params.update(spelled)  # all at once: one entry in the browser's history
            is_written = True
    session.put(values)
    if is_written:
        st.rerun()  # so that the widgets read the address as it is spelled now


def _values_of(read: Reading) -> dict[str, object]:
    assert read.model is not None
    facts = write_fields(read.model, read.gpu, session.DEFAULT)
    return {
        **{field.name: getattr(read.setup, field.name) for field in fields(TrainingSetup)},
        "lora_target_modules": _targets_as_chosen(read.model, read.setup),
        "model": _as_option(facts["model"]),
        "gpu": _as_option(facts["gpu"]) if "gpu" in facts else None,
    }


def _targets_as_chosen(model: Model, setup: TrainingSetup) -> str | tuple[str, ...]:
    """The adapted layers as a visit holds them: those of the default are the default, whatever the next model is."""
    targets = setup.lora_target_modules
    return ALL_LINEAR if targets == default_targets(model, setup) else targets


def _as_option(fact: object) -> str:
    """A model or GPU as a select box offers it: by name, or one's own as its JSON."""
    return fact if isinstance(fact, str) else json.dumps(fact, separators=(",", ":"))


def _as_fact(option: object) -> object:
    return json.loads(option) if isinstance(option, str) and option.startswith("{") else option


def _redraw(*also: str) -> None:
    """A number moved: only what shows it runs again, not every widget."""
    if model_box.is_asking():
        return
    st.session_state["moving"] = True
    with suppress(StreamlitAPIException):  # a page without these parts runs as a whole
        st.rerun((*PARTS, *also))


# --- the widgets --------------------------------------------------------------------------------


def _apply_precision() -> None:
    pair = wording.PRECISIONS.get(st.session_state["precision"])
    if pair:
        session.put({"dtype": pair[0], "mixed_precision": pair[1]})


def _apply_targets(linears: tuple[str, ...], attention: tuple[str, ...]) -> None:
    chosen = {EVERY: ALL_LINEAR, ATTENTION: attention, CUSTOM: linears}
    session.put({"lora_target_modules": chosen[st.session_state["adapter_choice"]]})
    _redraw(EXPANDERS)


def _box(key: str, default: str = "value", options: Sequence[str] | None = None) -> dict[str, Any]:
    """What a widget in an expander shows, and where it puts what it is set to.

    ``default`` is what its call names its own default: what a browser shows until it is told otherwise, and sends back.
    It is told once, by a message that the next run may overtake; so the default itself is the key's value. A widget
    whose default is not None cannot be emptied: one that can be null is told its value in every run instead.
    """
    name, now = f"{key} box", session.value(key)
    is_nullable = BY_NAME[key].kind.nullable
    if is_nullable or name not in st.session_state or st.session_state[name] != now:
        st.session_state[name] = now
    shown = None if is_nullable else now if options is None else options.index(str(now))
    listed = {} if options is None else {"options": options}
    return {"key": name, default: shown, "on_change": _take_box, "args": (key,), **listed}


def _choice(key: str, options: Sequence[str]) -> dict[str, Any]:
    """The same for a select box."""
    return _box(key, "index", options)


def _take_box(key: str, *also: str) -> None:
    session.put({key: st.session_state[f"{key} box"]})
    if key in BEHIND_PRECISION:
        st.rerun()
    _redraw(*also)


def _box_of_others(key: str, default: str = "value") -> dict[str, Any]:
    """The same for a widget that decides which others are drawn."""
    return _box(key, default) | {"args": (key, EXPANDERS)}


def _take_modules() -> None:
    chosen = tuple(st.session_state["lora_target_modules box"])
    session.put({"lora_target_modules": ALL_LINEAR if chosen in ((), (ALL_LINEAR,)) else chosen})
    _redraw(EXPANDERS)


def _with_own(catalogued: Iterable[str], own: str | None) -> list[str]:
    """The catalogue's names, and before them what an address brought that is not among them."""
    names = list(catalogued)
    return names if own is None or own in names else [own, *names]


def _values(kind: Iterable[str]) -> list[str]:
    return [str(member) for member in kind]


@st.fragment
def _slider(label: str, key: str, help_text: str) -> None:
    """In a fragment: the run that its move begins, and that ends in ``_redraw``, is none of the whole page."""
    st.select_slider(
        label,
        st.session_state["steps"][key],
        getattr(session.DEFAULT, key),
        key=key,
        help=help_text,
        bind="query-params",
        on_change=_redraw,
    )


def _what(setup: TrainingSetup) -> None:
    st.segmented_control(
        "Method",
        _values(Method),
        default=str(session.DEFAULT.method),
        key="method",
        help="full trains every weight; lora small adapters; qlora does so beside a 4-bit base. Our default: full.",
        required=True,
        bind="query-params",
        width="stretch",
    )
    names = list(wording.PRECISIONS)
    current = wording.precision(setup)
    st.session_state["precision"] = current
    st.selectbox(
        "Precision",
        names if current in names else [*names, current],
        key="precision",
        on_change=_apply_precision,
        help="What weights are loaded in, and whether Trainer's autocast (bf16=True) computes in 16 bits. "
        "Most guides: bfloat16 with autocast.",
    )
    st.selectbox(
        "Optimizer",
        _values(Optimizer),
        index=_values(Optimizer).index(session.DEFAULT.optim),
        key="optim",
        bind="query-params",
        help="Trainer's optim, by its own names. Trainer's default: adamw_torch_fused.",
    )


@st.fragment(key=BATCH)
def _effective_batch() -> None:
    now = reading()
    key = "per_device_train_batch_size"
    limit = _limit(now, key, largest_micro_batch, wording.batch_limit)
    st.html(f'<p class="hr-limit">{limit}{wording.effective_batch(now.setup)}</p>')


@st.fragment(key=CONTEXT)
def _longest_context() -> None:
    now = reading()
    limit = _limit(now, "max_length", longest_context, wording.context_limit)
    st.html(f'<p class="hr-limit">{limit}</p>')


def _limit(
    now: Reading,
    key: str,
    search: Callable[[Model, Gpu, TrainingSetup], int],
    say: Callable[[int, bool, Model, TrainingSetup], str],
) -> str:
    """How far one slider can go, in words; nothing without a GPU, or where the setup cannot be trained at all."""
    if now.model is None or now.gpu is None:
        return ""
    try:
        limit = search(now.model, now.gpu, now.setup)
        evaluating = evaluation_stops(now.model, now.gpu, now.setup, **{key: limit + 1})
        return say(limit, evaluating, now.model, now.setup)
    except ValueError:
        return ""


def _batch() -> None:
    _slider(
        "Micro-batch",
        "per_device_train_batch_size",
        "Examples that go through the model at once. Our default: 1 (Trainer's is 8).",
    )
    _slider(
        "Accumulation",
        "gradient_accumulation_steps",
        "Micro-batches whose gradients are added before a step. Trainer's default: 1.",
    )
    _effective_batch()
    _slider(
        "Context",
        "max_length",
        "Tokens in each example, packed or padded to it. TRL's default: 1,024.",
    )
    _longest_context()
    st.toggle(
        "Gradient checkpointing",
        session.DEFAULT.gradient_checkpointing,
        key="gradient_checkpointing",
        help="Keep only each layer's input and compute the layer again in backward. Trainer's default: off; TRL's: on.",
        bind="query-params",
        on_change=_redraw,
        args=(EXPANDERS,),
    )
    kernels = _values(AttnImplementation)
    st.selectbox(
        "Attention",
        kernels,
        index=kernels.index(session.DEFAULT.attn_implementation),
        key="attn_implementation",
        bind="query-params",
        help="The attention kernel; eager keeps the whole table of scores. Transformers' default: sdpa.",
    )


def _several_gpus() -> None:
    with _expander(GPUS) as opened:
        if not opened:
            return
        st.select_slider(
            "GPUs",
            st.session_state["steps"]["num_gpus"],
            help="GPUs that train one model together; the sizes shown are those of the fullest. Our default: 1.",
            **_box("num_gpus") | {"on_change": _take_number, "args": ()},
        )
        st.selectbox(
            "Strategy",
            help="Who keeps what: ddp all on each; zero1, zero2, zero3 divide states, gradients, weights (DeepSpeed); "
            "fsdp divides all (accelerate's FSDP2), hsdp in groups; device_map puts layers on different GPUs, "
            "which work in turn. Default: none, one GPU.",
            **_choice("strategy", _values(Strategy)) | {"on_change": _take_strategy, "args": ()},
        )
        st.number_input(
            "GPUs in one machine",
            1,
            LARGEST["gpus_per_node"],
            step=1,
            help="Accelerators that share a machine's links. Our default: 8.",
            **_box_of_others("gpus_per_node"),
        )
        _network()
        st.number_input(
            "Groups (hsdp)",
            1,
            LARGEST["dp_replicate_size"],
            step=1,
            help="accelerate's dp_replicate_size: groups that are replicas of each other. Default: 1.",
            **_box("dp_replicate_size"),
        )
        _fsdp1()
        st.selectbox(
            "Checkpoints of FSDP",
            help="fsdp_state_dict_type: the whole model through rank 0, or each GPU its shards. Trainer's default: "
            "FULL_STATE_DICT; accelerate's launcher: SHARDED_STATE_DICT.",
            **_choice("fsdp_state_dict_type", (FULL_STATE_DICT, SHARDED_STATE_DICT)),
        )
        st.toggle(
            "ZeRO-3 saves 16-bit weights",
            help="zero3_save_16bit_model: gathers the model to save it, beside DeepSpeed's parts. Default: off.",
            **_box("zero3_save_16bit_model"),
        )
        _offload()


def _network() -> None:
    """What machines send each other, where the job has several."""
    now = reading()
    if now.gpu is None or now.setup.num_gpus <= now.setup.gpus_per_node:
        return
    low, high = RATE_SPAN
    st.session_state["network box"] = now.gpu.network_gb_per_s
    st.number_input(
        "Network of a machine (GB/s)",
        low,
        high,
        None,
        1.0,
        key="network box",
        on_change=_take_network,
        placeholder="As rented",
        help="network_gb_per_s of your GPU: what one machine sends to the others, one direction; 100 Gb/s Ethernet is "
        "12.5. Our default: the slowest and the fastest network of data/machines.csv.",
    )


def _take_network() -> None:
    """The network is a figure of the card's, so that the card is one's own from now on; without it, it is not."""
    fact = _as_fact(session.value("gpu"))
    card = {"like": fact} if isinstance(fact, str) else dict(cast("Mapping[str, object]", fact))
    card.pop(NETWORK, None)
    if (chosen := st.session_state["network box"]) is not None:
        card[NETWORK] = chosen
    option = _as_option(card["like"] if card.keys() == {"like"} else card)
    st.session_state["own"]["gpu"] = option
    actions.take({"gpu": option})


def _fsdp1() -> None:
    """Which FSDP, where it is one; and where the older one's checkpoints lie."""
    setup = reading().setup
    if not setup.strategy.is_fsdp:
        return
    st.segmented_control(
        "FSDP",
        (1, 2),
        required=True,
        width="stretch",
        help="fsdp_version: 2 divides each parameter; 1, torch's FullyShardedDataParallel, flattens those of a layer "
        "into one. Default of accelerate's launcher: 1; ours: 2.",
        **_box("fsdp_version", "default") | {"on_change": _take_fsdp_version, "args": ()},
    )
    if setup.uses_fsdp1 and setup.gradient_checkpointing and setup.use_reentrant:
        st.toggle(
            "Checkpoints around FSDP's modules",
            help="checkpoint_around_fsdp: as in transformers before 4.52, where frozen layers' inputs stay until "
            "backward has ended. Default: off.",
            **_box("checkpoint_around_fsdp"),
        )


def _take_fsdp_version() -> None:
    """The newer one has no modules to lay checkpoints around."""
    version = st.session_state["fsdp_version box"]
    around = {} if version == 1 else {"checkpoint_around_fsdp": False}
    session.put({"fsdp_version": version, **around})
    _redraw(EXPANDERS)


def _offload() -> None:
    """Where states and weights rest: what the strategy allows."""
    strategy = Strategy(str(session.value("strategy")))
    labels = (
        (
            "Optimizer rests on",
            "ZeRO-Offload: states and gradients lie in the host's memory, or on NVMe (zero3), and the CPU steps the "
            "optimizer. FSDP offloads weights with it. Default: none, the GPU.",
        ),
        (
            "Weights rest on",
            "Weights come from the host's memory, or from NVMe (zero3), whenever a layer needs them. Default: none.",
        ),
    )
    for key, (label, help_text), places in zip(
        OFFLOADS, labels, resting_places(strategy), strict=True
    ):
        box = _choice(key, _with_own(_values(places), str(session.value(key))))
        box["on_change"] = _take_offload
        st.selectbox(
            label,
            help=help_text,
            disabled=len(places) == 1,
            **box,
        )


def _take_offload(key: str) -> None:
    """FSDP takes both or none."""
    chosen = Offload(st.session_state[f"{key} box"])
    both = Strategy(str(session.value("strategy"))).is_fsdp
    session.put(dict.fromkeys(OFFLOADS, chosen) if both else {key: chosen})
    _redraw(EXPANDERS)


def _take_number() -> None:
    """One GPU shares with nobody; several do so by FSDP until something else is chosen."""
    number, strategy = st.session_state["num_gpus box"], session.value("strategy")
    if number == 1:
        _share(1, Strategy.NONE)
    else:
        _share(number, Strategy.FSDP if strategy == Strategy.NONE else Strategy(str(strategy)))


def _take_strategy() -> None:
    """None is for one GPU, any other for at least two, and groups of several need four."""
    strategy = Strategy(st.session_state["strategy box"])
    least = {Strategy.NONE: 1, Strategy.HSDP: 4}.get(strategy, 2)
    number = cast("int", session.value("num_gpus"))
    _share(1 if strategy is Strategy.NONE else max(least, number), strategy)


def _share(number: int, strategy: Strategy) -> None:
    """Set both; the groups of hsdp are two where those that were set do not divide the GPUs."""
    groups = cast("int", session.value("dp_replicate_size"))
    if strategy is not Strategy.HSDP:
        groups = 1
    elif groups in (1, number) or number % groups:
        groups = 2
    session.put(sharing(_shared_now(), strategy, number, groups))
    _redraw(EXPANDERS)


def _shared_now() -> TrainingSetup:
    """How the widgets say that GPUs share the work, sound or not."""
    rests = {key: Offload(str(session.value(key))) for key in OFFLOADS}
    own = {key: session.value(key) for key in ("fsdp_version", "checkpoint_around_fsdp")}
    return replace(session.DEFAULT, **cast("dict[str, Any]", rests | own))


def _lora() -> None:
    with _expander(LORA) as opened:
        if not opened:
            return
        st.caption("For LoRA and QLoRA; full fine-tuning has no adapters.")
        model = reading().model
        linears, attention = linear_modules(model) if model else ((), ())
        targets = session.value("lora_target_modules")
        if targets == ALL_LINEAR and reading().setup.uses_adapters:
            targets = reading().setup.lora_target_modules  # which may be what PEFT takes instead
        chosen = [targets] if isinstance(targets, str) else list(cast("tuple[str, ...]", targets))
        st.session_state["lora_target_modules box"] = chosen
        st.session_state["adapter_choice"] = (
            EVERY
            if chosen == [ALL_LINEAR]
            else ATTENTION
            if sorted(chosen) == sorted(attention)
            else CUSTOM
        )
        st.select_slider(
            "Rank",
            st.session_state["steps"]["lora_r"],
            help="Width of the adapters; their size grows in step with it. Our default: 16 (PEFT's is 8).",
            **_box("lora_r"),
        )
        st.segmented_control(
            "Adapters on",
            (EVERY, ATTENTION, CUSTOM),
            key="adapter_choice",
            required=True,
            on_change=_apply_targets,
            args=(linears, attention),
            width="stretch",
            help="The linear layers that get an adapter. Our default: all-linear, as the QLoRA paper.",
        )
        st.multiselect(
            "Modules",
            [ALL_LINEAR, *linears],
            key="lora_target_modules box",
            on_change=_take_modules,
            accept_new_options=True,
            help="The same by name, as PEFT's target_modules. Our default: all-linear.",
        )
        st.number_input(
            "Dropout",
            0.0,
            0.95,
            step=0.05,
            help="Dropout before the adapters; any at all keeps one more tensor. TRL's default: 0.05.",
            **_box("lora_dropout"),
        )
        st.toggle(
            "Adapters in float32",
            help="PEFT's default: on. TRL turns it off for QLoRA: adapters then have the base's dtype.",
            **_box("autocast_adapter_dtype"),
        )
        st.toggle(
            "DoRA",
            help="Trains the length of a weight's columns apart; with dropout every adapted weight is kept once more. "
            "PEFT's default: off.",
            **_box("use_dora"),
        )
        _trained_whole(model)


def _quantisation() -> None:
    with _expander(QUANTISATION) as opened:
        if not opened:
            return
        st.caption("For QLoRA, whose base is in 4 bits.")
        st.segmented_control(
            "4-bit format",
            ["nf4", "fp4"],
            required=True,
            width="stretch",
            help="TRL's default: nf4. Equal in size.",
            **_box("bnb_4bit_quant_type", "default"),
        )
        st.toggle(
            "Double quantisation",
            help="Quantise the scales as well: 0.4 bits a parameter less. Our default: on.",
            **_box("bnb_4bit_use_double_quant"),
        )
        st.toggle(
            "Prepare for k-bit training",
            help="PEFT's helper: norms, embeddings and head go to float32. TRL's default: off.",
            **_box("prepare_model_for_kbit_training"),
        )
        st.selectbox(
            "Packed weights pass for",
            help="bnb_4bit_quant_storage: FSDP and ZeRO-3 divide packed weights only where they pass for floats. "
            "bitsandbytes' default: uint8.",
            **_choice("bnb_4bit_quant_storage", ("uint8", "bfloat16", "float16", "float32")),
        )
        st.toggle(
            "8-bit base (LoRA only)",
            help="LLM.int8: a byte a weight; its inputs stay through backward even under checkpointing. Default: off.",
            **_box("load_in_8bit"),
        )


def _run() -> None:
    """What time and money depend on, and memory does not."""
    with _expander(RUN) as opened:
        if not opened:
            return
        st.number_input(
            "Examples",
            1,
            10**12,
            step=1000,
            help="Examples in the training set. Our default: 10,000.",
            **_box("num_train_examples"),
        )
        st.number_input(
            "Epochs",
            0.01,
            1_000_000.0,
            step=1.0,
            help="Passes over the examples. Our default: 1 (Trainer's is 3).",
            **_box("num_train_epochs"),
        )
        st.number_input(
            "Mean tokens of an example",
            1,
            LARGEST["mean_tokens_per_example"],
            step=64,
            placeholder="As many as the context",
            help="The work is examples × their mean length; the memory follows the context. Our default: the context.",
            **_box("mean_tokens_per_example"),
        )
        st.selectbox(
            "Evaluation",
            help="Trainer's eval_strategy: evaluating holds its own batch. Trainer's default: no.",
            **_choice("eval_strategy", ("no", "steps", "epoch")),
        )
        st.number_input(
            "Examples in an evaluation batch",
            1,
            LARGEST["per_device_eval_batch_size"],
            step=1,
            help="Trainer's per_device_eval_batch_size. Trainer's default: 8.",
            **_box("per_device_eval_batch_size"),
        )
        _checkpoints()
        st.number_input(
            "US dollars a GPU-hour",
            0.0,
            1_000_000.0,
            step=0.1,
            placeholder="The cheapest listing known",
            help="Your own price. Our default: the cheapest listing in data/prices.csv, named with its date.",
            **_box("usd_per_gpu_hour"),
        )
        st.number_input(
            "Model FLOPs utilisation (0 to 1)",
            LOWEST_MFU,
            1.0,
            step=0.05,
            placeholder="The bracket of published runs",
            help="What you have measured of such a run; it narrows the bracket. Our default: published runs.",
            **_box("mfu"),
        )


def _checkpoints() -> None:
    """When checkpoints are saved, how many stay, and what they hold."""
    st.selectbox(
        "Save",
        help="Trainer's save_strategy: every 500 steps, every epoch, or when the metric is best. Our default: epoch.",
        **_choice("save_strategy", ("no", "steps", "epoch", "best")),
    )
    st.number_input(
        "Checkpoints kept",
        1,
        LARGEST["save_total_limit"],
        step=1,
        placeholder="All",
        help="Trainer's save_total_limit; the oldest goes when the next is written. Trainer's default: all stay.",
        **_box("save_total_limit"),
    )
    st.toggle(
        "Weights only",
        help="Trainer's save_only_model: no optimizer states, so no run can go on from it. Trainer's default: off.",
        **_box("save_only_model"),
    )


def _others() -> None:
    with _expander(OTHERS) as opened:
        if not opened:
            return
        st.selectbox(
            "Optimizer states (what-if)",
            placeholder="As the optimizer keeps them",
            help="A what-if: hold the states in this dtype. Trainer's default: none, they follow the optimizer.",
            **_choice("optim_state_dtype", _values((Dtype.FLOAT32, Dtype.BFLOAT16))),
        )
        st.toggle(
            "Liger kernels",
            help="Trainer's use_liger_kernel: fused norm, MLP, rotation and loss. Trainer's default: off.",
            **_box("use_liger_kernel"),
        )
        st.selectbox(
            "Loss",
            placeholder="Liger's with its kernels, else standard",
            help="Whether the logits are ever held whole. Trainer's default: standard; with Liger's kernels, theirs.",
            **_choice("loss", _values(Loss)),
        )
        st.segmented_control(
            "Weights",
            _values(Dtype),
            required=True,
            width="stretch",
            help="The dtype behind Precision. Default as in TRL's guides: bfloat16.",
            **_box("dtype", "default"),
        )
        st.segmented_control(
            "Autocast",
            _values(MixedPrecision),
            required=True,
            width="stretch",
            help="Trainer's bf16 or fp16 behind Precision. Default as in TRL's guides: bf16.",
            **_box("mixed_precision", "default"),
        )
        _loop()


def _loop() -> None:
    """How batches are made, and what the training loop does with gradients and outputs."""
    st.toggle(
        "Rows end in padding",
        help="padded: some rows of a batch are shorter, so that a mask is built. Our default: off, as with TRL's "
        "packing.",
        **_box("padded"),
    )
    st.number_input(
        "Gradients clipped to a norm of",
        0.0,
        1_000_000.0,
        step=0.1,
        help="Trainer's max_grad_norm; 0 never clips, and takes no norm. Trainer's default: 1.",
        **_box("max_grad_norm"),
    )
    if session.value("gradient_checkpointing"):
        st.toggle(
            "Reentrant checkpoints",
            help="use_reentrant of gradient_checkpointing_kwargs: the older way, which holds each block's input and "
            "output while it is replayed. Default of transformers 5: off.",
            **_box_of_others("use_reentrant"),
        )
    st.toggle(
        "The loop holds the outputs",
        help="hold_outputs: a loop of your own that keeps the model's outputs, and so the logits, through backward. "
        "Default: off, as Trainer.",
        **_box("hold_outputs"),
    )


@st.fragment(key=EXPANDERS)
def _expanders() -> None:
    _several_gpus()
    _lora()
    _quantisation()
    _run()
    _others()


def _trained_whole(model: Model | None) -> None:
    """PEFT's modules_to_save: of what is offered, the head and the embedding are what people train."""
    st.session_state["modules_to_save box"] = list(
        cast("tuple[str, ...]", session.value("modules_to_save") or ())
    )
    st.multiselect(
        "Trained whole",
        whole_modules(model) if model else (),
        key="modules_to_save box",
        on_change=_take_whole,
        accept_new_options=True,
        placeholder="None",
        help="PEFT's modules_to_save: of each a copy is trained beside the adapters, and the frozen original stays. "
        "PEFT's default: none.",
    )


def _take_whole() -> None:
    session.put({"modules_to_save": tuple(st.session_state["modules_to_save box"]) or None})
    _redraw()


@contextmanager
def _expander(label: str) -> Iterator[bool]:
    """An expander whose widgets exist only while it is open; whether it is."""
    expander = st.expander(label, key=f"{label} open", on_change="rerun")
    with expander:
        yield bool(expander.open)


def _open_what_applies(method: Method) -> None:
    """A method that was chosen opens what belongs to it."""
    state = st.session_state
    if state.get("method drawn") != method:
        state["method drawn"] = method
        state[f"{LORA} open"] = method is not Method.FULL
        state[f"{QUANTISATION} open"] = method is Method.QLORA


def draw() -> None:
    """All controls, in the sidebar, always in the same places; what does not apply now keeps its value."""
    model_box.settle()
    model_box.follow()
    now = reading()
    _open_what_applies(now.setup.method)
    with st.sidebar:
        actions.draw()
        model_box.draw(now.model)
        gpu_box.draw(now.gpu)
        _what(now.setup)
        _batch()
        _expanders()
    if st.session_state["model"] is None:  # back to a bare address
        st.rerun()


@lru_cache(maxsize=512)
def linear_modules(model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a layer's linear modules as PEFT takes them: all, and those of attention.

    A name that stands for two modules (GPT-2's ``c_proj``) is written with its block.
    """
    modules = (module for index, _ in layer_groups(model) for module in layer_modules(model, index))
    paths = list(dict.fromkeys(module.name for module in modules if isinstance(module, Linear)))
    lasts = [path.rpartition(".")[2] for path in paths]
    names = [
        last if lasts.count(last) == 1 else path for path, last in zip(paths, lasts, strict=True)
    ]
    attention = [name for name, path in zip(names, paths, strict=True) if "att" in path]
    return tuple(names), tuple(attention)


@lru_cache(maxsize=512)
def whole_modules(model: Model) -> tuple[str, ...]:
    """Names of the embeddings and the head, which adapters are often trained beside."""
    modules = (*outer_modules(model), *tied_head(model))
    return tuple(module.name for module in modules if isinstance(module, Embedding | Linear))


# --- the setup ----------------------------------------------------------------------------------


def _asked() -> dict[str, object]:
    state = st.session_state
    asked = {**session.kept(), **{key: state[key] for key in session.BOUND if key in state}}
    return asked | {"model": model_box.name(), "gpu": _as_fact(state["gpu"])}


def reading() -> Reading:
    """What the widgets say, through the contract, with the problems of the address in front."""
    now = read_setup(_asked(), model_box.in_use())
    said = (*st.session_state["address_problems"], *now.problems)
    return replace(now, problems=tuple(dict.fromkeys(said)))


def answer() -> Estimate | str:
    """The estimate of what the widgets say, or the sentence that refuses it."""
    now = reading()
    if now.model is None:
        return " ".join(now.problems)
    try:
        return estimate(now.model, now.gpu, now.setup)
    except ValueError as refusal:
        return str(refusal)


def changed(of: Estimate, keys: Mapping[str, Any]) -> Estimate | None:
    """The estimate of the same setup with some keys changed; None where that cannot be trained."""
    try:
        return estimate(of.model, of.gpu, replace(of.setup, **keys))
    except ValueError:
        return None


def applied(of: Estimate, keys: Mapping[str, Any]) -> Estimate:
    """The estimate after a remedy, which may name another GPU."""
    setup = {key: value for key, value in keys.items() if key != "gpu"}
    gpu = catalog.gpu(keys["gpu"]) if "gpu" in keys else of.gpu
    return estimate(of.model, gpu, replace(of.setup, **setup))


def methods(of: Estimate) -> dict[Method, Estimate]:
    """The same setup under each method that can train it; as PEFT and ZeRO-3 take it where they refuse it as it is.

    PEFT refuses some layers, and dropout beside stacked experts; ZeRO-3 divides packed weights only where they
    pass for floats.
    """
    targets = default_targets(of.model, replace(of.setup, method=Method.LORA))
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"bnb_4bit_quant_storage": str(Dtype.BFLOAT16)},
        {"lora_target_modules": targets},
        {"bnb_4bit_quant_storage": str(Dtype.BFLOAT16), "lora_target_modules": targets},
    )
    found = {}
    for method in Method:
        others = (changed(of, {"method": method, **way}) for way in ways)
        if (other := next(filter(None, others), None)) is not None:
            found[method] = other
    return found


def method_keys(of: Estimate) -> dict[str, object]:
    """What a click on a method's card sets."""
    return {
        "method": of.setup.method,
        "bnb_4bit_quant_storage": of.setup.bnb_4bit_quant_storage,
        "lora_target_modules": _targets_as_chosen(of.model, of.setup),
    }


def let_figure_draw() -> None:
    """Before what stands around them: a moment in which the browser draws verdict and figure.

    A move that comes meanwhile ends this run: who goes on moving never waits for the rest, which is drawn once.
    """
    if st.session_state.pop("moving", False):
        time.sleep(REST_SECONDS)


def is_dark() -> bool:
    """Whether the visitor reads light on dark."""
    return bool(st.context.theme.type == "dark")


def is_what_if(of: Estimate) -> bool:
    """Float32 states on 16-bit weights, which no Trainer run has."""
    setup = of.setup
    return (
        setup.method is Method.FULL
        and setup.optim_state_dtype is Dtype.FLOAT32
        and setup.dtype is not Dtype.FLOAT32
    )
