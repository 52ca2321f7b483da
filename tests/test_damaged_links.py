"""Links damaged by mail programs, chats and typing: every page says what it dropped and never crashes.

Valid links are cut, garbled, doubled and mixed, from a fixed seed. ``DAMAGED_LINKS=2000`` tries that many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch
from urllib.parse import parse_qs, quote

import pytest
from streamlit.testing.v1 import AppTest

from estimator import hub
from estimator.sources.repository import About, HubModel, Trouble
from estimator.values.keys import KEYS

ROOT = Path(__file__).resolve().parent.parent
LINKS = int(os.environ.get("DAMAGED_LINKS", "90"))
AT_ONCE = 30
"""Links that one visitor follows, one after the other."""

ESTIMATES = (
    "model=Qwen/Qwen3-8B&gpu=L4&method=qlora&lora_r=64&lora_target_modules=q_proj&lora_target_modules=v_proj",
    "model=openai-community/gpt2",
    "model=mistralai/Mistral-7B-v0.1&gpu=A100-SXM4-80GB&num_gpus=16&strategy=hsdp&dp_replicate_size=2&present=1",
    "model=me/unknown&gpu=H100-SXM5-80GB&method=lora&max_length=1000000&section=How far",
    'model={"like":"Qwen/Qwen3-8B","num_hidden_layers":18}&gpu={"memory_bytes":25000000000}&mfu=0.4',
    "model=mistralai/Mixtral-8x7B-v0.1&gpu=L4&num_gpus=4&strategy=zero3&offload_param=cpu&section=Where the layers sit",
)
COMPARISONS = (
    "s=A~m.openai-community/gpt2&v=1",
    "s=A~m.openai-community/gpt2&s=B~m.Qwen/Qwen3-8B~g.L4~me.qlora~r.64&v=1&within=24&context=1000000",
    "s=LoRA, 4k~m.mistralai/Mistral-7B-v0.1~g.L4~me.lora~l.4096&s=X~m.me/unknown~g.L4&v=1&present=2",
    "s=A~m.me/unknown&v=1",
    "s=A~m.openai-community/gpt2~l.100000~g.L4&v=1&present=1",
    "setup=Setup~m.Qwen/Qwen3-8B~g.L4&v=1",
    "s=A~m.Qwen/Qwen3-8B~n.8~st.fsdp~g.A100-SXM4-80GB&v=1&setup=Setup~m.openai-community/gpt2&within=0.5",
)
GARBAGE = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1e400",
        "9" * 40,
        "NaN",
        "null",
        "true",
        "[]",
        "{}",
        '{"like":3}',
        "~",
        "~~m.",
        ".",
        "&",
        "=",
        "%",
    ),
    *(
        "%00",
        "%F0%9F",
        "\u202e",
        "é",
        "<script>alert(1)</script>",
        "![x](https://example.org/x.png)",
        "../../etc",
        "💥",
    ),
    *("s=", "v=2", "present=99", "context=0", "within=-3", "x" * 5000),
)


def damaged(link: str, others: Sequence[str], chance: random.Random) -> str:
    """The link with one to four kinds of damage."""
    for _ in range(chance.randint(1, 4)):
        at, to = sorted(chance.randrange(len(link) + 1) for _ in range(2))
        parts = link.split("&")
        one = chance.randrange(len(parts))
        name = parts[one].partition("=")[0]
        match chance.randrange(8):
            case 0:  # cut off, as at the end of a line
                link = link[:to]
            case 1:  # a piece is lost
                link = link[:at] + link[min(to, at + 12) :]
            case 2:
                link = link[:at] + chance.choice(GARBAGE) + link[at:]
            case 3:  # another value
                parts[one] = f"{name}={chance.choice(GARBAGE)}"
                link = "&".join(parts)
            case 4:  # the same key twice
                link += "&" + parts[one]
            case 5:  # a piece of another link
                other = chance.choice(others).split("&")
                link += "&" + chance.choice(other)
            case 6:  # any key, with a valid or invalid value
                key = chance.choice(KEYS)
                link += f"&{key.name}={chance.choice([*GARBAGE, str(key.default), '3', '0.5'])}"
            case 7:
                link = quote(link, safe="=&") if chance.random() < 0.5 else link.swapcase()
        link = link or "model="
    return link


def links(seed: int, kinds: Sequence[str], count: int) -> Iterator[str]:
    """Links of several kinds, each damaged differently."""
    chance = random.Random(seed)
    every = (*ESTIMATES, *COMPARISONS)
    for _ in range(count):
        yield damaged(chance.choice(kinds), every, chance)


def no_such_model(asked: str, **_: object) -> HubModel:
    """The Hub's answer to every id."""
    return HubModel(
        about=About(hub_id=asked), trouble=Trouble.NOT_FOUND, problem="It is not there."
    )


def follow(page: AppTest, link: str) -> None:
    """Opens an address; the visitor must see neither a traceback nor an empty page."""
    page.query_params = parse_qs(link, keep_blank_values=True, errors="replace")
    with patch("dashboard.address.unbound.has_been_gone_to", return_value=True):
        page.run()
    assert [element.value for element in page.exception] == [], link
    assert page.get("html"), link


@pytest.mark.usefixtures("rulers")
@pytest.mark.parametrize(
    ("file", "kinds", "share", "seed"),
    [
        # a comparison is drawn in a fifth of an estimate's time
        *(("pages/estimate.py", ESTIMATES, AT_ONCE, at) for at in range(LINKS // (3 * AT_ONCE))),
        *(
            ("pages/compare.py", COMPARISONS, AT_ONCE, at)
            for at in range(2 * LINKS // (3 * AT_ONCE))
        ),
        ("pages/how.py", (*ESTIMATES, *COMPARISONS), 3, 0),
        ("pages/proof.py", (*ESTIMATES, *COMPARISONS), 3, 0),
    ],
)
def test_damaged_links_never_crash_a_page(file, kinds, share, seed, monkeypatch):
    monkeypatch.setattr(hub, "fetch", no_such_model)
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=240)
    page.run()
    page.switch_page(file).run()
    for link in links(seed, kinds, share):
        follow(page, link)
