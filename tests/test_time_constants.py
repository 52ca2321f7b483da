"""Every constant of time, by hand: figures small enough to redo on paper, from each constant's own docstring.

The card moves 10¹² bytes a second and multiplies at 10¹⁴ operations a second, 4·10¹³ in the slow runs; the slow end's
memory bandwidth is 8·10¹¹. The model has 2 layers, a hidden size of 8, an MLP of 16, 2 heads of queries and 1 of keys,
4 wide, and 10 words.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import Dtype, Gpu, Method, MixedPrecision, Optimizer, TrainingSetup
from estimator.families.layer_kinds import LINEAR_ATTENTION
from estimator.families.modules import TINY_LLAMA
from estimator.parallel.network import ETHERNET, Links, links
from estimator.parallel.offload import moved
from estimator.resident.model import Resident
from estimator.resident.optimizer import States
from estimator.time.flops import Work, delta_products, scan_products, work
from estimator.time.offload_time import Host, hosts, offload_parts
from estimator.time.throughput import Lengths, Rates, rates, step_parts
from estimator.values.specs import (
    AttnImplementation,
    DeltaNet,
    Loss,
    Model,
    Offload,
    StateSpace,
    Strategy,
)

LENGTH = 256
FAST, SLOW = 1e12, 0.8e12
RATE = Rates(peak=2e14, best=1e14, slow=4e13, bandwidth=FAST, float32=1e13)
NOTHING = Work(0.0, 0.0, 0.0, 0.0, 0.0)
RESIDENT = Resident(
    weights=1000,
    adapters=100,
    gradients=10,
    accumulated=0,
    transient=0,
    states=States(2000, 500),
    total_parameters=0,
    trainable_parameters=0,
)
FROZEN = {"lora_target_modules": ("q_proj",), "lora_dropout": 0.0}


def part(
    name: str,
    model: Model = TINY_LLAMA,
    of: Work = NOTHING,
    resident: Resident = RESIDENT,
    **keys: Any,
) -> tuple[float, float]:
    """Both ends of one part of a step of 256 tokens."""
    setup = TrainingSetup(max_length=LENGTH, **keys)
    length = Lengths(1, LENGTH, LENGTH, LENGTH, float(LENGTH))
    found = step_parts(model, setup, resident, RATE, length, of, of)
    ends = [(it.low_seconds, it.high_seconds) for it in found if it.name == name]
    return ends[0] if ends else (0.0, 0.0)


def near(fast: float, slow: float) -> Any:
    return pytest.approx((fast, slow), rel=1e-9)


# --- products and attention -----------------------------------------------------------------------


def test_products_run_at_the_best_and_at_the_slow_rate() -> None:
    assert part("matrix products", of=NOTHING._replace(products=4e14)) == near(4, 10)


def test_attention_reaches_three_quarters_of_the_peak_and_at_worst_thirty_five_hundredths() -> None:
    # at most the best rate of products, 1e14 of 1.5e14; at worst 0.35 · 2e14 = 7e13, but products are slower
    assert part("attention", of=NOTHING._replace(attention=4e14)) == near(4, 10)
    peaks = RATE._replace(peak=1e14, slow=1e14)
    setup, length = TrainingSetup(max_length=LENGTH), Lengths(1, LENGTH, LENGTH, LENGTH, LENGTH)
    of = NOTHING._replace(attention=2.1e14)
    found = step_parts(TINY_LLAMA, setup, RESIDENT, peaks, length, of, of)
    ends = next(it for it in found if it.name == "attention")
    assert (ends.low_seconds, ends.high_seconds) == near(2.1 / 0.75, 2.1 / 0.35)


@pytest.mark.parametrize(
    ("architecture", "share"),
    [
        ("Ampere", 0.55),
        ("Ada Lovelace", 0.42),
        ("Hopper", 0.36),
        ("Blackwell", 0.22),
        ("Volta", 0.22),  # too few runs were published: the lowest
    ],
)
def test_products_of_slow_runs_reach_their_generation_s_share(
    architecture: str, share: float
) -> None:
    card = Gpu(
        name="card",
        memory_bytes=2**36,
        architecture=architecture,
        bf16_dense_tflops=100,
        memory_bandwidth_gb_per_s=1000,
    )
    assert rates(card, TrainingSetup()) == (
        1e14,
        1e14,
        pytest.approx(share * 1e14),
        1e12,
        pytest.approx(share * 1e14),
    )


# --- norms, activations, residuals ----------------------------------------------------------------

FUSED = 2 * (12 * 8 + 6 * 16)
"""Bytes a token in both layers, forward: two norms of 12 an element of the hidden state, the MLP's 6 of its width."""
ONE_BY_ONE = 2 * (84 * 8 + 10 * 16 + 20 * (8 + 4))
"""Two RMSNorms of 36 and two sums of 6; activation 4 and product 6; queries 8 and keys 4 wide turned at 20."""


def test_backward_moves_twice_what_forward_moves() -> None:
    found = part("norms, activations, residuals")
    assert found == near(256 * FUSED * 3 / FAST, 256 * ONE_BY_ONE * 3 / SLOW)


def test_float32_doubles_what_is_moved() -> None:
    found = part(
        "norms, activations, residuals", dtype=Dtype.FLOAT32, mixed_precision=MixedPrecision.NO
    )
    assert found == near(2 * 256 * FUSED * 3 / FAST, 2 * 256 * ONE_BY_ONE * 3 / SLOW)


def test_a_score_of_eager_attention_is_eight_bytes_at_best_and_twenty_four_at_worst() -> None:
    found = part("norms, activations, residuals", attn_implementation=AttnImplementation.EAGER)
    scores = 2 * 2 * 256 * 256  # layers, heads, s²
    fused, slow = 256 * FUSED + 8 * scores, 256 * ONE_BY_ONE + 24 * scores
    assert found == near(3 * fused / FAST, 3 * slow / SLOW)


def test_a_checkpoint_moves_the_forward_pass_once_more() -> None:
    found = part(
        "recomputation",
        of=NOTHING._replace(products_again=1e14, attention_again=1e14),
        gradient_checkpointing=True,
    )
    assert found == near(2 + 256 * FUSED / FAST, 2 * 2.5 + 256 * ONE_BY_ONE / SLOW)


def test_logits_are_four_bytes_a_word_at_best_and_forty_two_at_worst() -> None:
    assert part("logits and loss") == near(256 * 10 * 4 / FAST, 256 * 10 * 42 / SLOW)


# --- adapters and quantised weights ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "bytes_an_input"),
    [
        ({}, 12),  # the input to float32, 2 + 4, and the result back, 4 + 2
        ({"autocast_adapter_dtype": False}, 0),
        ({"lora_dropout": 0.1}, 12 + 9),  # dropout of float32: 4 in, 4 out, 1 of mask
        ({"lora_dropout": 0.1, "autocast_adapter_dtype": False}, 5),  # 2 in, 2 out, 1 of mask
        ({"lora_dropout": 0.1, "mixed_precision": MixedPrecision.NO}, 5),
    ],
)
def test_an_adapter_moves_its_casts_its_dropout_and_its_output(
    keys: dict[str, Any], bytes_an_input: int
) -> None:
    # q_proj of both layers, 8 in and 8 out; an output moves 12; nothing but products at best
    found = part(
        "adapters", of=NOTHING._replace(adapters=1e14), method=Method.LORA, **(FROZEN | keys)
    )
    moves = 256 * 2 * (8 * bytes_an_input + 8 * 12)
    assert found == near(1, 2.5 + 3 * moves / SLOW)


def test_dora_moves_thirty_four_bytes_an_element_of_an_adapted_weight() -> None:
    found = part("adapters", method=Method.LORA, use_dora=True, **FROZEN)
    branches, weights = 256 * 2 * (8 * 12 + 8 * 12), 34 * 2 * 8 * 8
    assert found == near(weights / FAST, (3 * branches + weights) / SLOW)


LINEARS = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)


@pytest.mark.parametrize(
    ("keys", "bytes_an_element", "passes"),
    [
        ({}, 0.5 + 2, 2),
        ({"gradient_checkpointing": True}, 0.5 + 2, 3),
        ({"method": Method.LORA, "load_in_8bit": True}, 1 + 2, 2),
    ],
)
def test_a_packed_weight_is_read_and_a_16_bit_one_written_at_worst_seven_times_as_slowly(
    keys: dict[str, Any], bytes_an_element: float, passes: int
) -> None:
    found = part("dequantisation", **({"method": Method.QLORA} | FROZEN | keys))
    seconds = passes * bytes_an_element * LINEARS / FAST
    assert found == near(seconds, 7 * seconds)


def test_a_float32_weight_is_cast_once_a_forward_pass_at_six_bytes() -> None:
    size = 6 * (LINEARS + 8 * 10)
    assert part("casts of weights", dtype=Dtype.FLOAT32) == near(size / FAST, size / SLOW)
    again = part("casts of weights", dtype=Dtype.FLOAT32, gradient_checkpointing=True)
    assert again == near(2 * size / FAST, 2 * size / SLOW)


# --- delta-nets and state spaces ------------------------------------------------------------------

DELTA = replace(
    TINY_LLAMA,
    model_type="qwen3_5_text",
    layer_types=(LINEAR_ATTENTION, LINEAR_ATTENTION),
    delta_net=DeltaNet(key_heads=3, value_heads=6, key_dim=5, value_dim=7),
)
SPACE = StateSpace(heads=6, head_dim=5, state_size=7, groups=2, chunk_size=64)
MAMBA = replace(TINY_LLAMA, model_type="falcon_h1", state_space=SPACE)


@pytest.mark.parametrize(("checkpointing", "passes"), [(False, 3), (True, 4)])
def test_a_delta_net_moves_rows_pairs_and_states_and_slices_in_backward(
    checkpointing: bool, passes: int
) -> None:
    # 2 layers of 6 heads, 4 chunks of 64 tokens; keys 5 and values 7 wide
    fused = 12 * 256 * 2 * (2 * 5 + 2 * 7)
    chunk = 64 * (136 * 5 + 128 * 7 + 64 * 64) + 36 * 5 * 7
    # each round of the loop takes slices of q, k, the solved values and keys, and decays, 3 · 5 + 7 + 64, and writes 7
    sliced = 4 * 64 * (16 * (3 * 5 + 7 + 64) + 8 * 7)
    found = part("delta-nets", DELTA, gradient_checkpointing=checkpointing)
    assert found == near(passes * fused / FAST, 12 * 4 * (passes * chunk + sliced) / SLOW)


@pytest.mark.parametrize(("checkpointing", "passes"), [(False, 3), (True, 4)])
def test_a_state_space_moves_scores_values_states_and_channels(
    checkpointing: bool, passes: int
) -> None:
    # 2 layers of 6 heads, 5 wide, 7 numbers of state, 4 chunks of 64 tokens; B and C for 2 groups
    width = 30
    projected, channels = 2 * width + 2 * 14 + 6, width + 2 * 14
    fused = 2 * 256 * 2 * (projected + width)
    row = 48 * 6 * 64 + 170 * width + 2 * 80 * 6 * 7 + 12 * channels
    scanned = 2 * 4 * (64 * row + 40 * width * 7)
    found = part("state spaces", MAMBA, gradient_checkpointing=checkpointing)
    assert found == near(passes * fused / FAST, passes * scanned / SLOW)


def test_without_autocast_a_state_space_multiplies_in_float32() -> None:
    # 2 operations for each product: 2 layers · 6 heads · 256 rows · (64 · (7 + 5) + 2 · 7 · 5), at 1e13 a second
    autocast = part("state spaces", MAMBA)[1]
    assert part("state spaces", MAMBA, mixed_precision=MixedPrecision.NO)[1] == pytest.approx(
        autocast + 3 * 2 * (2 * 6 * 256 * (64 * 12 + 70)) / 1e13
    )


def test_products_of_delta_nets_and_state_spaces_are_counted_in_whole_chunks() -> None:
    # 65 tokens are two chunks of 64. Keys with keys, queries with keys, scores with values; two triangles; the state
    delta = 2 * 6 * 128 * (64 * (2 * 5 + 7) + 64 * (5 + 7) // 2 + 3 * 5 * 7)
    assert delta_products(DELTA, 65) == delta
    space = 2 * 6 * 128 * (64 * (7 + 5) + 2 * 7 * 5)
    assert scan_products(MAMBA, 65) == space
    # a product is 2 operations, its backward twice as many; the rest of attention counts no pair here
    for model, mixed in ((DELTA, delta), (MAMBA, space)):
        found = work(model, TrainingSetup(gradient_checkpointing=True), 65, pairs=0)
        assert found.attention == 3 * 2 * mixed
        assert found.attention_again == 2 * mixed


def test_dora_sends_a_unit_matrix_through_its_adapter_and_with_dropout_the_base_once_more() -> None:
    keys = {"method": Method.LORA, "lora_r": 3, "lora_target_modules": ("q_proj",)}
    plain, dora, dropped = (
        work(TINY_LLAMA, TrainingSetup(**keys, **more), 4, pairs=0).adapters
        for more in (
            {"lora_dropout": 0.1},
            {"lora_dropout": 0.0, "use_dora": True},
            {"lora_dropout": 0.1, "use_dora": True},
        )
    )
    assert plain == 2 * 4 * 3 * 3 * 2 * (8 + 8)
    assert dora == plain + 2 * 3 * 2 * 8 * (8 + 8)
    assert dropped == dora + 2 * (2 * 4 * 2 * 8 * 8)  # forward and backward


def test_trl_s_loss_multiplies_by_the_head_once_more() -> None:
    found = work(TINY_LLAMA, TrainingSetup(loss=Loss.CHUNKED_TRL), 4, pairs=0)
    assert found.products_again == 2 * 4 * 10 * 8


# --- the optimizer, and the host ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "passes", "trained"),
    [
        ({}, 1, 1000),
        ({"optim": Optimizer.ADAMW_TORCH}, 20 / 7, 1000),  # foreach: 20 passes for 7
        ({"optim": Optimizer.ADAFACTOR}, 20 / 7, 1000),
        ({"method": Method.LORA}, 1, 100),
    ],
)
def test_the_optimizer_moves_gradients_once_and_weights_and_all_states_twice(
    keys: dict[str, Any], passes: float, trained: int
) -> None:
    # paged states, 500 bytes here, count as the others do
    update = passes * (10 + 2 * trained + 2 * (2000 + 500))
    unclipped = part("optimizer step", max_grad_norm=0.0, **keys)
    assert unclipped == near(update / FAST, update / SLOW)
    # clipping reads gradients for their norm, and at worst reads and writes them to scale them
    assert part("optimizer step", **keys) == near((update + 10) / FAST, (update + 30) / SLOW)


@pytest.mark.parametrize(
    ("method", "slow"), [(Method.FULL, 0.005), (Method.LORA, 0.006), (Method.QLORA, 0.010)]
)
@pytest.mark.parametrize(("gpus", "times"), [(1, 1), (2, 2)])
@pytest.mark.parametrize(("checkpointing", "share"), [(False, 1), (True, 4 / 3)])
def test_the_host_starts_a_layer_in_half_a_millisecond_or_as_slowly_as_was_published(
    method: Method, slow: float, gpus: int, times: int, checkpointing: bool, share: float
) -> None:
    keys = {"strategy": Strategy.DDP, "num_gpus": gpus} if gpus > 1 else {}
    found = part(
        "waiting for the host",
        method=method,
        gradient_checkpointing=checkpointing,
        gradient_accumulation_steps=3,
        **keys,
    )
    # 2 layers, 3 micro-batches; what the GPU takes meanwhile, some microseconds of these, is less than 2 %
    assert found[0] == pytest.approx(2 * 3 * 0.0005 * share, rel=0.02)
    assert found[1] == pytest.approx(2 * 3 * slow * share * times, rel=0.02)


def test_the_host_waits_for_no_step_that_takes_the_gpu_longer() -> None:
    assert part("waiting for the host", of=NOTHING._replace(products=1e14)) == (0.0, 0.0)


@pytest.mark.parametrize(("checkpointing", "kernels"), [(False, 9 + 37), (True, 2 * 9 + 37)])
def test_a_delta_net_s_loop_starts_46_kernels_a_chunk(checkpointing: bool, kernels: int) -> None:
    # 4 chunks in each of 2 layers; 120 kernels of another layer take 5 ms
    share = 4 / 3 if checkpointing else 1
    _, slow = part("waiting for the host", DELTA, gradient_checkpointing=checkpointing)
    _, busy = part("delta-nets", DELTA, gradient_checkpointing=checkpointing)
    expected = 2 * 0.005 * share + 2 * 4 * kernels * 0.005 / 120
    assert slow == pytest.approx(expected - busy, rel=0.02)


def test_a_state_space_has_no_loop_that_the_host_starts() -> None:
    assert part("waiting for the host", MAMBA)[1] == pytest.approx(2 * 0.005, rel=0.02)


# --- offload --------------------------------------------------------------------------------------

A100 = Gpu(name="card", memory_bytes=2**36, architecture="Ampere")


@pytest.mark.parametrize(
    ("architecture", "link", "memory"),
    [
        ("Volta", 15.75, 2 * 6 * 21.3),  # PCIe 3; two sockets of six channels
        ("Ampere", 31.5, 2 * 8 * 25.6),
        ("Hopper", 63.0, 2 * 8 * 38.4),
    ],
)
def test_a_host_is_as_old_as_its_gpu(architecture: str, link: float, memory: float) -> None:
    slow, fast = hosts(replace(A100, architecture=architecture))
    assert slow == fast == Host(link, pytest.approx(memory, rel=0.002))


def test_a_host_of_unknown_age_is_anything_from_the_oldest_to_the_newest() -> None:
    slow, fast = hosts(replace(A100, architecture=""))
    assert (slow.link, fast.link) == (15.75, 63.0)


def offloaded(name: str, behind: float = 0.0, **keys: Any) -> tuple[float, float]:
    setup = TrainingSetup(num_gpus=2, max_length=LENGTH, **keys)
    found = offload_parts(TINY_LLAMA, A100, setup, behind)
    ends = [(it.low_seconds, it.high_seconds) for it in found if it.name == name]
    return ends[0] if ends else (0.0, 0.0)


ZERO = {"strategy": Strategy.ZERO2, "offload_optimizer": Offload.CPU}
FSDP = {
    "strategy": Strategy.FSDP,
    "offload_optimizer": Offload.CPU,
    "offload_param": Offload.CPU,
}


@pytest.mark.parametrize(
    ("keys", "bytes_an_element"),
    [
        # Adam: weight, gradient and two moments in, all but the gradient out: 4 · 4 + 3 · 4
        ({**FSDP, "max_grad_norm": 0.0}, 28),
        (FSDP, 28 + 12),  # clipping reads for the norm, reads and writes for the product
        ({**FSDP, "optim": Optimizer.ADAMW_TORCH}, (28 + 12) * 20 / 7),
        (
            ZERO,
            28 + 8 + 6,
        ),  # DeepSpeed scales every gradient in place and copies weights into 16 bits
        ({**ZERO, "max_grad_norm": 0.0}, 28 + 8 + 6),
        ({**ZERO, "optim": Optimizer.ADAMW_TORCH}, 28 + 8 + 6),  # replaced by DeepSpeed's own
    ],
)
def test_the_cpu_steps_every_element_with_all_that_goes_with_it(
    keys: dict[str, Any], bytes_an_element: float
) -> None:
    setup = TrainingSetup(num_gpus=2, max_length=LENGTH, **keys)
    stepped = 2 * moved(TINY_LLAMA, setup).stepped  # both ranks are in one machine
    passes = 20 / 7 if bytes_an_element > 100 else 1
    found = offloaded("optimizer step on the CPU", **keys)
    assert found == near(stepped * bytes_an_element / 409.6e9, stepped * passes / 1.8e9)


def test_the_link_is_hidden_behind_the_gpu_at_best_and_reaches_a_third_at_worst() -> None:
    of = moved(TINY_LLAMA, TrainingSetup(num_gpus=2, max_length=LENGTH, **FSDP))
    assert of.in_micro_steps > 0
    both = of.in_micro_steps + of.after
    slow = both / (0.35 * 31.5e9)
    assert offloaded("between GPU and host", **FSDP) == near(both / 31.5e9, slow)
    hidden = offloaded("between GPU and host", behind=1.0, **FSDP)
    assert hidden == near(of.after / 31.5e9, slow)


def test_stages_1_and_2_send_on_the_stream_that_computes() -> None:
    of = moved(TINY_LLAMA, TrainingSetup(num_gpus=2, max_length=LENGTH, **ZERO))
    both = of.in_micro_steps + of.after
    found = offloaded("between GPU and host", behind=1.0, **ZERO)
    assert found == near(both / 31.5e9, both / (0.35 * 31.5e9))


def test_nvme_is_eight_fast_disks_at_best_and_one_at_worst() -> None:
    keys = {
        "strategy": Strategy.ZERO3,
        "offload_optimizer": Offload.NVME,
        "offload_param": Offload.NVME,
    }
    of = moved(TINY_LLAMA, TrainingSetup(num_gpus=2, max_length=LENGTH, **keys))
    assert of.read > 0
    assert of.written > 0
    assert offloaded("NVMe", **keys) == near(
        2 * (of.read / 48e9 + of.written / 26e9), 2 * (of.read / 3.15e9 + of.written / 1.13e9)
    )


# --- the network ----------------------------------------------------------------------------------


def test_a_gpu_without_a_link_of_its_own_has_half_of_pcie_3_each_way_and_ethernet() -> None:
    # PCIe 3.0 x16: 16 GB/s each way; 25 Gb/s are 3.125 GB/s, and at best the network is as fast as the link
    assert ETHERNET.network_gbit_per_s == 25
    assert links(Gpu(name="card", memory_bytes=2**34), TrainingSetup()) == Links(
        16e9, 3.125e9, 16e9
    )
