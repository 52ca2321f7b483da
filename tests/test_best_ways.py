"""The best way on a card fits, changes quality least, and reaches exactly the limits it states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.estimate import best_way as shown
from estimator import (
    COUNTS,
    Method,
    Offload,
    Strategy,
    TrainingSetup,
    Verdict,
    batch_rungs,
    best_way,
    best_ways,
    catalog,
    context_rungs,
    estimate,
    largest_micro_batch,
    longest_context,
    reach,
    ways_on,
)
from estimator.search.limits import fewer_checkpoints, fits, holds

LLAMA, MISTRAL = "meta-llama/Llama-3.1-8B", "mistralai/Mistral-7B-v0.1"
LORA = TrainingSetup(method=Method.LORA)


def card(name: str):
    return catalog.gpu(next(gpu for gpu in catalog.gpus() if name in gpu))


@pytest.mark.parametrize("name", ["L4", "A100-SXM4-80GB"])
@pytest.mark.parametrize("number", COUNTS)
def test_the_best_way_fits_and_its_keys_reproduce_it(name, number):
    model, gpu = catalog.model(LLAMA), card(name)
    way = best_way(model, gpu, number, LORA)
    assert way.answer.verdict is Verdict.FITS
    assert way.answer == estimate(model, gpu, replace(LORA, **way.keys))
    assert way.answer.setup.mesh.num_gpus == number


def test_full_fine_tuning_does_not_fit_even_with_every_lossless_change():
    # 8.03e9 parameters in bfloat16, gradients and bfloat16 AdamW states take 8 bytes each: 60 GiB, on a card of 22
    model, gpu = catalog.model(LLAMA), card("L4")
    way = best_way(model, gpu, 1, LORA)
    assert way.answer.setup.adapters.method is not Method.FULL
    full = replace(LORA, method=Method.FULL, use_liger_kernel=True, gradient_checkpointing=True)
    assert not holds(model, gpu, full)


def test_eight_cards_allow_full_fine_tuning_where_one_does_not():
    model, gpu = catalog.model(LLAMA), card("RTX 4090")
    one, *_, eight = ways_on(model, gpu, LORA)
    assert eight.answer.setup.adapters.method is Method.FULL
    assert eight.answer.setup.mesh.strategy in {Strategy.FSDP, Strategy.ZERO3}
    assert one.answer.setup.adapters.method is not Method.FULL


def test_how_far_a_way_goes_fits_and_is_no_more_than_a_sixteenth_too_short():
    model, gpu = catalog.model(MISTRAL), card("L4")
    for way in ways_on(model, gpu, LORA):
        exact = reach(model, gpu, way.answer.setup)
        changed = replace(way.answer.setup, **way.reach.keys)
        assert fits(model, gpu, replace(changed, max_length=way.reach.longest_context))
        assert 0.93 * exact.longest_context < way.reach.longest_context <= exact.longest_context


@pytest.mark.parametrize("method", Method)
def test_reach_is_exact_and_at_least_the_limit_of_the_setup(method):
    model, gpu, setup = catalog.model(MISTRAL), card("L4"), TrainingSetup(method=method)
    far = reach(model, gpu, setup)
    changed = replace(setup, **far.keys)
    assert far.longest_context >= longest_context(model, gpu, setup)
    assert not fits(model, gpu, replace(changed, max_length=far.longest_context + 1))
    if far.longest_context:
        assert fits(model, gpu, replace(changed, max_length=far.longest_context))
    more = replace(changed, per_device_train_batch_size=far.largest_micro_batch + 1)
    assert not fits(model, gpu, more)


def test_reach_changes_only_keys_that_cost_no_quality():
    allowed = {"attn_implementation", "use_liger_kernel", "loss", "gradient_checkpointing"}
    far = reach(catalog.model(LLAMA), card("A100-SXM4-80GB"), LORA)
    assert set(far.keys) <= allowed
    assert far.keys["gradient_checkpointing"] is True


def test_offload_is_the_last_resort():
    # 70.6e9 weights in 4 bits exceed 35 GiB: only methods with weights on the host fit 22 GiB
    model, gpu = catalog.model("meta-llama/Llama-3.1-70B"), card("L4")
    way = best_way(model, gpu, 1, LORA)
    if way.answer is not None:
        setup = way.answer.setup
        assert Offload.CPU in (setup.mesh.offload_optimizer, setup.mesh.offload_param)
        assert "CPU offload" in way.titles
    for method in Method:
        assert not holds(model, gpu, replace(LORA, method=method, gradient_checkpointing=True))


def test_fitting_ways_come_first_cheapest_on_top():
    cards = [card("L4"), card("A100-SXM4-80GB"), card("T4")]
    ways = best_ways(catalog.model(LLAMA), cards, LORA)
    assert len(ways) == len(cards) * len(COUNTS)
    fitting = [way.answer is not None for way in ways]
    assert fitting == sorted(fitting, reverse=True)
    rows = [shown.row(way) for way in ways]
    assert all(row["Method"] is None for row, fits_ in zip(rows, fitting, strict=True) if not fits_)
    assert all(row["Hours, up to"] is None for row in rows if row["Method"] is None)


def test_a_fitting_setup_is_offered_full_fine_tuning():
    model, gpu = catalog.model(LLAMA), card("A100-SXM4-80GB")
    answer = estimate(model, gpu, LORA)
    offered = shown.could_also(answer, best_way(model, gpu, 1, LORA))
    titles = [title for title, _, _ in offered]
    assert any(title.startswith("Full fine-tuning") for title in titles)
    for _, _, keys in offered:
        assert estimate(model, gpu, replace(LORA, **keys)).verdict is Verdict.FITS


def test_spare_memory_allows_fewer_checkpoints():
    """Fewest checkpoints that fit; at twice the context more layers need one."""
    model, gpu = catalog.model(LLAMA), card("A100-SXM4-80GB")
    for length, some in ((512, True), (4096, True), (1_000_000, False)):
        setup = replace(LORA, gradient_checkpointing=True, max_length=length)
        keys = fewer_checkpoints(model, gpu, setup)
        assert bool(keys) is some, length
        if not keys:
            continue
        after = estimate(model, gpu, replace(setup, **keys))
        assert after.verdict is Verdict.FITS
        before = estimate(model, gpu, setup)
        # typical seconds of the products of forward and backward: the ends also depend on what else a step does
        now, then = (one.time.parts[0] for one in (after, before))
        assert now.seconds.low * now.seconds.high == pytest.approx(
            then.seconds.low * then.seconds.high
        )
        offered = shown.could_also(before, None, keys)
        assert offered[-1][2] == keys
        assert "the same result with less computed again" in offered[-1][1]


def test_as_few_layers_as_possible_are_checkpointed():
    model, gpu = catalog.model(LLAMA), card("A100-SXM4-80GB")
    setup = replace(LORA, gradient_checkpointing=True)
    longest = longest_context(model, gpu, setup)
    barely = replace(setup, max_length=longest * 9 // 16)
    keys = fewer_checkpoints(model, gpu, barely)
    chosen = keys.get("checkpoint_every_n_layers", 1)
    for distance in (2, 3, 4, 6, 8):
        fits_ = holds(model, gpu, replace(barely, checkpoint_every_n_layers=distance))
        assert not fits_ or distance <= chosen
    assert not holds(model, gpu, replace(barely, gradient_checkpointing=False))


def test_without_checkpointing_there_is_nothing_to_reduce():
    assert fewer_checkpoints(catalog.model(LLAMA), card("A100-SXM4-80GB"), LORA) == {}


@pytest.mark.parametrize(
    ("name", "setup"),
    [
        ("RTX 4090", replace(LORA, per_device_train_batch_size=8, gradient_checkpointing=True)),
        ("A100-SXM4-80GB", TrainingSetup(dtype="float32", gradient_accumulation_steps=8)),
    ],
)
def test_each_change_of_the_ruler_reaches_further_and_its_keys_reach_exactly_that(name, setup):
    model, gpu = catalog.model(LLAMA), card(name)
    first, *others = context_rungs(model, gpu, setup)
    assert [*context_rungs(model, gpu, replace(setup, max_length=4096))] == [first, *others]
    assert first == ("", (), {}, longest_context(model, gpu, setup))
    assert len(others) > 1
    before = first.limit
    for rung in others:
        changed = replace(setup, **rung.keys)
        assert longest_context(model, gpu, changed) == rung.limit > before
        assert changed.effective_batch_size == setup.effective_batch_size
        before = rung.limit


def test_full_fine_tuning_that_never_fits_has_lora_and_qlora_on_its_ruler():
    # float32 weights, gradients and AdamW states take 16 bytes each: 120 GiB
    rungs = context_rungs(
        catalog.model(LLAMA), card("A100-SXM4-80GB"), TrainingSetup(dtype="float32")
    )
    now, *others = rungs
    assert [other.name for other in others][:2] == ["LoRA", "QLoRA"]
    assert now.limit == 0


def test_each_change_of_the_ruler_of_batches_holds_exactly_that_batch_at_the_setups_context():
    model, gpu = catalog.model(LLAMA), card("RTX 4090")
    setup = replace(LORA, max_length=2048, per_device_train_batch_size=8)
    now, *others = batch_rungs(model, gpu, setup)
    assert now == ("", (), {}, largest_micro_batch(model, gpu, setup))
    assert len(others) > 1
    before = now.limit
    for rung in others:
        assert largest_micro_batch(model, gpu, replace(setup, **rung.keys)) == rung.limit > before
        before = rung.limit
    near = {rung.name: rung.limit for rung in batch_rungs(model, gpu, setup, 16)}
    assert (
        near["QLoRA"]
        <= {other.name: other.limit for other in others}["QLoRA"]
        <= near["QLoRA"] * 17 / 16
    )
