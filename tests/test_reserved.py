"""The caching allocator by hand, and its reserved memory against published runs."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from statistics import median

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dashboard.estimate import ledger
from estimator import Verdict, accuracy, catalog, estimate
from estimator.contract.estimates import write_estimate
from estimator.contract.text import describe
from estimator.families.hf_config import model_from_config
from estimator.proof.accuracy import Metric
from estimator.step import allocations
from estimator.step.allocations import hardware_of
from estimator.step.blocks import (
    EMPTY,
    GIVE,
    GIVE_ALL,
    GIVE_BEFORE,
    GIVE_LATE,
    MIB,
    NO_LIMIT,
    TAKE,
    TAKE_ONCE,
    Played,
    Plays,
    Request,
    Settings,
    log_of,
    play,
    rounded,
)
from estimator.step.reserved import outside_bytes, reserved_bytes, shown
from estimator.values.setup import TrainingSetup
from estimator.values.strategies import Strategy
from tests.test_delta_net import QWEN3_5
from tests.test_limits import GPUS, MODELS, SETUPS, SEVERAL, can_be_trained

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
A100 = catalog.gpu("A100-SXM4-80GB")


class Card:
    """A card on which requests are made one by one; each tensor has a key of its own."""

    def __init__(
        self, limit: int = NO_LIMIT, expandable: bool = False, max_split: int = NO_LIMIT
    ) -> None:
        self._limit = limit
        self._settings = Settings(expandable, max_split)
        self._requests: list[Request] = []
        self._tensors = 0

    def take(self, size: int, stream: int = 0) -> int:
        self._tensors += 1
        self._requests.append(Request(TAKE, self._tensors, size, stream))
        return self._tensors

    def give(self, tensor: int) -> None:
        self._requests.append(Request(GIVE, tensor))

    def empty(self) -> None:
        self._requests.append(Request(EMPTY, 0))

    @property
    def played(self) -> Played:
        return play(log_of([self._requests], [(0, 1)]), self._limit, self._settings)

    @property
    def reserved(self) -> int:
        return self.played.reserved


def test_an_emptied_cache_keeps_the_segments_that_are_in_use():
    for empties in (False, True):
        card = Card()
        whole, cut = card.take(100 * MIB), card.take(100 * MIB)
        card.give(whole)
        card.give(cut)
        card.take(40 * MIB)  # cuts one segment, so that only the other is wholly free
        if empties:
            card.empty()
        card.take(120 * MIB)
        # before: 100 + 100 + 120 MiB; the free one is given back first
        assert card.reserved == (220 * MIB if empties else 320 * MIB)


def test_small_tensors_share_segments_of_2_mib():
    card = Card()
    for _ in range(4096):  # 512 bytes each, 2 MiB together
        card.take(512)
    assert card.reserved == 2 * MIB
    card.take(512)
    assert card.reserved == 4 * MIB


def test_a_tensor_of_1_mib_is_still_small():
    # torch 2.13, CUDACachingAllocator.cpp, get_allocation_size: size <= kSmallSize, 1,048,576
    # and of kMinLargeAlloc, 10 MiB, and more a segment of its own, in whole 2 MiB
    sizes = {512: 2, MIB: 2, MIB + 512: 20, 10 * MIB - 512: 20, 10 * MIB: 10, 11 * MIB + 512: 12}
    for size, segment in sizes.items():
        card = Card()
        card.take(size)
        assert card.reserved == segment * MIB


def test_blocks_below_10_mib_are_cut_from_segments_of_20():
    card = Card()
    for _ in range(3):  # 2 MiB are left
        card.take(6 * MIB)
    assert card.reserved == 20 * MIB
    card.take(6 * MIB)
    assert card.reserved == 40 * MIB


def test_a_block_keeps_what_remains_of_it_up_to_1_mib():
    # CUDACachingAllocator.cpp, should_split: remaining > kSmallSize; a segment of 22 MiB, of which 1 MiB is left
    card = Card()
    card.take(21 * MIB)
    assert card.played[:2] == (22 * MIB, 22 * MIB)
    card.take(20 * MIB + 512)  # of its 22 MiB 2 MiB less 512 bytes are cut off
    assert card.played[:2] == (42 * MIB + 512, 44 * MIB)


def test_a_freed_block_is_split_and_merged_again():
    card = Card()
    card.give(card.take(100 * MIB))
    first, second = card.take(30 * MIB), card.take(70 * MIB)
    assert card.reserved == 100 * MIB
    card.give(first)
    card.give(second)
    card.take(100 * MIB)
    assert card.reserved == 100 * MIB


def test_a_live_block_prevents_merging_its_neighbours():
    card = Card()
    tensors = [card.take(size * MIB) for size in (40, 2, 40)]
    card.give(tensors[0])
    card.give(tensors[2])
    # the 2 MiB are in a separate segment of 20, so both blocks of 40 are whole segments: none is large enough for 60
    card.take(60 * MIB)
    assert card.reserved == (40 + 20 + 40 + 60) * MIB


def test_each_stream_has_its_own_blocks():
    card = Card()
    card.give(card.take(50 * MIB, 0))
    card.take(50 * MIB, 3)
    assert card.reserved == 100 * MIB


def test_a_full_card_gives_wholly_free_segments_back_and_dies_where_that_is_not_enough():
    card = Card(limit=100 * MIB)
    card.give(card.take(80 * MIB))
    card.take(90 * MIB)
    assert card.played == Played(90 * MIB, 90 * MIB, None)
    card.take(12 * MIB)
    assert card.played == Played(90 * MIB, 90 * MIB, 0, 0, 3)


def test_an_expandable_segment_grows_by_pages_where_it_ends():
    card = Card(expandable=True)
    first = card.take(30 * MIB)
    assert card.played[:2] == (30 * MIB, 40 * MIB)  # two pages of 20 MiB
    card.take(30 * MIB)  # the rest of the second page, and a third
    assert card.played[:2] == (60 * MIB, 60 * MIB)
    card.give(first)
    card.take(MIB)  # small tensors have a segment of their own, of pages of 2 MiB
    assert card.reserved == 62 * MIB


def test_what_is_free_at_the_end_of_an_expandable_segment_is_grown():
    for expandable, reserved in ((False, 160), (True, 120)):
        card = Card(expandable=expandable)
        card.give(card.take(100 * MIB))
        card.take(60 * MIB)
        card.take(60 * MIB)
        assert card.reserved == reserved * MIB


def test_an_expandable_segment_splits_to_512_bytes():
    card = Card(expandable=True)
    card.give(card.take(38 * MIB))
    card.take(39 * MIB + 512)  # of 40 MiB: a plain segment's block would keep the rest
    assert card.played[:2] == (39 * MIB + 512, 40 * MIB)


def test_the_block_that_can_grow_is_taken_last():
    card = Card(expandable=True)
    hole = card.take(40 * MIB)
    card.take(20 * MIB)
    end = card.take(20 * MIB)
    card.give(hole)
    card.give(end)
    card.take(20 * MIB)  # from the hole: the end, as large, counts with all that it can grow by
    card.take(80 * MIB)  # 20 MiB are free at the end
    assert card.reserved == (40 + 20 + 80) * MIB


def test_a_full_card_takes_free_pages_from_within_an_expandable_segment():
    def run(limit: int) -> Played:
        card = Card(limit, expandable=True)
        tensors = [card.take(20 * MIB) for _ in range(5)]
        for tensor in tensors[1::2]:
            card.give(tensor)
        card.take(40 * MIB)  # no hole is large enough
        return card.played

    assert run(100 * MIB) == Played(100 * MIB, 100 * MIB, None)
    assert run(99 * MIB).died == 0


def test_the_block_that_warms_the_cache_up_leaves_1_2_gib_of_the_card():
    # transformers 5.23, caching_allocator_warmup: of 4,096 MiB 2,867.2, in whole 2 MiB
    log = log_of([[Request(TAKE, 0, 3 * 2**30), Request(GIVE, 0)]], [(0, 1)])._replace(
        warms_up=True
    )
    assert play(log).reserved == 3 * 2**30
    assert play(log, 4 * 2**30).reserved == 2868 * MIB


def test_a_block_above_the_largest_that_is_split_serves_requests_as_large():
    # PyTorch's own allocator with max_split_size_mb:128 (torch 2.13 on a null GPU), MiB reserved after each request
    card = Card(max_split=128 * MIB)
    card.give(card.take(200 * MIB))
    card.take(50 * MIB)  # from the 200 without the setting
    assert card.reserved == 250 * MIB
    almost = card.take(185 * MIB)  # at most 20 MiB are left over, and stay with it
    assert card.played[:2] == (250 * MIB, 250 * MIB)
    card.give(almost)
    card.take(180 * MIB)
    assert card.reserved == 430 * MIB


@pytest.mark.parametrize(
    ("sizes", "allocated"),
    [((150, 285, 385), 850), ((500, 185, 85), 800)],
    ids=["the smallest that is large enough", "the largest ones until they are enough"],
)
def test_a_full_card_gives_back_only_as_many_large_blocks_as_it_needs(sizes, allocated):
    # PyTorch's own allocator with max_split_size_mb:50 on 1,000 MiB: the blocks that stay are reused whole
    card = Card(1000 * MIB, max_split=50 * MIB)
    for size in (100, 200, 300, 400):
        card.give(card.take(size * MIB))
    for size in sizes:
        card.take(size * MIB)
    assert card.played.allocated == allocated * MIB


def test_where_large_blocks_are_too_few_all_go_back():
    # the same with max_split_size_mb:150, on which 950 MiB find room
    card = Card(1000 * MIB, max_split=150 * MIB)
    for size in (100, 200, 300, 400, 950):
        card.give(card.take(size * MIB))
    assert card.played.died is None


def test_requests_are_rounded_to_steps_between_powers_of_two():
    # torch 2.13, docs/source/notes/cuda.md: 1,200 with 4 divisions is 1,280; here in KiB
    log = log_of(
        [[Request(TAKE, key, size << 10) for key, size in enumerate((1200, 1024, 1))]], [(0, 1)]
    )
    assert [size >> 10 for size in rounded(log, 4).requests[2]] == [1280, 1024, 1]
    assert rounded(log, 1) is log


def test_expandable_segments_need_less_and_allocate_no_more():
    plain = TrainingSetup(max_length=2048, gradient_checkpointing=True, optim="adamw_torch")
    before, after = (
        estimate(catalog.model("Qwen/Qwen2.5-1.5B"), A100, replace(plain, expandable_segments=on))
        for on in (False, True)
    )
    assert before.peak == after.peak
    # PyTorch's own allocator on a case of these shapes: 15.65 GiB plain, 12.71 with them
    assert after.needs.replay.least < 0.96 * before.needs.replay.least
    assert after.needs.replay.allocated <= before.needs.replay.allocated


def test_gathers_are_freed_two_gathers_later():
    # FSDP1's CPU runs ahead by two: torch 2.13, distributed/fsdp/_limiter_utils.py
    gathers = [
        request
        for key in range(4)
        for request in (Request(TAKE, key, 50 * MIB, 1), Request(GIVE_LATE, key, 0, 1))
    ]
    assert play(log_of([gathers], [(0, 1)])).reserved == 100 * MIB


def test_what_frees_the_one_before_and_what_is_taken_once():
    layer = [
        Request(TAKE, 0, 30 * MIB),
        Request(GIVE_BEFORE, 0),
    ]  # a layer's output, then its input
    states = [Request(TAKE_ONCE, 1, 50 * MIB)]
    end = [Request(GIVE_ALL, 0)]
    log = log_of([layer, states, end], [(0, 5), (1, 1), (2, 1), (0, 5), (1, 1), (2, 1)])
    assert play(log)[:2] == (110 * MIB, 110 * MIB)


@given(st.lists(st.tuples(st.integers(1, 30_000), st.integers(0, 5)), max_size=80), st.booleans())
def test_blocks_cover_tensors_and_freed_segments_serve_again(steps, expandable):
    card, held, alive = Card(expandable=expandable), [], 0
    most = 0
    for size, age in steps:
        held.append((card.take(512 * 7 * size), 512 * 7 * size))
        alive += held[-1][1]
        most = max(most, alive)
        if len(held) > age:
            tensor, gone = held.pop(age)
            card.give(tensor)
            alive -= gone
    for tensor, _ in held:
        card.give(tensor)
    played = card.played
    assert most <= played.allocated <= played.reserved
    again = Card(played.reserved, expandable)
    again._requests = card._requests
    assert again.played == played
    least = Card(most, expandable)
    least._requests = card._requests
    assert least.played.died is None or least.played.reserved <= most
    card.take(512)
    assert card.reserved in {played.reserved, played.reserved + 2 * MIB}


STRETCHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([TAKE, TAKE, TAKE_ONCE, GIVE, GIVE, GIVE_LATE, GIVE_ALL, EMPTY]),
            st.integers(0, 5),  # keys
            st.integers(1, 60_000),  # of 512 bytes
            st.integers(0, 1),  # streams
        ),
        max_size=20,
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=40)
@given(STRETCHES, st.lists(st.integers(0, 1000), max_size=9), st.booleans())
def test_what_plays_on_several_cards_share_changes_none_of_them(stretches, places, expandable):
    requests = [
        [Request(what, key, 512 * n, to) for what, key, n, to in stretch] for stretch in stretches
    ]
    log = log_of(requests, [(place, 2) for place in range(len(requests))])
    cut = Settings(expandable)
    spare, several = play(log, NO_LIMIT, cut), Plays(log, cut)
    for place in places:
        room = spare.allocated * 7 // 8 + (spare.reserved - spare.allocated * 3 // 4) * place // 999
        assert several.on(room) == play(log, room, cut)
    assert several.on(NO_LIMIT) == spare


def test_errors_are_small_without_a_fitted_share():
    # published readings of nvidia-smi and of torch.cuda.max_memory_reserved: data/measurements.csv
    errors = {
        metric: [
            abs(comparison.error)
            for comparison in accuracy.stored_measured()
            if comparison.metric is metric and comparison.error is not None
        ]
        for metric in (Metric.DEVICE, Metric.RESERVED)
    }
    assert median(errors[Metric.DEVICE]) < 0.05  # 0.06 with the former fitted share
    assert max(errors[Metric.DEVICE]) < 0.1
    assert (
        sum(error < 0.05 for error in errors[Metric.DEVICE]) >= 16
    )  # of 27; 9 with the fitted share
    # 0.134 with the fitted share; ms-swift's runs under ZeRO-3 reserved up to 18 % less than DeepSpeed 0.19 with
    # Trainer's buckets does
    assert median(errors[Metric.RESERVED]) < 0.13


@pytest.mark.parametrize(
    "setup",
    [
        TrainingSetup(),
        TrainingSetup(gradient_accumulation_steps=4, gradient_checkpointing=True),
        TrainingSetup(strategy=Strategy.ZERO2, num_gpus=4),
        TrainingSetup(strategy=Strategy.ZERO3, num_gpus=4, gradient_checkpointing=True),
        TrainingSetup(strategy=Strategy.FSDP, num_gpus=4, gradient_checkpointing=True),
        TrainingSetup(strategy=Strategy.FSDP, num_gpus=4, fsdp_version=1),
        TrainingSetup(strategy=Strategy.DEVICE_MAP, num_gpus=4),
    ],
)
def test_the_nvidia_smi_range_lies_between_the_peak_and_the_card(setup):
    bare = estimate(MISTRAL, A100, setup)
    for memory in (bare.need_low_bytes, bare.need_high_bytes, 2 * bare.need_high_bytes):
        answer = estimate(MISTRAL, replace(A100, memory_bytes=memory), setup)
        on_card = shown(answer)
        assert answer.decisive.bytes <= on_card.low <= on_card.middle <= on_card.high <= memory
    cannot_run = estimate(MISTRAL, replace(A100, memory_bytes=bare.decisive.bytes), setup)
    assert shown(cannot_run) is None
    answer = write_estimate(cannot_run)
    assert [answer[f"device_{end}bytes"] for end in ("low_", "", "high_")] == [None] * 3
    for said in (describe(cannot_run), ledger.ledger_html(cannot_run)):
        assert "nvidia-smi" not in said


@settings(max_examples=40)
@given(model=MODELS, gpu=GPUS, setup=st.one_of(SETUPS, SEVERAL))
def test_page_and_json_show_the_same_range_and_no_more_than_the_card(model, gpu, setup):
    assume(can_be_trained(model, setup))
    answer = estimate(model, gpu, setup)
    low, high = answer.need_low_bytes, answer.need_high_bytes
    assert (answer.verdict is Verdict.FITS) is (high <= gpu.memory_bytes)
    assert (answer.verdict is Verdict.DOES_NOT_FIT) is (low > gpu.memory_bytes)
    on_card, written = shown(answer), write_estimate(answer)
    assert (on_card is None) is (answer.verdict is Verdict.DOES_NOT_FIT)
    if on_card is not None:
        low, middle, high = on_card
        assert answer.need_low_bytes <= low <= middle <= high <= gpu.memory_bytes
        assert [written[f"device_{end}bytes"] for end in ("low_", "", "high_")] == [*on_card]
        assert ledger.shown_meaning(on_card) in unescape(ledger.ledger_html(answer))


def test_two_micro_steps_stand_for_any_larger_number():
    # the second adds its gradients to the first's; every later micro-step is the same
    setup = TrainingSetup(max_length=512, num_gpus=2, strategy=Strategy.DDP)
    model = catalog.model("Qwen/Qwen2.5-0.5B")
    one, two, three = (
        reserved_bytes(model, None, replace(setup, gradient_accumulation_steps=count))
        for count in (1, 2, 3)
    )
    assert one < two == three


def test_card_size_changes_reserved_memory_but_not_the_need():
    setup = TrainingSetup(
        gradient_checkpointing=True, per_device_train_batch_size=8, max_length=4096
    )
    large = replace(A100, memory_bytes=4 * A100.memory_bytes)
    kept = reserved_bytes(MISTRAL, large, setup)
    outside = sum(outside_bytes(A100, setup.mesh))
    small = replace(A100, memory_bytes=kept + outside - 1024 * MIB)
    assert reserved_bytes(MISTRAL, small, setup) <= kept - 1024 * MIB
    # the least memory is found to a share of 1 in 512, and on a card whether it is within the card's
    low, of_large = (estimate(MISTRAL, one, setup).need_low_bytes for one in (small, large))
    assert low == pytest.approx(of_large, rel=2 / 512)


def test_lora_under_fsdp1_reserves_on_separate_streams_as_measured_on_two_and_four_gpus():
    # fms-acceleration's a100_80gb_liger.csv: nvidia-smi, Mistral-7B and Llama 3 8B with LoRA, 4, 8 and 16 texts
    rows = [
        run for run in accuracy.measured() if re.search(r"foak-liger-lora-bf16amp-n[24]", run.id)
    ]
    device = [row for row in rows if row.metric is Metric.DEVICE]
    assert len(device) == 12
    for run in device:
        assert run.estimated_bytes == pytest.approx(run.measured_bytes, rel=0.025), run.id


@pytest.mark.parametrize(
    ("card", "program"),
    [
        ("L4", "nvidia-smi"),
        ("Instinct MI300X", "rocm-smi"),
        ("Apple M3 Max (64 GB)", ""),
        ("Gaudi 3", ""),
    ],
)
def test_only_a_program_that_the_cards_maker_ships_is_named(card, program):
    answer = estimate(catalog.model("openai-community/gpt2"), catalog.gpu(card), TrainingSetup())
    for said in (describe(answer), unescape(ledger.section_html(answer))):
        assert re.findall("[a-z]+-smi", said) == [program] * bool(program)
    assert (write_estimate(answer)["device_bytes"] is not None) == bool(program)


@pytest.mark.parametrize(("card", "is_replayed"), [("A100-SXM4-80GB", True), ("Gaudi 2", False)])
def test_only_a_card_with_pytorchs_allocator_is_replayed(card, is_replayed):
    answer = estimate(MISTRAL, catalog.gpu(card), TrainingSetup(method="lora"))
    assert (answer.needs.replay is not None) is is_replayed


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "lora", "gradient_checkpointing": True},
        {"objective": "dpo", "method": "lora"},
        {"loss": "chunked_trl", "gradient_accumulation_steps": 4},
        {"attn_implementation": "flash_attention_2", "eval_strategy": "epoch"},
        {"strategy": "fsdp", "num_gpus": 2},
        {"strategy": "fsdp", "num_gpus": 2, "fsdp_version": 1, "gradient_accumulation_steps": 2},
        {"model": model_from_config(QWEN3_5)},  # one round of its loop stands for several
    ],
)
def test_requests_written_once_and_sized_again_are_those_written_anew(keys):
    """What kernels take for themselves, tiles of the loss and rounds of a loop change with the size, too.

    What the requests belong to is the same, each pass's runs and operators included.
    """
    smol, hardware = catalog.model("HuggingFaceTB/SmolLM2-135M"), hardware_of(A100)
    model = keys.get("model", smol)
    keys = {key: value for key, value in keys.items() if key != "model"}
    sizes = [(1, 64), (1, 512), (1, 5000), (3, 512), (2, 1025)]
    found = {}
    for anew in (False, True):
        allocations._templates.cache_clear()
        for size in sizes:
            if anew:
                allocations._templates.cache_clear()
            setup = TrainingSetup(
                **{**keys, "per_device_train_batch_size": size[0], "max_length": size[1]}
            )
            log, trace = allocations.allocations.__wrapped__(
                model, hardware, setup, 0, on_host=False
            )
            passes = [
                (phase.schedule.runs, phase.schedule.program.operations) for phase in trace.passes
            ]
            found[anew, size] = log, trace.events, trace.ran, trace.optimizers, passes
    for size in sizes:
        assert found[False, size] == found[True, size]
