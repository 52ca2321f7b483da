"""The section on vLLM's share: bands in order, the number first, and no section without a colocated engine."""

from __future__ import annotations

from typing import Any

from dashboard.estimate import vllm_share
from estimator import TrainingSetup, catalog, estimate, vllm_shares
from estimator.values.results import Estimate

MODEL, GPU = catalog.model("Qwen/Qwen2.5-7B"), catalog.gpu("H100-SXM5-80GB")


def answer(**keys: Any) -> Estimate:
    given: dict[str, Any] = {
        "objective": "grpo",
        "use_vllm": True,
        "method": "lora",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 16,
        "gradient_checkpointing": True,
        "max_length": 2048,
        "max_completion_length": 1536,
        "vllm_max_model_length": 2048,
    }
    return estimate(MODEL, GPU, TrainingSetup(**given | keys))


def test_the_bands_are_in_order_from_too_little_to_too_much():
    found = vllm_shares(MODEL, GPU, answer().setup)
    names = [band.name for band in vllm_share.bands(found)]
    order = [
        vllm_share.STARVED,
        vllm_share.TURNS,
        vllm_share.ALL,
        vllm_share.TIGHT,
        vllm_share.FULL,
    ]
    assert names == [name for name in order if name in names]
    assert {vllm_share.STARVED, vllm_share.ALL, vllm_share.FULL} <= set(names)
    ends = [band.last for band in vllm_share.bands(found)]
    assert ends == sorted(ends)


def test_the_number_comes_first():
    now = answer()
    found = vllm_shares(MODEL, GPU, now.setup)
    said = vllm_share.head_html(found, now)
    assert f"Type vllm_gpu_memory_utilization {found.advised:.2f}." in said
    assert "all 128 rows" in said
    assert f"{vllm_share.ALL.lower()} from {found.holding():.2f}" in vllm_share.alt(found)


def test_every_band_is_named_above_the_figure_and_none_inside_it():
    now = answer()
    found = vllm_shares(MODEL, GPU, now.setup)
    names = {band.name for band in vllm_share.bands(found)}
    assert all(f"</i>{name}: 0." in vllm_share.legend_html(found) for name in names)
    assert vllm_share.TIGHT in names  # a band of two hundredths
    written = [
        annotation["text"] for annotation in vllm_share.figure(found, now)["layout"]["annotations"]
    ]
    assert written == ["set: 0.3", f"<b>take {found.advised:.2f}</b>"]


def test_more_gpus_do_not_shrink_vllms_part():
    now = answer(num_gpus=2, strategy="zero3")
    assert "more GPUs make the trainer" in vllm_share.head_html(
        vllm_shares(MODEL, GPU, now.setup), now
    )


def test_the_figure_has_a_point_for_each_share():
    now = answer()
    found = vllm_shares(MODEL, GPU, now.setup)
    drawn = vllm_share.figure(found, now)
    assert drawn["data"][-1]["customdata"] == [share.utilisation for share in found.shares]
    assert all("Share" in row for row in vllm_share.rows(found, now))


def test_no_section_without_a_colocated_engine():
    assert vllm_share.applies(answer())
    assert not vllm_share.applies(answer(vllm_mode="server"))
    assert not vllm_share.applies(answer(use_vllm=False))
