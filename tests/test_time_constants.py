"""Every time constant by hand: numbers small enough to redo on paper, from each constant's docstring.

The card moves 10¹² bytes per second and multiplies at 10¹⁴ operations per second, 8·10¹³ in fast and 4·10¹³ in slow
runs; attention at 5·10¹³ and 2.5·10¹³; the slow end's memory bandwidth is 8·10¹¹. The model has 2 layers, a hidden size
of 8, an MLP of 16, 2 heads of queries and 1 of keys, 4 wide, and 10 words.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import Dtype, Gpu, Method, MixedPrecision, Optimizer, TrainingSetup
from estimator.families.layer_kinds import LINEAR_ATTENTION
from estimator.families.modules import TINY_LLAMA
from estimator.parallel.host import host_of
from estimator.parallel.network import ETHERNET, links
from estimator.parallel.offload import moved
from estimator.resident.model import Resident
from estimator.resident.optimizer import States
from estimator.time.between import traffic
from estimator.time.flops import Work, delta_products, scan_products, work
from estimator.time.offload_time import offload_parts
from estimator.time.rates import Rates, rates
from estimator.time.throughput import beside_micro_steps, step_costs, step_parts
from estimator.values.facets.mesh import Mesh
from estimator.values.facets.precision import Precision
from estimator.values.losses import Loss
from estimator.values.range import Range, summed
from estimator.values.specs import AttnImplementation, DeltaNet, Model, Offload, StateSpace
from estimator.values.strategies import Strategy

LENGTH = 256
FAST, SLOW = 1e12, 0.8e12
RATE = Rates(
    peak=2e14,
    best=1e14,
    products=Range(4e13, 8e13),
    attention=Range(2.5e13, 5e13),
    fp8=Range(4e13, 8e13),
    bandwidth=FAST,
    float32=1e13,
)
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
    """Low and high seconds of one part of a step of 256 tokens, if its own costs are fast or slow."""
    setup = TrainingSetup(max_length=LENGTH, **keys)
    beside = beside_micro_steps(setup, resident, RATE, 1.0)
    costs = step_costs(model, setup, RATE, LENGTH, of, beside).gpu
    found = summed(cost.seconds for cost in costs if cost.name == name)
    return found.low, found.high


def waiting(
    model: Model = TINY_LLAMA, of: Work = NOTHING, **keys: Any
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Low and high seconds in which the GPU of such a step waits for the host, and those in which it does not."""
    setup = TrainingSetup(max_length=LENGTH, **keys)
    parts = step_parts(model, setup, RESIDENT, RATE, LENGTH, Range.of(of))
    found: list[tuple[float, float]] = []
    for waits in (True, False):
        chosen = [one for one in parts if (one.name == "waiting for the host") is waits]
        found.append(
            (sum(one.seconds.low for one in chosen), sum(one.seconds.high for one in chosen))
        )
    return found[0], found[1]


def near(fast: float, slow: float) -> Any:
    return pytest.approx((fast, slow), rel=1e-9)


# --- products and attention -----------------------------------------------------------------------


LINEARS = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)
"""Elements of the linears of both layers; the head has 8 · 10 more."""
INPUTS = 2 * (4 * 8 + 2 * 8 + 16) + 8
"""Values per token that all matmuls read: q, k, v, o; gate, up; down; the head."""
OUTPUTS = 2 * (8 + 4 + 4 + 8 + 16 + 16 + 8) + 10
MOVED = 2 * (LINEARS + 80 + 256 * (INPUTS + OUTPUTS))
"""Bytes that a forward pass's matmuls read and write: weights once, values of 256 tokens."""
HALF_WAVE = 128 * 256 * 108 // 2
IDLE = 2 * HALF_WAVE * INPUTS / 1e14
"""Seconds of half a wave of tiles in each matmul of a pass; a matmul's depth is its input width."""


@pytest.mark.parametrize(("method", "passes"), [(Method.FULL, 3), (Method.LORA, 2)])
def test_matmuls_take_operations_memory_traffic_and_half_a_wave(method, passes):
    # backward multiplies for gradients of inputs and of trained weights, the latter 256 tokens deep and split
    found = part("matrix products", of=NOTHING._replace(products=4e14), method=method)
    gradients = 2 * HALF_WAVE / 2 * 15 * 256 / 1e14 if method is Method.FULL else 0
    idle = 2 * IDLE + gradients
    assert found == near(
        5 + passes * 0.55 * MOVED / FAST + 0.55 * idle,
        10 + passes * 2.6 * MOVED / FAST + 2.6 * idle,
    )


def test_attention_runs_at_its_kernels_rate():
    assert part("attention", of=NOTHING._replace(attention=4e14)) == near(8, 16)


@pytest.mark.parametrize(
    ("architecture", "fast", "slow", "flash"),
    [
        ("Ampere", 1.03, 0.7, (0.72, 0.36)),
        ("Ada Lovelace", 1.04, 0.62, (0.72, 0.36)),
        ("Hopper", 0.94, 0.57, (0.66, 0.2)),
        ("Blackwell", 1.19, 0.57, (0.66, 0.2)),
        ("Turing", 1.07, 0.55, (0.72, 0.36)),  # too few published runs
    ],
)
def test_fast_and_slow_matmuls_reach_their_generations_shares_of_peak(
    architecture, fast, slow, flash
):
    card = Gpu(
        name="card",
        memory_bytes=2**36,
        architecture=architecture,
        bf16_dense_tflops=100,
        memory_bandwidth_gb_per_s=1000,
    )
    found = rates(card, Precision())
    assert (found.peak, found.best, found.bandwidth) == (1e14, 1e14, 1e12)
    assert tuple(found.products) == near(slow * 1e14, fast * 1e14)
    assert tuple(found.attention) == near(flash[1] * 1e14, flash[0] * 1e14)
    assert found.float32 == pytest.approx(slow * 1e14)


# --- norms, activations, residuals ----------------------------------------------------------------

FUSED = 2 * (12 * 8 + 6 * 16)
"""Forward bytes per token in both layers: two norms of 12 per hidden element, and 6 per MLP element."""
WRITTEN, WRITTEN_BACK = 1128, 1720
"""Bytes per token that operators between matmuls write in both layers: by hand in tests/test_traffic.py."""


def test_elementwise_operators_move_their_output_once_at_best_and_six_times_at_worst():
    written = 256 * (WRITTEN + WRITTEN_BACK)
    assert part("norms, activations, residuals") == near(written / FAST, 6 * written / FAST)


def test_compiled_kernels_move_half_to_nearly_all_that_is_written_eagerly():
    """The shares are those of inductor's own kernels, as traced in tests/verify/test_compiled_steps.py."""
    keys: dict[str, Any] = {"torch_compile": True}
    moves = traffic(TINY_LLAMA, TrainingSetup(max_length=LENGTH, **keys), 0.0)
    written = 256 * (moves.forward + moves.backward)
    found = part("norms, activations, residuals", **keys)
    assert found == near(0.48 * written / FAST, 0.97 * written / SLOW)


def test_no_kernel_moves_less_than_fused_kernels():
    """Liger's kernels write so little, and in place, that the fused kernels' roofline sets the fast end."""
    keys: dict[str, Any] = {"use_liger_kernel": True, "mixed_precision": MixedPrecision.NO}
    assert part("norms, activations, residuals", **keys)[0] == pytest.approx(
        max(256 * FUSED, 256 * traffic(TINY_LLAMA, TrainingSetup(**keys), 0.0).forward) / FAST
        + max(2 * 256 * FUSED, 256 * traffic(TINY_LLAMA, TrainingSetup(**keys), 0.0).forward) / FAST
    )


def test_an_eager_attention_score_moves_8_bytes_at_best_and_24_at_worst():
    name = "norms, activations, residuals"
    short, long = (
        part(name, attn_implementation=kernel)
        for kernel in (AttnImplementation.SDPA, AttnImplementation.EAGER)
    )
    scores = 3 * 2 * 2 * 256 * 256  # forward and twice backward, layers, heads, s²
    assert long[0] - short[0] > 0.95 * 8 * scores / FAST
    assert long[1] - short[1] > 0.95 * 24 * scores / SLOW


def test_a_checkpoint_repeats_the_forward_passs_traffic():
    found = part(
        "recomputation",
        of=NOTHING._replace(products_again=1e14, attention_again=1e14),
        gradient_checkpointing=True,
    )
    low = 1e14 / 8e13 + 2 + 0.55 * (MOVED / FAST + IDLE) + 256 * WRITTEN / FAST
    high = 2.5 + 4 + 2.6 * (MOVED / FAST + IDLE) + 256 * 6 * WRITTEN / FAST
    assert found == near(low, high)


@pytest.mark.parametrize(("loss", "bytes_a_word"), [(Loss.STANDARD, 12), (Loss.CHUNKED_TRL, 4)])
def test_a_logit_moves_12_bytes_at_best_4_if_fused_and_62_at_worst(loss, bytes_a_word):
    found = part("logits and loss", loss=loss)
    assert found == near(256 * 10 * bytes_a_word / FAST, 256 * 10 * 62 / SLOW)


# --- adapters and quantised weights ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({}, 4),  # adapters in float32
        ({"autocast_adapter_dtype": False}, 2),
        ({"mixed_precision": MixedPrecision.NO}, 4),
    ],
)
def test_an_adapters_matmuls_read_the_input_and_write_the_output(keys, width):
    # q_proj of both layers, 8 in and 8 out, three passes; casts and sums count as elementwise operators
    found = part(
        "adapters", of=NOTHING._replace(adapters=4e14), method=Method.LORA, **(FROZEN | keys)
    )
    moves = 3 * 256 * width * 2 * (8 + 8)
    assert found == near(5 + 0.3 * moves / FAST, 10 + 0.8 * moves / FAST)


def test_dora_moves_34_bytes_per_element_of_an_adapted_weight():
    found = part("adapters", method=Method.LORA, use_dora=True, **FROZEN)
    skinny, weights = 3 * 256 * 4 * 2 * (8 + 8), 34 * 2 * 8 * 8
    assert found == near((0.3 * skinny + weights) / FAST, 0.8 * skinny / FAST + weights / SLOW)


@pytest.mark.parametrize(
    ("keys", "bytes_an_element", "passes"),
    [
        ({}, 0.5 + 2, 2),
        ({"gradient_checkpointing": True}, 0.5 + 2, 3),
        ({"method": Method.LORA, "load_in_8bit": True}, 1 + 2, 2),
    ],
)
def test_dequantising_takes_two_to_nine_times_the_roofline(keys, bytes_an_element, passes):
    found = part("dequantisation", **({"method": Method.QLORA} | FROZEN | keys))
    seconds = passes * bytes_an_element * LINEARS / FAST
    assert found == near(2 * seconds, 9 * seconds)


def test_casting_a_float32_weight_or_its_gradient_moves_6_bytes():
    # one forward pass, and the gradients of full fine-tuning
    size = 6 * (LINEARS + 8 * 10)
    assert part("casts of weights", dtype=Dtype.FLOAT32) == near(2 * size / FAST, 2 * size / SLOW)
    again = part("casts of weights", dtype=Dtype.FLOAT32, gradient_checkpointing=True)
    assert again == near(3 * size / FAST, 3 * size / SLOW)
    frozen = part("casts of weights", dtype=Dtype.FLOAT32, method=Method.LORA)
    assert frozen == near(size / FAST, size / SLOW)


@pytest.mark.parametrize(
    ("strategy", "shards"), [(Strategy.DDP, 1), (Strategy.ZERO1, 1), (Strategy.FSDP, 2)]
)
def test_each_micro_batch_but_the_first_is_added_to_the_gradients(strategy, shards):
    # 10 bytes of gradients, read twice and written once
    found = part("gradients added up", gradient_accumulation_steps=5, strategy=strategy, num_gpus=2)
    assert found == near(4 * 3 * 10 / shards / FAST, 4 * 3 * 10 / shards / SLOW)


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
def test_a_delta_net_moves_rows_pairs_and_states_and_slices_in_backward(checkpointing, passes):
    # 2 layers of 6 heads, 4 chunks of 64 tokens; keys 5 and values 7 wide
    chunk = 64 * (136 * 5 + 128 * 7 + 64 * 64) + 36 * 5 * 7
    # each iteration of the loop slices q, k, the solved values and keys, and decays, 3 · 5 + 7 + 64, and writes 7
    sliced = 4 * 64 * (16 * (3 * 5 + 7 + 64) + 8 * 7)
    found = part("delta-nets", DELTA, gradient_checkpointing=checkpointing)
    moved = 12 * 4 * (passes * chunk + sliced)
    assert found == near(moved / FAST, moved / SLOW)


@pytest.mark.parametrize(("checkpointing", "passes"), [(False, 3), (True, 4)])
def test_a_state_space_moves_scores_values_states_and_channels(checkpointing, passes):
    # 2 layers of 6 heads, 5 wide, state size 7, 4 chunks of 64 tokens; B and C for 2 groups
    width = 30
    channels = width + 2 * 14
    row = 48 * 6 * 64 + 170 * width + 2 * 80 * 6 * 7 + 12 * channels
    scanned = 2 * 4 * (64 * row + 40 * width * 7)
    found = part("state spaces", MAMBA, gradient_checkpointing=checkpointing)
    assert found == near(passes * scanned / FAST, passes * scanned / SLOW)


@pytest.mark.parametrize(
    ("name", "model", "multiplied"),
    [
        # 2 layers · 6 heads · 256 rows · (64 · (7 + 5) + 2 · 7 · 5)
        ("state spaces", MAMBA, 2 * 6 * 256 * (64 * 12 + 70)),
        # 64 · (2 · 5 + 7) + 64 · (5 + 7) / 2 + 3 · 5 · 7
        ("delta-nets", DELTA, 2 * 6 * 256 * (64 * 17 + 32 * 12 + 105)),
    ],
)
def test_without_autocast_a_fallback_multiplies_in_float32(name, model, multiplied):
    # 2 operations per multiply-add, forward and twice backward, at 1e13 a second
    autocast, alone = part(name, model), part(name, model, mixed_precision=MixedPrecision.NO)
    seconds = 3 * 2 * multiplied / 1e13
    assert alone == near(autocast[0] + seconds, autocast[1] + seconds)


def test_delta_net_and_state_space_operations_are_counted_in_whole_chunks():
    # 65 tokens are two chunks of 64. Keys with keys, queries with keys, scores with values; two triangles; the state
    delta = 2 * 6 * 128 * (64 * (2 * 5 + 7) + 64 * (5 + 7) // 2 + 3 * 5 * 7)
    assert delta_products(DELTA, 65) == delta
    space = 2 * 6 * 128 * (64 * (7 + 5) + 2 * 7 * 5)
    assert scan_products(MAMBA, 65) == space
    # a multiply-add is 2 operations, its backward twice as many; other attention has no pairs here
    for model, mixed in ((DELTA, delta), (MAMBA, space)):
        found = work(model, TrainingSetup(gradient_checkpointing=True), 65, pairs=0)
        assert found.attention == 3 * 2 * mixed
        assert found.attention_again == 2 * mixed


def test_dora_multiplies_a_unit_matrix_and_with_dropout_repeats_the_base():
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


def test_trls_loss_multiplies_by_the_head_once_more():
    found = work(TINY_LLAMA, TrainingSetup(loss=Loss.CHUNKED_TRL), 4, pairs=0)
    assert found.products_again == 2 * 4 * 10 * 8


# --- the optimizer, and the host ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "passes", "trained"),
    [
        ({}, 1, 1000),
        ({"optim": Optimizer.ADAMW_TORCH}, 20 / 7, 1000),  # foreach: 20 passes instead of 7
        ({"optim": Optimizer.ADAFACTOR}, 20 / 7, 1000),
        ({"method": Method.LORA}, 1, 100),
    ],
)
def test_the_optimizer_step_moves_gradients_once_and_weights_and_states_twice(
    keys, passes, trained
):
    # paged states, 500 bytes here, count like the others
    update = passes * (10 + 2 * trained + 2 * (2000 + 500))
    unclipped = part("optimizer step", max_grad_norm=0.0, **keys)
    assert unclipped == near(update / FAST, update / SLOW)
    # clipping reads gradients for their norm; at worst it also reads and writes them to scale them
    assert part("optimizer step", **keys) == near((update + 10) / FAST, (update + 30) / SLOW)


def operators(model: Model = TINY_LLAMA, **keys: Any) -> int:
    """Operators of a micro-step; tests/test_traffic.py checks them."""
    setup = TrainingSetup(**keys)
    return traffic(model, setup, float(setup.computation.gradient_checkpointing)).operators


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize(("gpus", "times"), [(1, 1), (2, 1.5)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_host_launches_an_operator_in_11_to_25_microseconds(method, gpus, times, checkpointing):
    keys: dict[str, Any] = {"method": method, "gradient_checkpointing": checkpointing}
    shared = {"strategy": Strategy.DDP, "num_gpus": gpus} if gpus > 1 else {}
    found = waiting(gradient_accumulation_steps=3, **keys, **shared)[0]
    # 3 micro-batches; the GPU's own time, a few microseconds of these, is less than a tenth
    assert found[0] == pytest.approx(3 * 11e-6 * operators(**keys), rel=0.1)
    assert found[1] == pytest.approx(3 * 25e-6 * times * operators(**keys), rel=0.1)


def test_zero_3_fetches_each_module_at_each_call():
    alone, sharded = (
        waiting(strategy=strategy, num_gpus=2)[0] for strategy in (Strategy.ZERO2, Strategy.ZERO3)
    )
    assert sharded[0] == alone[0]
    assert sharded[1] - alone[1] == pytest.approx(15 * 3 * 500e-6)  # 15 modules, 3 passes


def test_a_step_limited_by_the_gpu_never_waits_for_the_host():
    assert waiting(of=NOTHING._replace(products=1e14))[0] == (0.0, 0.0)


@pytest.mark.parametrize(("checkpointing", "kernels"), [(False, 9 + 37), (True, 2 * 9 + 37)])
def test_a_delta_nets_loop_launches_46_kernels_per_chunk(checkpointing, kernels):
    # 4 chunks in each of 2 layers; the first chunk is counted among the operators
    keys = {"gradient_checkpointing": checkpointing}
    waits, busy = waiting(DELTA, **keys)
    launched = operators(DELTA, **keys) + 2 * 3 * kernels
    assert waits[0] == pytest.approx(11e-6 * launched - busy[0], rel=0.05)
    assert waits[1] == pytest.approx(25e-6 * launched - busy[1], rel=0.05)


def test_a_state_space_has_no_loop_on_the_host():
    waits, busy = waiting(MAMBA)
    assert waits[1] == pytest.approx(25e-6 * operators(MAMBA) - busy[1])


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
def test_the_host_is_of_its_gpus_generation(architecture, link, memory):
    # STREAM reaches four fifths of two sockets; nvbandwidth reads 55.4 of 63 GB/s on an H200
    found = host_of(replace(A100, architecture=architecture), Mesh())
    fast = found.link.high, found.memory.high
    assert fast == pytest.approx((0.88 * link, 0.8 * memory), rel=0.002)


def test_a_host_of_unknown_age_spans_the_oldest_to_the_newest():
    link = host_of(replace(A100, architecture=""), Mesh()).link
    assert tuple(link) == pytest.approx((0.35 * 15.75, 0.88 * 63.0), rel=1e-3)


def offloaded(name: str, behind: float = 0.0, **keys: Any) -> tuple[float, float]:
    setup = TrainingSetup(num_gpus=2, max_length=LENGTH, **keys)
    found = offload_parts(TINY_LLAMA, A100, setup, behind)
    ends = [(one.seconds.low, one.seconds.high) for one in found if one.name == name]
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
        # Adam reads weight, gradient and two moments and writes all but the gradient: 4 · 4 + 3 · 4
        ({**FSDP, "max_grad_norm": 0.0}, 28),
        (FSDP, 28 + 12),  # clipping reads for the norm, then reads and writes to scale
        ({**FSDP, "optim": Optimizer.ADAMW_TORCH}, (28 + 12) * 20 / 7),
        (
            ZERO,
            28 + 8 + 6,
        ),  # DeepSpeed scales every gradient in place and copies weights into 16 bits
        ({**ZERO, "max_grad_norm": 0.0}, 28 + 8 + 6),
        (
            {**ZERO, "optim": Optimizer.ADAMW_TORCH},
            28 + 8 + 6,
        ),  # replaced by DeepSpeed's own optimizer
    ],
)
def test_the_cpu_step_moves_all_bytes_of_each_element(keys, bytes_an_element):
    setup = TrainingSetup(num_gpus=2, max_length=LENGTH, **keys)
    stepped = 2 * moved(TINY_LLAMA, setup).stepped  # both ranks share one machine
    found = offloaded("optimizer step on the CPU", **keys)
    # four fifths of the memory's bandwidth; at worst one thread of 9.45 GB/s in each of two processes
    moves = stepped * bytes_an_element
    assert found == near(moves / (0.8 * 409.6e9), moves / (2 * 9.45e9))


def test_transfers_overlap_compute_at_best_and_reach_a_third_of_the_link_at_worst():
    of = moved(TINY_LLAMA, TrainingSetup(num_gpus=2, max_length=LENGTH, **FSDP))
    assert of.in_micro_steps > 0
    both = of.in_micro_steps + of.after
    link = 16 * 16e9 * 128 / 130 / 8
    slow = both / (0.35 * link)
    assert offloaded("between GPU and host", **FSDP) == near(both / (0.88 * link), slow)
    hidden = offloaded("between GPU and host", behind=1.0, **FSDP)
    assert hidden == near(of.after / (0.88 * link), slow)


def test_zero_1_and_2_transfer_on_the_compute_stream():
    of = moved(TINY_LLAMA, TrainingSetup(num_gpus=2, max_length=LENGTH, **ZERO))
    both = of.in_micro_steps + of.after
    found = offloaded("between GPU and host", behind=1.0, **ZERO)
    link = 16 * 16e9 * 128 / 130 / 8
    assert found == near(both / (0.88 * link), both / (0.35 * link))


def test_nvme_offload_uses_eight_fast_disks_at_best_and_one_at_worst():
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


def test_a_gpu_without_a_known_link_has_pcie_3_to_5_and_ethernet():
    # PCIe 3.0 x16 to 5.0 x16, at worst 0.35 of it; 25 Gb/s are 3.125 GB/s; at best the network is as fast as the link
    assert ETHERNET.network_gbit_per_s == 25
    fast = 16 * 32e9 * 128 / 130 / 8
    found = links(Gpu(name="card", memory_bytes=2**34), Mesh())
    assert tuple(found.gpu) == near(0.35 * fast / 4, fast)
    assert tuple(found.network) == near(3.125e9, fast)
