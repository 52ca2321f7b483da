"""Seconds of an exchange inside a machine and between machines: by hand, as properties, against the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Gpu, TrainingSetup, catalog, estimate
from estimator.contract.setups import parse, write_fields
from estimator.parallel.network import (
    ExchangeGroup,
    Links,
    exchange_seconds,
    links,
    network_sentences,
    replicas,
    shards,
)
from estimator.parallel.strategies import resident_memory
from estimator.proof.accuracy import published_runs
from estimator.step.timeline import structure
from estimator.time.exchange_time import communication
from estimator.values.facets.mesh import Mesh
from estimator.values.range import Range
from estimator.values.strategies import Strategy

MISTRAL = catalog.model("mistralai/Mistral-7B-v0.1")
WEIGHTS = 2 * 7_241_732_096
"""Bytes of its weights in 16 bits, and of their gradients."""
A100 = catalog.gpu("A100-SXM4-80GB")
"""300 GB/s each way inside; 12.5 (a2-ultragpu-8g) to 200 (NDm A100 v4) between machines of eight."""


def exchanged(setup: TrainingSetup) -> Range[float]:
    """Seconds of the exchange between Mistral's GPUs, before any overlap with compute."""
    resident = resident_memory(
        MISTRAL, structure(replace(setup, strategy=Strategy.NONE, num_gpus=1))
    )
    sent = communication(A100, MISTRAL, setup, resident)
    return sent.behind + sent.alone


# --- by hand ------------------------------------------------------------------------------------


def test_only_the_gpu_link_counts_inside_a_machine():
    low, high = exchanged(TrainingSetup(num_gpus=8, strategy=Strategy.DDP))
    assert low == pytest.approx(2 * WEIGHTS * 7 / 8 / 300e9)
    assert high == pytest.approx(low / 0.78)  # what a ring reaches of the link on eight A100


def test_the_slower_of_link_and_network_bounds_a_ring_between_machines():
    """16 GPUs in two machines: at worst a ring over 12.5 GB/s; at best each machine receives the other's half."""
    low, high = exchanged(TrainingSetup(num_gpus=16, strategy=Strategy.DDP))
    assert high == pytest.approx(2 * WEIGHTS * 15 / 16 / 12.5e9)
    assert low == pytest.approx(max(2 * WEIGHTS * 15 / 16 / 300e9, 2 * WEIGHTS / 2 / 200e9))


def test_the_link_bounds_the_exchange_on_a_fast_network():
    by = Links(Range(0.78e9, 1e9), Range.of(50e9))
    found = exchange_seconds(8e9, ExchangeGroup(4, 2), by)
    assert tuple(found) == pytest.approx((6, 6 / 0.78))


def test_hsdp_gathers_within_a_machine_and_reduces_shards_between_machines():
    """Within: 3 · weights · 7/8 over 300 GB/s. Between: eight sums of 2 · gradients / 8 each, half of it outgoing."""
    setup = TrainingSetup(num_gpus=16, strategy=Strategy.HSDP, dp_replicate_size=2)
    low, high = exchanged(setup)
    inside = 3 * WEIGHTS * 7 / 8 / 300e9
    assert low == pytest.approx(inside + WEIGHTS / 200e9)
    assert high == pytest.approx(inside / 0.78 + WEIGHTS / 12.5e9)


def test_hsdp_between_machines_sends_a_third_of_what_fsdp_sends():
    """HSDP sends gradients twice, halved; FSDP weights twice and gradients once. The ratio is 1 to 3, times 15/16."""
    of_two = {"num_gpus": 16, "dp_replicate_size": 2, "strategy": Strategy.HSDP}
    hsdp = exchanged(TrainingSetup(**of_two)).high
    fsdp = exchanged(TrainingSetup(num_gpus=16, strategy=Strategy.FSDP)).high
    assert hsdp < 0.41 * fsdp  # the rest is inside the machines


def test_shards_that_do_not_divide_a_machine_span_two():
    """Replicas of 6 GPUs in machines of 8: the second replica spans two machines."""
    setup = TrainingSetup(num_gpus=24, dp_replicate_size=4, strategy=Strategy.HSDP)
    assert shards(setup.mesh).ranks > shards(setup.mesh).per_machine
    even = replace(setup, dp_replicate_size=3)
    assert shards(even.mesh) == ExchangeGroup(8, 8, 1)
    assert replicas(even.mesh) == ExchangeGroup(3, 1, 8)


def test_a_reference_pass_gathers_the_weights_once_more():
    """DPO on the 8 GPUs of one machine: weights three times and gradients once, 7/8 of each over 300 GB/s."""
    setup = TrainingSetup(
        num_gpus=8, strategy=Strategy.FSDP, objective="dpo", precompute_ref_log_probs=False
    )
    low, high = exchanged(setup)
    assert low == 0.78 * high == pytest.approx(4 * WEIGHTS * 7 / 8 / 300e9)


def test_replicas_inside_one_machine_use_its_links():
    # by hand: 2 replicas of 4 on the 8 GPUs of a machine; gradients are summed inside it
    setup = TrainingSetup(num_gpus=8, dp_replicate_size=2, strategy=Strategy.HSDP)
    assert replicas(setup.mesh) == ExchangeGroup(2, 8)


def test_part_of_a_machine_gets_that_share_of_its_network():
    whole, half = links(A100, Mesh()), links(A100, Mesh(gpus_per_node=4))
    assert half.network == whole.network / 2
    assert links(A100, Mesh(gpus_per_node=16)) == whole


def test_a_card_without_a_known_machine_has_ethernet_at_worst_and_its_own_link_at_best():
    # PCIe 4.0 x16: 16 GT/s a lane in 128/130; a ring that sends and receives at once reaches 0.35 of it at worst
    link = 16 * 16e9 * 128 / 130 / 8
    found = links(catalog.gpu("GeForce RTX 4090"), Mesh())
    assert (*found.gpu, *found.network) == pytest.approx((0.35 * link, link, 25e9 / 8, link))


@pytest.mark.parametrize(
    ("name", "num_gpus", "gb_per_s"),
    [
        ("RTX A6000", 2, 56.25),  # a bridge joins two cards
        ("RTX A6000", 4, 31.508),  # four exchange over PCIe 4.0 x16
        ("H200-NVL-141GB", 4, 450),
        ("H200-NVL-141GB", 8, 63.015),
        ("A100-SXM4-80GB", 8, 300),
    ],
)
def test_a_bridge_joins_two_cards_and_more_exchange_over_pcie(name, num_gpus, gb_per_s):
    found = links(catalog.gpu(name), Mesh(num_gpus=num_gpus)).gpu
    assert found.high == pytest.approx(1e9 * gb_per_s, rel=1e-4)


def test_a_given_network_speed_closes_the_bracket_between_machines():
    own = Gpu(name="own GPU", memory_bytes=2**36, network_gb_per_s=50.0)
    assert links(own, Mesh()).network == Range.of(50e9)
    with pytest.raises(ValueError, match="network_gb_per_s must be between"):
        replace(own, network_gb_per_s=0.0)


def test_a_catalogued_card_accepts_and_keeps_a_given_network_speed():
    given = {"like": "A100-SXM4-80GB", "network_gb_per_s": 50}
    setup = {"num_gpus": 16, "strategy": "fsdp", "gpu": given}
    model, gpu, read = parse({"model": "mistralai/Mistral-7B-v0.1", **setup})
    assert gpu == replace(A100, network_gb_per_s=50)
    assert write_fields(model, gpu, read)["gpu"] == given
    answer = estimate(model, gpu, read)
    assert answer.cost is not None
    assert any("50 GB/s per machine, as you specified" in said for said in answer.assumptions)


# --- properties ---------------------------------------------------------------------------------


@given(
    st.integers(2, 512),
    st.integers(1, 16),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1e9, 3e10, 3e11]),
    st.sampled_from([1e9, 1e10, 4e11]),
)
def test_slower_links_never_shorten_an_exchange(ranks, per_machine, beside, link, network):
    group = ExchangeGroup(ranks, per_machine, beside)
    by = Links(Range(0.78, 1) * link, Range(1, 2) * network)
    low, high = exchange_seconds(1e9, group, by)
    assert 0 < low <= high
    slower = exchange_seconds(1e9, group, Links(by.gpu / 2, by.network / 2))
    assert slower.low >= low
    assert slower.high >= high


def test_larger_machines_never_lengthen_a_step():
    for strategy in (Strategy.DDP, Strategy.FSDP, Strategy.ZERO2):
        ends = [
            _ends(TrainingSetup(num_gpus=16, gpus_per_node=node, strategy=strategy))
            for node in (1, 2, 4, 8, 16)
        ]
        assert ends == sorted(ends, reverse=True), strategy


def _ends(setup: TrainingSetup) -> float:
    time = estimate(MISTRAL, A100, setup).time
    return time.step_seconds.high


# --- sentences and tables -----------------------------------------------------------------------


def test_gpus_that_do_not_fill_their_machines_get_a_sentence():
    (said,) = network_sentences(A100, Mesh(num_gpus=12, strategy=Strategy.DDP))
    assert said.startswith(
        "12 GPUs are 1 machine of 8 and 4 GPUs of one more; the network between machines is"
    )
    assert "12.5 to 200 GB/s per machine" in said
    assert network_sentences(A100, Mesh(num_gpus=8, strategy=Strategy.DDP)) == []


def test_groups_larger_than_a_known_machine_are_not_called_machines():
    # data/machines.csv: machines with a GB200 have 4 GPUs; gpus_per_node defaults to 8
    (said,) = network_sentences(catalog.gpu("GB200"), Mesh(num_gpus=144))
    assert said.startswith("144 GPUs are 18 groups of 8; the network between groups is")
    assert said.endswith("The machines known with it have 4; gpus_per_node says otherwise.")


def test_an_estimate_across_machines_names_their_network():
    setup = TrainingSetup(num_gpus=16, strategy=Strategy.FSDP)
    assert any("a2-ultragpu-8g" in said for said in estimate(MISTRAL, A100, setup).assumptions)


def test_every_machine_has_a_catalogued_card_and_at_least_10_gbit_per_s():
    for name, found in catalog.machines().items():
        assert catalog.gpus()[name].machines == found
        assert all(
            machine.gpus >= 1 and machine.network_gbit_per_s >= 10 and machine.source
            for machine in found
        )


def test_nine_of_ten_published_multi_machine_runs_are_inside_the_bracket():
    runs = [run for run in published_runs() if run.crosses]
    assert len(runs) > 40
    assert sum(run.inside for run in runs) >= 0.9 * len(runs)
