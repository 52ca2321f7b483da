"""Signs, words and numbers shown to the reader, by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard import theme
from dashboard.address.example import TRL_DEFAULTS
from dashboard.estimate import ledger, remedies, verdict_panel
from dashboard.words import (
    controls,
    one_line,
    rule_of_thumb,
    setup_sentence,
    terms,
    units,
    verdicts,
)
from estimator import (
    STEP_PHASES,
    Component,
    Dtype,
    Gpu,
    Method,
    MixedPrecision,
    Optimizer,
    TrainingSetup,
    Verdict,
    catalog,
    contract,
    estimate,
    similar_runs,
)
from estimator.answer.overflow import runs_out
from estimator.contract.text import describe
from estimator.contract.units import amount
from estimator.values.objective import OBJECTIVES
from estimator.values.specs import Offload
from estimator.values.strategies import Strategy
from tests.test_limits import GPUS, MODELS, SETUPS, SEVERAL

MODEL, GPU = catalog.model("mistralai/Mistral-7B-v0.1"), catalog.gpu("A100-SXM4-80GB")
EXAMPLE = TrainingSetup(mixed_precision=MixedPrecision.NO, optim_state_dtype=Dtype.FLOAT32)


def on_card_of(memory_bytes: int):
    """The example on a card of exactly this size."""
    return estimate(MODEL, Gpu(name="card", memory_bytes=memory_bytes), EXAMPLE)


def test_a_verdict_has_a_sign_a_word_and_the_free_memory():
    needed = estimate(MODEL, None, EXAMPLE)
    low, high = needed.need_low_bytes, needed.need_high_bytes
    roomy, lacking = on_card_of(high + 3 * units.GIB), on_card_of(low - 2 * units.GIB)
    fits, short = verdicts.verdict(roomy), verdicts.verdict(lacking)
    tight = verdicts.verdict(on_card_of((low + high) // 2))
    # the least memory is found to a share of 1 in 512, so 3 GiB and 2 GiB less or more a tenth
    free = units.number(roomy.headroom_bytes)
    assert 2.8 <= float(free) <= 3.1
    assert fits.word == f"✓ Fits: {free} GiB free"
    assert tight.word.startswith("≈ Tight")
    capacity = low - 2 * units.GIB
    missing = units.between(lacking.need_low_bytes - capacity, lacking.need_high_bytes - capacity)
    assert short.word == f"✕ Does not fit: {missing} short"
    assert f"{free} GiB is left" in fits.sentence


def test_without_a_gpu_the_verdict_gives_the_need_and_asks_for_one():
    said = verdicts.verdict(estimate(MODEL, None, EXAMPLE))
    assert said.word.startswith("Needs ")
    assert "Choose a GPU" in said.sentence


def test_the_verdict_says_when_memory_runs_out_and_when_it_peaks():
    answer = estimate(MODEL, GPU, EXAMPLE)
    said = verdicts.verdict(answer)
    assert said.stops == runs_out(answer, amount)
    assert terms.moment(answer.peak) in said.when


def test_the_nameplate_capacity_is_explained():
    assert "“80 GB” is the nameplate" in verdicts.capacity_note(GPU)
    assert "79.1 GiB" in verdicts.capacity_note(GPU)
    assert "derived" in verdicts.capacity_note(replace(GPU, memory_is_derived=True))


def test_the_rule_of_thumb_is_compared_with_the_example():
    said = rule_of_thumb.sentence(estimate(MODEL, GPU, EXAMPLE))
    # 7,241,732,096 parameters: 2 bytes for weights, 8 for AdamW in float32, and 10 to 20 GB
    assert "14.5 + 57.9 + 10 to 20 = 82.4 to 92.4 GB" in said
    assert "forgets gradients: 14.2 GB" in said, "2 bytes each, but for the embedding's"
    assert "hardly any" in said, "activations are gone when the peak comes"


@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA])
def test_with_adapters_the_rule_of_thumb_counts_trained_parameters(method):
    # r (in + out) over 7 linears of 32 layers, r = 16: 41,943,040
    said = rule_of_thumb.sentence(estimate(MODEL, GPU, replace(EXAMPLE, method=method)))
    assert "41.9 million" in said


def test_the_ledger_explains_each_component_and_shows_the_total():
    answer = estimate(MODEL, GPU, EXAMPLE)
    table = ledger.ledger_html(answer)
    for component, size in answer.peak.resident.items():
        if size:
            assert theme.COMPONENTS[component].label in table
            assert ledger.MEANINGS[component].replace("'", "&#x27;") in table
    assert f">{units.number(answer.need_high_bytes)}<" in table
    assert "<0.1" not in table, "a sign that HTML reads is written out"


def test_every_component_phase_and_verdict_has_a_label():
    assert set(ledger.MEANINGS) == set(theme.COMPONENTS) == set(Component)
    assert set(STEP_PHASES) < set(terms.PHASES)
    assert set(terms.SIGNS) == set(theme.VERDICTS) == set(theme.VERDICTS_ON_DARK) == set(Verdict)


def test_user_given_names_are_escaped():
    card = Gpu(name="<b>card</b>", memory_bytes=80 * units.GIB)
    answer = estimate(MODEL, card, EXAMPLE)
    assert "<b>card" not in verdict_panel.verdict_html(answer, similar_runs(answer))


def test_the_setup_is_described_in_one_line():
    setup = replace(EXAMPLE, method=Method.LORA, optim=Optimizer.SGD, gradient_checkpointing=True)
    said = "Mistral-7B-v0.1 · LoRA r=16 · bfloat16 · sgd, float32 states · 1 × 1,024 tokens"
    assert one_line.setup_line(estimate(MODEL, GPU, setup)) == f"{said} · checkpointing"
    assert one_line.setup_words(MODEL, replace(setup, gradient_checkpointing=False)) == said


@settings(max_examples=60)
@given(
    MODELS,
    st.one_of(st.none(), GPUS),
    st.one_of(SETUPS, SEVERAL),
    st.sampled_from(list(OBJECTIVES.values())),
)
def test_the_setups_sentence_names_model_cards_batch_and_length_and_is_short(
    model, gpu, setup, objective
):
    setup = replace(setup, objective=objective)
    said = setup_sentence.text(model, gpu, setup)
    number = setup.mesh.num_gpus
    cards = gpu.name if gpu else "GPU"
    assert f" of {terms.short_name(model.hub_id)} " in said
    assert (
        f" on one {cards}" if number == 1 else f" on {number} {'× ' * bool(gpu)}{cards}"
    ) in said
    assert re.search(
        rf"\b{setup.batch.per_device_train_batch_size}( pairs?)? × {setup.batch.max_length:,} ",
        said,
    )
    assert (setup.mesh.strategy is Strategy.NONE) == (
        " under " not in said and " device map" not in said
    )
    assert said.endswith(".")
    assert len(said) < 260


def test_the_setups_sentence_says_which_defaults_are_trls():
    of_trl = contract.read_setup({**TRL_DEFAULTS, "method": "lora"}).setup
    said = {
        "as TRL trains": of_trl,
        "float32 with bfloat16 autocast as TRL loads it, without checkpointing.": replace(
            of_trl, gradient_checkpointing=False
        ),
        "bfloat16 with autocast, with checkpointing.": replace(of_trl, dtype=Dtype.BFLOAT16),
        "with checkpointing.": replace(of_trl, objective="embedding", loss=None),
    }
    for ending, setup in said.items():
        sentence = setup_sentence.text(MODEL, GPU, setup)
        assert sentence.endswith(ending) or f", {ending}." in sentence
        assert ("TRL" in sentence) == ("TRL" in ending)
    assert setup_sentence.text(MODEL, GPU, of_trl) == (
        "LoRA r=16 of Mistral-7B-v0.1 on one A100-SXM4-80GB, 8 × 1,024 tokens, float32 with bfloat16 autocast, "
        "with checkpointing, as TRL trains."
    )


def test_each_word_of_the_sentence_leads_to_a_control():
    setup = TrainingSetup(
        method=Method.LORA,
        optim=Optimizer.ADAMW_TORCH,
        objective="dpo",
        gradient_accumulation_steps=2,
        num_gpus=2,
        strategy=Strategy.ZERO3,
        offload_optimizer=Offload.CPU,
    )
    answer = estimate(MODEL, GPU, setup)
    shown = verdict_panel.verdict_html(answer, similar_runs(answer))
    keys = [piece.key for piece in setup_sentence.pieces(MODEL, GPU, setup) if piece.key]
    assert len(keys) == len(set(keys)) == 14
    assert re.findall(r'data-scrub="(\S+)" role="slider" aria-label="(\w+)', shown) == [
        ("lora_r-box", "Rank"),
        ("num_gpus-box", "GPUs"),
        ("gradient_accumulation_steps", "Accumulation"),
        ("per_device_train_batch_size", "Micro"),
        ("max_length", "Context"),
    ], "its numbers are sliders"
    for key in keys:
        assert f'data-leads="{controls.control_of(key)[0]}"' in shown
        with_a_box = key in ("model", "gpu") or isinstance(
            contract.BY_NAME[key].widget, contract.Widget
        )
        assert with_a_box, key


def test_the_terminal_says_the_share_of_the_peak_that_was_asked_for():
    said = describe(estimate(MODEL, GPU, replace(EXAMPLE, method=Method.LORA, mfu=0.75)))
    assert "tokens per second, 75 to 75 % MFU." in said


def test_a_much_longer_run_is_given_as_a_multiple():
    before = estimate(MODEL, GPU, TrainingSetup())
    keys = {"strategy": Strategy.ZERO2, "offload_optimizer": Offload.CPU}
    after = estimate(MODEL, GPU, replace(TrainingSetup(), **keys))
    assert re.match(r"\d+ times as long, ", remedies.added(before, after))
    assert remedies.added(before, before).startswith("as long as before, ")
