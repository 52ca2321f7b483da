"""Every row of the shipped tables is whole, unique and plausible."""

from __future__ import annotations

import csv
import re
from fractions import Fraction

import pytest

from estimator import Strategy, TrainingSetup, catalog, estimate
from estimator.families.registry import MODELLED
from tests.rows import for_each

GIB = 2**30
TABLES = ("gpus.csv", "models.csv")
METAL_BYTES = {True: Fraction(2, 3), False: Fraction(3, 4)}
"""Metal's default share for one process, by whether the memory is of 32 GB at most: llama.cpp prints 10922 MiB of an M1
Pro's 16 GB, 17179.89 MB of an M2's 24 GB and 147456 MiB of an M2 Ultra's 192 GB."""
RESERVE_MIB = {"NVIDIA": 1072, "AMD": 304, "Intel": 1414}  # the largest that a reading shows


def rows(table: str) -> list[dict[str, str]]:
    with (catalog.DATA / table).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_source_and_a_date(table):
    for row in rows(table):
        assert None not in row
        assert None not in row.values()
        assert row["source"].strip(), row
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["retrieved"]), row


@pytest.mark.parametrize(("table", "key"), [("gpus.csv", "name"), ("models.csv", "hub_id")])
def test_names_are_unique_ignoring_case(table, key):
    names = [row[key].casefold() for row in rows(table)]
    assert len(names) == len(set(names))


@for_each("gpu", catalog.gpus().values())
def test_usable_memory_is_slightly_below_the_nameplate(gpu):
    share = gpu.memory_bytes / (gpu.nameplate_gb * GIB)
    if gpu.vendor == "Apple":
        default = METAL_BYTES[gpu.nameplate_gb <= 32]
        assert default - Fraction(1, 4096) <= share <= (default if gpu.memory_is_derived else 1)
    else:
        assert 0.88 <= share <= 1.01


@for_each("row", rows("gpus.csv"))
def test_derived_memory_is_reported_memory_minus_the_reserve(row):
    assert (row["memory_is_derived"] == "true") == bool(row["memory_reserve_mib"])
    if row["memory_reserve_mib"] and row["memory_reported_mib"]:
        mib = int(row["memory_reported_mib"]) - int(row["memory_reserve_mib"])
        assert int(row["memory_bytes"]) == mib * 2**20


def test_reserve_is_at_least_what_readings_show():
    """The rule of data/README.md, against the cards that have both."""
    for row in rows("gpus.csv"):
        if row["memory_is_derived"] == "false" and row["memory_reported_mib"]:
            reported = int(row["memory_reported_mib"])
            reserve = RESERVE_MIB[row["vendor"]]
            if row["vendor"] == "NVIDIA":
                reserve = min(reserve, 0.0398 * reported)
            assert int(row["memory_bytes"]) >= (reported - reserve) * 2**20 - 1
        if row["memory_is_derived"] == "false" and row["form_factor"] == "PCIe consumer":
            assert int(row["memory_bytes"]) >= (1 - 0.044) * float(row["nameplate_gb"]) * GIB


@for_each("row", rows("gpus.csv"))
def test_every_card_has_a_source_and_its_memory_a_reading_or_a_mark(row):
    assert row["source"].startswith("https://")
    assert "remember" not in " ".join(row.values())
    if row["memory_is_derived"] == "true":
        assert row["memory_source"] == "derived"
    else:
        assert row["memory_source"].startswith("https://")
        quoted = re.search(r"([\d.,]+) ?(bytes|GiB|GB|MiB|MB|KB)?\b", row["note"].split(": ", 1)[1])
        assert quoted, row["note"]
        unit = {"GiB": GIB, "GB": GIB, "MiB": 2**20, "MB": 2**20, "KB": 2**10}
        figure = float(quoted[1].strip(",").replace(",", "")) * unit.get(quoted[2], 1)
        assert int(row["memory_bytes"]) == pytest.approx(figure, rel=1e-3)


@for_each("row", rows("gpus.csv"))
def test_rates_are_plausible(row):
    assert 60 <= float(row["memory_bandwidth_gb_per_s"]) <= 20_000
    assert 2014 <= int(row["release_year"]) <= 2026
    for column in ("bf16_dense_tflops", "fp16_dense_tflops", "fp32_tflops", "fp8_dense_tflops"):
        assert not row[column] or 1 <= float(row[column]) <= 20_000
    if row["bf16_dense_tflops"]:
        assert row["supports_bf16"] == "true"


LANES = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}
"""float32 lanes of a multiprocessor, else 128: CUDA C++ Programming Guide, throughput of native arithmetic."""


@for_each("gpu", catalog.gpus().values())
def test_multiprocessors_give_the_float32_rate_at_a_plausible_clock(gpu):
    assert gpu.vendor == "NVIDIA" or gpu.multiprocessors is None
    if gpu.multiprocessors:
        lanes = gpu.multiprocessors * LANES.get(gpu.compute_capability, 128)
        assert 1.0e9 <= gpu.fp32_tflops * 1e12 / (2 * lanes) <= 2.7e9


@for_each("entry", catalog.models().values())
def test_every_model_has_a_modelled_architecture(entry):
    assert entry.model.model_type in MODELLED
    assert entry.gated in {"yes", "no", "unknown"}
    assert entry.license
    assert entry.family
    assert bool(entry.published_extra) == bool(entry.published_extra_is)


@for_each("row", rows("models.csv"))
def test_dimensions_are_plausible(row):
    """Bounds from the smallest and largest published decoders, with margin on both sides."""
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", row["hub_id"])
    assert 10**7 <= catalog.models()[row["hub_id"]].parameters <= 2 * 10**12
    for column, low, high in [
        ("vocab_size", 10_000, 500_000),
        ("hidden_size", 64, 32_768),
        ("intermediate_size", 128, 131_072),
        ("num_hidden_layers", 2, 200),
        ("num_attention_heads", 1, 256),
        ("num_key_value_heads", 1, 256),
        ("head_dim", 16, 512),
        ("max_position_embeddings", 0, 20_000_000),
    ]:
        assert low <= int(row[column]) <= high, column
    assert all(
        row[name] in {"true", "false"} for name in row if row[name].lower() in {"true", "false"}
    )
    assert set(row["layer_types"]) <= {"c", "e", "f", "l", "m", "s"}
    assert "s" not in row["layer_types"] or int(row["sliding_window"]) > 0


def test_names_match_in_any_case():
    assert catalog.model("META-LLAMA/llama-3.1-8b") is catalog.model("meta-llama/Llama-3.1-8B")
    assert catalog.gpu("geforce rtx 4090").name == "GeForce RTX 4090"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("gpt2", "openai-community/gpt2"),
        ("lama-3.1-8b-instuct", "meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_unknown_model_is_refused_with_similar_names(name, near):
    with pytest.raises(ValueError, match="is not in the catalogue") as refused:
        catalog.model(name)
    assert near in str(refused.value)


def test_unknown_gpu_is_refused_with_similar_names():
    with pytest.raises(ValueError, match=r"GPU 'RTX 4O90'.*GeForce RTX 4090"):
        catalog.gpu("RTX 4O90")


def test_refusal_without_similar_names_still_says_what_to_do():
    with pytest.raises(ValueError, match=r"the catalogue has \d+; choose"):
        catalog.gpu("@@@@@@")


# --- names that people use ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4090", ["GeForce RTX 4090"]),
        ("rtx4090", ["GeForce RTX 4090"]),
        ("RTX 3090", ["GeForce RTX 3090"]),  # not the Ti, which has a longer name
        ("3090 ti", ["GeForce RTX 3090 Ti"]),
        ("5090 32 GB", ["GeForce RTX 5090"]),
        ("7900xtx", ["Radeon RX 7900 XTX"]),
        ("7900 XT", ["Radeon RX 7900 XT"]),
        ("MI300", []),  # an MI300X or an MI300A
        ("RTX 4060", ["GeForce RTX 4060"]),
        ("RTX 4060 Ti", ["GeForce RTX 4060 Ti 8GB", "GeForce RTX 4060 Ti 16GB"]),
        ("rtx4060ti16g", ["GeForce RTX 4060 Ti 16GB"]),
        ("RTX 4070 Ti", ["GeForce RTX 4070 Ti"]),
        ("4070S Ti", ["GeForce RTX 4070 Ti SUPER"]),  # Vast.ai's name
        ("RTX 4090 mobile", ["GeForce RTX 4090 Laptop"]),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", ["GeForce RTX 4060 Laptop"]),  # torch's name
        ("RTX 5070", ["GeForce RTX 5070"]),
        ("RTX 2080", ["GeForce RTX 2080"]),
        ("Apple M3", [f"Apple M3 ({size} GB)" for size in (8, 16, 24)]),
        ("M3 Max", [f"Apple M3 Max ({size} GB)" for size in (36, 48, 64, 96, 128)]),
        ("V100 16GB", ["V100-PCIe-16GB", "V100-SXM2-16GB"]),
        ("RTX 6000", []),  # Quadro, Ada or PRO
        ("RTX PRO 6000", []),  # of which there are three editions
        ("Titan", []),
        ("DGX Spark", ["DGX Spark GB10"]),
        ("A10", ["A10"]),  # not the A100
        ("L40", ["L40"]),
        ("A100 40GB", ["A100-PCIe-40GB", "A100-SXM4-40GB"]),
        ("4x A100-80GB", ["A100-PCIe-80GB", "A100-SXM4-80GB"]),
        ("H100", ["H100-PCIe-80GB", "H100-SXM5-80GB", "H100-NVL-94GB"]),
        ("H100 SXM", ["H100-SXM5-80GB"]),
        ("3080", ["GeForce RTX 3080 10GB", "GeForce RTX 3080 12GB"]),
        ("NVIDIA GeForce RTX 3080", ["GeForce RTX 3080 10GB", "GeForce RTX 3080 12GB"]),
        ("NVIDIA A100-SXM4-80GB", ["A100-SXM4-80GB"]),  # torch's name
        ("NVIDIA H100 80GB HBM3", ["H100-SXM5-80GB"]),
        ("Tesla T4", ["T4"]),
        ("a2-ultragpu-8g", ["A100-SXM4-80GB"]),  # a cloud's name for a machine
        ("P4D.24xlarge", ["A100-SXM4-40GB"]),
        ("p5.48xlarge", ["H100-SXM5-80GB"]),
        ("p5en.48xlarge", ["H200-SXM-141GB"]),
        ("p6-b300.48xlarge", ["B300-270GB"]),
        ("g7e.48xlarge", ["RTX PRO 6000 Blackwell Server"]),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", ["A100-SXM4-80GB MIG 1g.10gb"]),
        ("H100 1g.10gb", ["H100-PCIe-80GB MIG 1g.10gb", "H100-SXM5-80GB MIG 1g.10gb"]),
        ("nvidia", []),
        ("@@@", []),
        ("x" * 10**6, []),
    ],
)
def test_cards_are_found_by_common_names(text, meant):
    assert list(catalog.find_gpus(text)) == meant
    if len(meant) == 1:
        assert catalog.gpu(text).name == meant[0]
    else:
        said = f"may be {', '.join(meant)};" if meant else "is not in the catalogue"
        with pytest.raises(ValueError, match=re.escape(said)):
            catalog.gpu(text)


def test_every_card_and_slice_is_found_by_each_of_its_names():
    for card in [*catalog.gpus().values(), *catalog.slices().values()]:
        assert catalog.gpu(card.name.upper()) == card
        assert card.name in catalog.find_gpus(card.device_name or card.name)


LINES = frozenset(["geforce", "rtx", "gtx", "radeon", "rx", "instinct", "arc", "apple", "gb10"])
MOUNTS = frozenset(["pcie", "sxm", "sxm2", "sxm4", "sxm5", "nvl"])


@for_each("name", catalog.gpus())
def test_no_word_that_distinguishes_products_appears_by_itself(name):
    """Without any word but its line, its size and its mounting, a card's name means another card or none; without
    these two it means as many as there are.
    """
    words = re.findall(r"[a-z0-9]+", re.sub(r"([0-9]) GB", r"\1gb", name).casefold())
    words = words[: len(re.findall(r"[a-z0-9]+", name.split(" (", maxsplit=1)[0].casefold()))]
    for word in words:
        found = catalog.find_gpus(" ".join(one for one in words if one != word))
        if word not in LINES | MOUNTS and not re.fullmatch(r"[0-9]+gb", word):
            assert name not in found


@pytest.mark.parametrize(
    ("several", "of_one"),
    [
        ("3080", ["10gb", "12gb"]),
        ("3060", ["8gb", "12gb"]),
        ("2060", ["6gb", "12gb"]),
        ("5060 Ti", ["8gb", "16gb"]),
        ("3080 Laptop", ["8gb", "16gb"]),
        ("RTX A2000", ["6gb", "12gb"]),
        ("GH200", ["96gb", "144gb"]),
    ],
)
def test_a_name_of_several_sizes_asks_for_the_size(several, of_one):
    sizes = [re.search(r"[0-9]+gb", name.casefold()) for name in catalog.find_gpus(several)]
    assert [size and size[0] for size in sizes] == of_one
    with pytest.raises(ValueError, match=r"may be .*; name one of them\."):
        catalog.gpu(several.removeprefix("RTX "))


def test_alternatives_to_a_card_are_rented_out():
    own = catalog.gpu("RTX 4090 Laptop")
    assert [card for card in catalog.gpus_like(own) if not card.prices] == [own]
    assert len(catalog.gpus_like(catalog.gpu("M3 Max 64GB"))) == 52  # nobody rents out any


# --- number of GPUs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names", "number"),
    [
        ("4x A100-SXM4-80GB", ["A100-SXM4-80GB"], 4),
        ("8 × H100 SXM", ["H100-SXM5-80GB"], 8),
        ("2*RTX 4090", ["GeForce RTX 4090"], 2),
        ("4 RTX 4090", ["GeForce RTX 4090"], 4),
        ("RTX 4090 x2", ["GeForce RTX 4090"], 2),
        ("H200-SXM-141GB:8", ["H200-SXM-141GB"], 8),
        ("a2-ultragpu-4g", ["A100-SXM4-80GB"], 4),  # SkyPilot's table of Google's machines
        ("p4d.24xlarge", ["A100-SXM4-40GB"], 8),
        ("g5.12xlarge", ["A10G"], 4),  # Karpenter's page of AWS's instance types
        ("g6e.xlarge", ["L40S"], 1),
        ("Standard_NC48ads_A100_v4", ["A100-PCIe-80GB"], 2),  # Microsoft's page of the series
        ("ND96isr H100 v5", ["H100-SXM5-80GB"], 8),
        ("2x p4d.24xlarge", ["A100-SXM4-40GB"], 16),  # by hand: two machines of eight
        ("3090 Ti", ["GeForce RTX 3090 Ti"], None),  # not 3,090 GPUs
        ("4090", ["GeForce RTX 4090"], None),
        ("A10", ["A10"], None),
        ("RTX A6000", ["RTX A6000"], None),
        ("0x A10", [], None),
    ],
)
def test_name_may_contain_the_number_of_gpus(text, names, number):
    assert list(catalog.find_gpus(text)) == names
    meant = catalog.gpus_meant(text)
    assert (meant and meant.number) == number


@for_each("row", rows("instances.csv"))
def test_every_instance_gives_its_card_and_count(row):
    assert catalog.find_gpus(row["instance"]) == (row["gpu"],)
    meant = catalog.gpus_meant(row["instance"])
    assert meant.number == meant.of_a_machine == int(row["gpus"])
    assert row["source"].startswith("https://")


def test_machines_and_instances_agree():
    known = {row["instance"].casefold(): row for row in rows("instances.csv")}
    both = [row for row in rows("machines.csv") if row["machine"].split(" (")[0] in known]
    assert len(both) > 10
    for row in both:
        other = known[row["machine"].split(" (")[0]]
        assert (row["gpu"], row["gpus"]) == (other["gpu"], other["gpus"])


def test_unknown_instance_lists_similar_ones():
    with pytest.raises(
        ValueError, match=r"'p4d\.24xlarg' is not in the catalogue; similar names: p4d"
    ):
        catalog.gpu("p4d.24xlarg")


@pytest.mark.parametrize(
    "address",
    [
        "https://huggingface.co/Qwen/Qwen2.5-7B",
        "https://huggingface.co/Qwen/Qwen2.5-7B/tree/main",
        "huggingface.co/qwen/qwen2.5-7b?library=transformers",
        "https://hf.co/Qwen/Qwen2.5-7B/blob/main/config.json",
        " Qwen/Qwen2.5-7B ",
    ],
)
def test_hub_url_names_its_model(address):
    assert catalog.model(address).hub_id == "Qwen/Qwen2.5-7B"


# --- slices ---------------------------------------------------------------------------------------


def test_slice_has_its_share_of_the_card():
    """By hand: 42 of an A100's 108 SMs, half of its bandwidth, and half of its price since two slices fill it."""
    card, part = catalog.gpu("A100-SXM4-40GB"), catalog.gpu("A100-SXM4-40GB MIG 3g.20gb")
    assert part.bf16_dense_tflops == pytest.approx(312 * 42 / 108, abs=0.01)
    assert part.memory_bandwidth_gb_per_s == 1555 / 2
    assert part.memory_bytes == int(19.62 * GIB)  # nvidia-smi mig -lgip
    assert part.multiprocessors == 42
    assert part.interconnect_gb_per_s is None
    singly = [price for price in card.prices if price.min_gpus == 1]
    assert [2 * price.usd_per_gpu_hour for price in part.prices] == pytest.approx(
        [price.usd_per_gpu_hour for price in singly]
    )


@for_each("row", rows("mig.csv"))
def test_slices_fit_into_their_card(row):
    card, number = catalog.gpu(row["gpu"]), int(row["instances"])
    part = catalog.slices()[f"{row['gpu']} MIG {row['profile']}"]
    assert number * part.memory_bytes <= card.memory_bytes
    assert 0 < Fraction(row["sm_share"]) * number <= 1
    share = Fraction(row["memory_share"])
    left = catalog.MIG_PERCENT_LEFT[share]
    assert left <= 100 * part.memory_bytes / (card.memory_bytes * share) + 0.01 <= 100.01
    assert "https://" in row["source"]


def test_slices_of_an_a100_of_80_gb_are_as_large_as_they_read():
    """9728 MiB: kata-containers' page on NVIDIA GPUs, nvidia-smi on 1g.10gb; 19968 MiB: XuehaiPan/nvitop, pull 8."""
    for card in ("A100-PCIe-80GB", "A100-SXM4-80GB"):
        for profile, mib in (("1g.10gb", 9728), ("1g.20gb", 19968), ("2g.20gb", 19968)):
            part = catalog.gpu(f"{card} MIG {profile}")
            assert (part.memory_bytes, part.memory_is_derived) == (mib * 2**20, False)


def test_several_slices_get_no_time_and_a_reason():
    part = catalog.gpu("A100-SXM4-80GB MIG 3g.40gb")
    setup = TrainingSetup(num_gpus=2, strategy=Strategy.DDP)
    answer = estimate(catalog.model("openai-community/gpt2"), part, setup)
    assert answer.time is None
    assert any("slices have no link to one another" in said for said in answer.assumptions)


# --- search -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "first", "among"),
    [
        ("qwen 7b", "Qwen/Qwen1.5-7B", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", None),
        ("llama 3.1 8B instruct", "meta-llama/Llama-3.1-8B-Instruct", None),
        ("MISTRAL", "mistralai/Mistral-7B-v0.1", "mistralai/Mistral-Nemo-Base-2407"),
        ("gemma 2b", "google/gemma-2b", "google/gemma-2-2b"),
        ("500m qwen", "Qwen/Qwen1.5-0.5B", "Qwen/Qwen2.5-0.5B"),  # by size: 0.46 to 0.49 billion
        ("coder", "Qwen/Qwen2.5-Coder-7B-Instruct", "bigcode/starcoder2-7b"),
    ],
)
def test_search_matches_name_family_and_size(text, first, among):
    found = [entry.hub_id for entry in catalog.search(text)]
    assert found[0] == first
    assert among is None or among in found


def test_search_without_a_match_finds_similar_spellings():
    found = [entry.hub_id for entry in catalog.search("mistrl nemoo")]
    assert "mistralai/Mistral-Nemo-Base-2407" in found


def test_search_results_show_size_license_and_gate():
    (entry,) = catalog.search("llama 3.1 405b")
    assert entry.hub_id == "meta-llama/Llama-3.1-405B"
    assert entry.parameters == entry.published_parameters == 405_853_388_800  # the Hub's count
    assert (entry.license, entry.gated) == ("llama3.1", "yes")


@pytest.mark.parametrize("text", ["", "   ", "///"])
def test_empty_search_shows_the_first_rows(text):
    assert catalog.search(text, 3) == tuple(catalog.models().values())[:3]


@pytest.mark.parametrize("text", ["zzzzzz", "x" * 10**6, "qwen 7b llama", "\0\n"])
def test_search_without_results_is_no_error(text):
    assert isinstance(catalog.search(text), tuple)


def test_every_model_is_found_by_its_own_id():
    for hub_id in catalog.models():
        assert catalog.search(hub_id)[0].hub_id.casefold() == hub_id.casefold()


def test_nearest_model_has_the_given_dimensions():
    llama = catalog.model("meta-llama/Llama-3.1-8B")
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    near = catalog.nearest({name: getattr(llama, name) for name in names}).model
    assert [getattr(near, name) for name in names] == [getattr(llama, name) for name in names]
    largest = "moonshotai/Kimi-K2-Instruct"
    assert catalog.nearest({"parameters": 2 * 10**12}).hub_id == largest
