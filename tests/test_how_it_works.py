"""Every number on "How it works" is the estimator's."""

from __future__ import annotations

from dataclasses import replace

from dashboard.address.example import ARTICLE, EXAMPLE
from dashboard.how_it_works import content
from dashboard.words import units
from estimator import Component, Phase, estimate


def test_every_chapter_has_text_and_the_walkthrough_has_the_example_s_numbers():
    told = content.example({**EXAMPLE, **ARTICLE})
    chapters = {chapter.heading: chapter.text for chapter in content.chapters(told)}
    assert all(len(text) > 100 for text in chapters.values())
    walk = chapters["One run, moment by moment"]
    for moment in told.phases.values():
        assert moment.bytes > 0
    assert units.gib(told.peak.bytes) in walk
    assert "54.0 GiB" in walk, "7,241,732,096 parameters x 2 states x 4 bytes"
    assert "13.5 GiB" in walk, "7,241,732,096 parameters x 2 bytes"


def test_chapter_on_objectives_counts_the_reference_as_a_second_model():
    told = content.example({**EXAMPLE, **ARTICLE})
    (text,) = (
        chapter.text for chapter in content.chapters(told) if "preferences" in chapter.heading
    )
    assert "13.5 GiB here" in text, "7,241,732,096 parameters x 2 bytes"
    logits = 20 * 1024 * 32_000
    assert f"{units.gib(logits)} here" in text, "20 bytes x 1 example x 1,024 tokens x 32,000 words"


def test_chapter_on_backward_covers_checkpoints_and_half_the_layers():
    """32 layers of 2 bytes x 4,096 a token; more if only half are checkpointed, none if offloaded to the host."""
    told = content.example({**EXAMPLE, **ARTICLE})
    (text,) = (
        chapter.text
        for chapter in content.chapters(told)
        if "stays for backward" in chapter.heading
    )
    setup = replace(
        told.setup,
        gradient_checkpointing=True,
        optim_state_dtype=None,
        max_grad_norm=0.0,
    )
    alone, host = (
        estimate(told.model, told.gpu, replace(setup, offload_checkpoints=offload))
        .phases[Phase.LOSS]
        .resident[Component.ACTIVATIONS]
        for offload in (False, True)
    )
    assert alone - host == 32 * 2 * 4096 * setup.batch.tokens
    assert f"{units.gib(alone)} at the loss" in text
    assert f"{units.gib(host)} stay" in text


def test_first_chapter_states_the_peak():
    told = content.example({**EXAMPLE, **ARTICLE})
    idea = content.chapters(told)[0].text
    assert units.gib(told.peak.bytes) in idea


def test_chapter_on_vllm_adds_the_share_to_the_step():
    told = content.example({**EXAMPLE, **ARTICLE})
    (text,) = (chapter.text for chapter in content.chapters(told) if "vLLM" in chapter.heading)
    assert "All 32 rows" in text
    assert "takes vllm_gpu_memory_utilization of the *whole* card, 0.3 of" in text
