"""The GPU box: a GPU of the catalogue by any of its names, or a custom one.

The choice is stored under the key ``gpu`` in the URL's form: a name, or the JSON of a custom GPU. A hidden field is
bound to the URL; the visible box shows a readable name.
"""

from __future__ import annotations

import json
from html import escape
from typing import cast

import streamlit as st

from dashboard.state import actions, question, session
from dashboard.words import terms, units
from estimator import LARGEST_MEMORY, SMALLEST_MEMORY, Gpu, Strategy, catalog, contract

MOST_MEANT = 12
"""Maximum cards proposed for a search. Our choice: enough for all cards with the same number in their names."""


def draw(gpu: Gpu | None) -> None:
    """Draws the box and search matches."""
    state = st.session_state
    st.text_input("GPU in the address", None, key="gpu", bind="query-params")  # hidden
    state["gpu box"] = state["gpu"]
    st.selectbox(
        "GPU",
        _options(),
        index=None,
        key="gpu box",
        format_func=_label,
        placeholder="None: sizes only",
        accept_new_options=True,
        on_change=_choose,
        help="The GPU, by any name: A100 40GB, 4x 4090, p4d.24xlarge, H100 MIG 1g.10gb, or what torch prints. No "
        "default: without a GPU you see sizes but no verdict.",
    )
    _meant()


def draw_own(gpu: Gpu | None) -> None:
    """Draws the fields of a custom GPU."""
    with st.expander("Own GPU", key="own gpu"):
        _own(gpu)


def _options() -> list[str]:
    """The catalogue's names, preceded by a chosen GPU that is not among them."""
    names, own = list(catalog.gpus()), st.session_state["own"]["gpu"]
    return names if own is None or own in names else [own, *names]


def _label(option: str) -> str:
    """The label of an option; typed text stays unchanged."""
    if not option.startswith("{"):
        return option
    gpu = contract.read_setup({"gpu": question.as_fact(option)}).gpu
    return option if gpu is None else terms.card(gpu)


def take(name: str, typed: str = "") -> None:
    """Chooses a card or slice of the catalogue, as a click does; ``typed`` may give their number."""
    st.session_state["gpu meant"] = None
    st.session_state["own"]["gpu"] = name
    actions.take({"gpu": name, **_number(typed)})


def _number(typed: str) -> dict[str, object]:
    """Keys that typed words set in addition to the GPU. A chosen strategy stays."""
    keys = contract.gpu_keys(typed)
    if not Strategy(str(session.value("strategy"))).is_alone:
        keys.pop("strategy", None)
    return keys


def _choose() -> None:
    """Accepts a name from the list, or words that match a single GPU. Offers the matches if there are several."""
    state = st.session_state
    typed, state["gpu meant"] = state["gpu box"], None
    if typed is None or typed in _options():
        session.put({"gpu": typed})
        return
    found = catalog.find_gpus(typed)
    if len(found) == 1:
        name = catalog.gpu(typed).name_in_a_setup  # a cloud's machine type has prices of its own
        state["own"]["gpu"] = name
        session.put({"gpu": name, **_number(typed)})
        return
    state["gpu meant"] = (typed, found, () if found else catalog.gpus_near(typed))


def _meant() -> None:
    """Shows the GPUs that match the typed words, or those with similar names if none does."""
    asked = st.session_state.get("gpu meant")
    if asked is None:
        return
    typed, found, near = asked
    name = f"“{escape(typed[:100])}”"
    if found:
        said = f"{name} may be:"
    elif near:
        said = f"No GPU in the catalogue is called {name}; describe it under Own GPU, or choose a similar one:"
    else:
        said = f"No GPU in the catalogue is called {name}; describe it under Own GPU."
    st.html(f'<p class="hr-note">{said}</p>')
    with st.container(key="meant gpus", gap="xsmall"):
        for name in (found or near)[:MOST_MEANT]:
            st.button(name, on_click=take, args=(name, typed), key=f"take {name}", width="stretch")


def _own(gpu: Gpu | None) -> None:
    """Fields of a custom GPU: memory, the card it is as fast as, and its price."""
    price = session.value("usd_per_gpu_hour")
    keys = (f"own GiB {hash(gpu)}", f"own like {hash(gpu)}", f"own price {hash(gpu)} {price}")
    st.number_input(
        "Usable memory, GiB",
        SMALLEST_MEMORY / units.GIB,
        LARGEST_MEMORY / units.GIB,
        round(gpu.memory_bytes / units.GIB, 2) if gpu else 24.0,
        0.5,
        key=keys[0],
        help="torch.cuda.get_device_properties(0).total_memory, in GiB.",
    )
    names = list(catalog.gpus())
    like = gpu and (gpu.like or gpu.name)
    st.selectbox(
        "As fast as",
        names,
        index=names.index(like) if like in names else None,
        key=keys[1],
        placeholder="Unknown: no hours, no dollars",
        help="A GPU with the same speed. Without it you see whether the run fits, but no hours.",
    )
    st.number_input(
        "US dollars per hour",
        0.0,
        1_000_000.0,
        cast("float | None", price),
        0.1,
        key=keys[2],
        placeholder="Unknown: no dollars",
        help="Your price of one such GPU per hour; 0 if you own it.",
    )
    st.button("Use this GPU", on_click=_take_own, args=keys, key="take own card", width="stretch")


def _take_own(memory: str, like: str, price: str) -> None:
    """Uses the custom card in the three fields."""
    state = st.session_state
    card = {"like": state[like], "memory_bytes": round(state[memory] * units.GIB)}
    if state[like] is None:
        del card["like"]
    option = json.dumps(card, separators=(",", ":"))
    state["gpu meant"] = None
    state["own"]["gpu"] = option
    actions.take({"gpu": option, "usd_per_gpu_hour": state[price]})
