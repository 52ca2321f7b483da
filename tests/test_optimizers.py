"""Bytes of optimizer states and of the step's temporaries, by hand from each library's source.

Traced: the optimizer itself (torch 2.13, schedulefree 1.4.1) stepped on a stand-in device that counts every allocation.
"""

from __future__ import annotations

import pytest

from estimator.resident.optimizer import PAGED, Trainable, optimizer_states, step_transient
from estimator.values.keys import BY_NAME
from estimator.values.specs import Optimizer

BIG = Trainable((1024, 512), 2, 1)
N = 1024 * 512
SMALL = Trainable((1536,), 2, 1)
TRACED_SHAPES = ((1024, 512), (512, 1536), (1536,), (700, 512))
TRACED_ELEMENTS = 1_670_656


def states(optim: Optimizer, *tensors: Trainable) -> tuple[int, int]:
    found = optimizer_states(tensors or (BIG,), optim, None)
    return found.resident_bytes, found.paged_bytes


@pytest.mark.parametrize(
    ("optim", "bytes_an_element"),
    [
        (Optimizer.LION_32BIT, 4),
        (Optimizer.LION_8BIT, 1 + 4 / 256),
        (Optimizer.ADEMAMIX, 3 * 4),
        (Optimizer.ADEMAMIX_8BIT, 3 * (1 + 4 / 256)),
        (Optimizer.RMSPROP_BNB, 4),
        (Optimizer.RMSPROP_BNB_8BIT, 1 + 4 / 256),
        (Optimizer.RMSPROP, 2),
        (Optimizer.ADAGRAD, 2),
        (Optimizer.SCHEDULE_FREE_ADAMW, 2 * 2),
        (Optimizer.SCHEDULE_FREE_SGD, 2),
    ],
)
def test_states_of_a_bfloat16_matrix(optim, bytes_an_element):
    assert states(optim) == (N * bytes_an_element, 0)


def test_only_adagrads_states_exist_before_the_first_step():
    # torch 2.13, optim/adagrad.py, __init__; the others make theirs in step
    early = {optim for optim in Optimizer if optimizer_states([BIG], optim, None).from_start}
    assert early == {Optimizer.ADAGRAD}


def test_small_tensors_and_embeddings_have_float32_states():
    # bitsandbytes 0.50, optimizer.py, min_8bit_size 4096; transformers 5.23, trainer.py, register_module_override
    table = BIG._replace(is_embedding=True)
    for optim, number in [(Optimizer.LION_8BIT, 1), (Optimizer.ADEMAMIX_8BIT, 3)]:
        assert states(optim, SMALL) == (number * 4 * 1536, 0)
        assert states(optim, table) == (number * 4 * N, 0)


@pytest.mark.parametrize(
    ("optim", "codes", "values", "between"),
    [
        (Optimizer.ADAMW_TORCH_8BIT, N, 256, 2 * 4 * N),
        (Optimizer.ADAMW_TORCH_4BIT, N // 2, 16, 2 * (4 + 8) * N),
    ],
)
def test_torchao_packs_matrices_and_unpacks_one_at_a_time(optim, codes, values, between):
    # AdamW8bit and AdamW4bit of torchao 0.18 stepped on PyTorch's CUDA build: 2.0314 and 1.0313 bytes an element of a
    # 4096 x 4096 matrix; between: the buffers in the code that torch 2.13's inductor writes for single_param_adam
    scales, table = 4 * N // 256, max(4 * values, 512)
    assert states(optim) == (2 * (codes + scales + table), 0)
    assert step_transient([BIG, BIG], optim, None) == 2 * scales + between


def test_torchao_leaves_small_and_odd_tensors_as_they_are():
    odd = Trainable((700, 513), 2, 1)  # no whole number of blocks of 256
    for tensor in (SMALL, odd):
        each = -(-tensor.shape[0] * (513 if tensor is odd else 1) * 2 // 512) * 512
        assert states(Optimizer.ADAMW_TORCH_8BIT, tensor) == (2 * each, 0)
    vector = Trainable((65_536,), 2, 1)  # packed, and its step is one kernel
    assert step_transient([SMALL, odd, vector], Optimizer.ADAMW_TORCH_8BIT, None) == 0


def test_paged_optimizers_page_large_states_but_never_scales():
    # bitsandbytes 0.50, optimizer.py: get_state_buffer for state1, torch.zeros for absmax1
    assert states(Optimizer.PAGED_LION_32BIT) == (0, 4 * N)
    assert states(Optimizer.PAGED_LION_8BIT) == (4 * N // 256, N)
    assert states(Optimizer.PAGED_ADAMW_8BIT) == (2 * 4 * N // 256, 2 * N)
    assert states(Optimizer.PAGED_ADEMAMIX_8BIT) == (3 * 4 * N // 256, 3 * N)
    assert states(Optimizer.PAGED_LION_32BIT, SMALL) == (4 * 1536, 0)
    assert len(PAGED) == 6


def test_stable_adamw_keeps_a_kahan_compensation_for_16_bit_weights():
    # torch-optimi 0.3.3, stableadamw.py, _init_state: kahan_comp for 16-bit parameters only; also ε² and a mean
    assert states(Optimizer.STABLE_ADAMW) == (3 * 2 * N + 2 * 512, 0)
    assert states(Optimizer.STABLE_ADAMW, BIG._replace(width=4)) == (2 * 4 * N + 2 * 512, 0)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    ("optim", "kept", "transient"),
    [
        (Optimizer.ADAMW_TORCH, 2, 1),
        (Optimizer.RMSPROP, 1, 1),
        (Optimizer.ADAGRAD, 1, 2),
        (Optimizer.SCHEDULE_FREE_ADAMW, 2, 1),
        (Optimizer.SCHEDULE_FREE_SGD, 1, 0),
    ],
)
def test_states_and_step_temporaries_match_the_trace(optim, kept, transient, width):
    tensors = [Trainable(shape, width, 1) for shape in TRACED_SHAPES]
    everything = TRACED_ELEMENTS * width
    assert states(optim, *tensors)[0] == pytest.approx(kept * everything, abs=512 * 8)
    assert step_transient(tensors, optim, None) == pytest.approx(
        transient * everything, abs=512 * 8
    )


LINEAR = Trainable((1024, 512), 2, 1, is_linear=True)


def test_galore_and_apollo_keep_projected_states_and_their_projector():
    """Traced: galore-torch 1.0 and apollo-torch 1.0.3. Float32 GaLore's projector keeps all 512 × 512 of Vh."""
    wide = LINEAR._replace(shape=(512, 1024))
    for tensor in (LINEAR, wide):
        assert states(Optimizer.GALORE_ADAMW, tensor) == (655_360, 0)
        assert states(Optimizer.APOLLO_ADAMW, tensor) == (655_872, 0)
    in_float32 = LINEAR._replace(width=4)
    assert states(Optimizer.GALORE_ADAMW, in_float32) == (2_097_152, 0)
    assert states(Optimizer.APOLLO_ADAMW, in_float32) == (1_311_232, 0)
    assert states(Optimizer.GALORE_ADAMW, BIG) == (4 * N, 0)  # not a linear: AdamW's two states


@pytest.mark.parametrize(
    ("optim", "tensors", "traced"),
    [
        (Optimizer.GALORE_ADAMW, [LINEAR], 5_900_288),
        (Optimizer.GALORE_ADAMW, [LINEAR._replace(alike=3)], 7_211_008),
        (Optimizer.GALORE_ADAMW, [Trainable((4000, 512), 2, 1), LINEAR], 14_092_288),
        (Optimizer.GALORE_ADAMW, [LINEAR._replace(alike=3, width=4)], 6_359_040),
        (Optimizer.GALORE_ADAMW, [LINEAR._replace(width=4)], 5_767_168),
        (Optimizer.APOLLO_ADAMW, [LINEAR], 2_886_144),
        (Optimizer.APOLLO_ADAMW, [LINEAR._replace(alike=3)], 3_934_720),
        (Optimizer.APOLLO_ADAMW, [LINEAR._replace(alike=3, width=4)], 5_771_776),
    ],
)
def test_a_step_that_updates_the_projections_matches_the_trace(optim, tensors, traced):
    scalars = 9 * 512 if optim is Optimizer.APOLLO_ADAMW else 0  # the norms that APOLLO compares
    assert step_transient(tensors, optim, None) == pytest.approx(traced, rel=0, abs=scalars)


def test_unmodelled_optimizers_are_refused_by_name():
    with pytest.raises(ValueError, match="'lomo' is not modelled yet"):
        BY_NAME["optim"].read("lomo")


@pytest.mark.parametrize("optim", [Optimizer.GALORE_ADAMW, Optimizer.APOLLO_ADAMW])
def test_a_full_size_update_lives_until_the_next_tensor_replaces_it(optim):
    # by hand, from the loop of galore-torch 1.0, adamw.py: a denominator and an update; from the second tensor on also
    # the previous tensor's update, which the loop variable still references
    size = 4000 * 512 * 2
    assert step_transient([Trainable((4000, 512), 2, 1)], optim, None) == 2 * size
    assert step_transient([Trainable((4000, 512), 2, 2)], optim, None) == 3 * size
