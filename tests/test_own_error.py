"""A pasted out-of-memory message: its figures, its card, and the request of the setup that it is."""

from __future__ import annotations

import pytest

from estimator import TrainingSetup, catalog, error_in, estimate, explained_by, said_of
from estimator.step.asked_for import segment_bytes

GIB = 2**30
PLAYED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 23.53 GiB "
    "of which 1.46 GiB is free. Of the allocated memory 21.57 GiB is allocated by PyTorch, and 25.88 MiB is reserved "
    "by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
)
"""Of torch 2.13's allocator: Trainer, Llama 3.2 1B's sizes in bfloat16, 4 x 2,048 tokens, on a card of 23.5 GiB."""
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 144.00 MiB (GPU 0; 31.75 GiB total capacity; 30.26 GiB "
    "already allocated; 68.69 MiB free; 30.33 GiB reserved in total by PyTorch) If reserved memory is >> allocated"
)
"""https://github.com/liucongg/ChatGLM-Finetuning/issues/23."""
SHARED = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 23.64 "
    "GiB of which 1.00 GiB is free. Process 7 has 12.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 10.64 GiB memory in use. Of the allocated memory 7.50 GiB is allocated by PyTorch, and 2.50 GiB is reserved "
    "by PyTorch but unallocated."
)
"""Torch 2.1's spelling; sizes by hand."""


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def setup_of(**keys):
    model, card = catalog.model("meta-llama/Llama-3.2-1B"), catalog.gpu("RTX 4090")
    return estimate(model, card, TrainingSetup(**keys))


def said(message, **keys):
    return [*said_of(error_in(message), setup_of(**keys), gib)]


@pytest.mark.parametrize(
    ("message", "capacity", "allocated", "unused", "others"),
    [
        (PLAYED, 23.53, 21.57, 25.88 / 1024, 0),
        (OLD, 31.75, 30.26, 30.33 - 30.26, 0),
        (SHARED, 23.64, 7.5, 2.5, 23.64 - 1 - 10.64),
    ],
    ids=["torch 2.13", "before 2.1", "2.1, with another process"],
)
def test_the_figures_of_a_message_are_read(message, capacity, allocated, unused, others):
    error = error_in(f"Epoch 1\nTraceback\n{message}\nand so on")
    found = (error.capacity, error.allocated, error.unused, error.others)
    assert found == pytest.approx(
        [part * GIB for part in (capacity, allocated, unused, others)], abs=2
    )


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode  : -9) local_rank: 0",
            "The process was ended, most often because the machine's own memory",
        ),
        (
            "Loading checkpoint shards:  62%|██\nKilled\n",
            "The process was ended, most often because the machine's own memory",
        ),
        (
            "exits with return code = -9",
            "The process was ended, most often because the machine's own memory",
        ),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "The card had no memory left for what lies outside PyTorch's allocator",
        ),
        (
            "ncclUnhandledCudaError: Cuda failure 2 'out of memory'",
            "The card had no memory left for what lies outside PyTorch's allocator",
        ),
    ],
    ids=["torchrun", "the shell", "DeepSpeed", "cuBLAS", "NCCL"],
)
def test_memory_that_pytorch_did_not_ask_for_is_told_apart(log, says):
    """Lines of logs in public issues: meta-llama/llama#856, LMFlow#279, Qwen3-VL#2053 and others."""
    (sentence,) = said(log, max_length=1024)
    assert sentence.startswith(says)
    of = setup_of(max_length=1024)
    assert (
        gib(of.host_bytes if "machine" in says else of.gpu.memory_bytes - of.need_high_bytes)
        in sentence
    )
    assert explained_by(error_in(log), of) == []


def test_a_damaged_number_is_no_figure():
    assert error_in("CUDA out of memory. Tried to allocate 1.2.3 GiB.") is None
    assert error_in(PLAYED.replace("23.53", "23..53")).capacity is None


def test_a_text_without_a_message_has_no_error():
    assert error_in("it runs out of memory, I think") is None


def test_the_request_at_which_the_setup_stops_is_recognised():
    """It died in the float32 copy of the logits: 4 x 2,048 x 128,256 x 4 bytes are 3.91 GiB."""
    assert round(4 * 2048 * 128_256 * 4 / GIB, 2) == 3.91
    assert said(PLAYED, per_device_train_batch_size=4, max_length=2048) == [
        "PyTorch held 21.57 GiB of tensors and could not get another 3.91 GiB.",
        "This setup stops at the same request.",
    ]


def test_a_tensor_of_another_setup_is_not_found_in_this_one():
    _, compared, fits = said(PLAYED, per_device_train_batch_size=2, max_length=2048)
    assert compared.startswith("No tensor of this setup has that size")
    assert fits == "With these settings the run fits."


@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        (
            {"loss": "chunked_trl", "per_device_train_batch_size": 4, "max_length": 2048},
            [{"loss": "standard"}],
        ),
        (
            {"per_device_train_batch_size": 2, "max_length": 2048},
            [{"per_device_train_batch_size": 4}, {"max_length": 4096}],
        ),
        ({"per_device_train_batch_size": 4, "max_length": 2048}, []),
    ],
    ids=["TRL's loss instead of Trainer's", "half the rows", "the run itself"],
)
def test_a_change_that_would_explain_the_message_is_found(keys, changes):
    """The message is of Trainer's run with 4 x 2,048 tokens."""
    assert explained_by(error_in(PLAYED), setup_of(**keys)) == changes


def test_the_length_of_the_rows_is_read_from_the_size_of_their_logits():
    """Played as the first message, with 4 x 1,900 tokens; 3.63 GiB say it to within two tokens."""
    message = PLAYED.replace("3.91", "3.63").replace("21.57", "20.23").replace("1.46", "2.66")
    keys = {"per_device_train_batch_size": 4, "max_length": 1024}
    (change,) = explained_by(error_in(message), setup_of(**keys))
    assert change["max_length"] == pytest.approx(1900, abs=2)


def test_a_tensor_of_that_size_is_named_where_the_setup_stops_elsewhere():
    """Of twice the rows the 16-bit logits are as large; the run stops at the 32-bit ones."""
    (compared,) = said(PLAYED, per_device_train_batch_size=8, max_length=2048)[1:]
    assert compared.startswith("This setup requests as much in the first step's forward (lm_head)")


def test_other_processes_and_pieces_too_small_are_said():
    others, pieces = said(SHARED, max_length=2048)[1:3]
    assert others == "Other processes held 12.00 GiB of the card; nvidia-smi lists them."
    assert pieces.startswith("It had 2.50 GiB reserved and unused, in pieces smaller than that")


def test_another_card_is_asked_for():
    assert said(OLD)[-1] == "That card has 31.75 GiB: choose it to see what this setup needs there."


@pytest.mark.parametrize(
    ("text", "card"),
    [("on my 2x3090", "GeForce RTX 3090"), ("a single RTX 4090 (24GB)", "GeForce RTX 4090")],
)
def test_of_equal_cards_the_one_that_the_text_names_is_first(text: str, card: str):
    assert catalog.cards_with(round(23.6 * GIB), text)[0].name == card


@pytest.mark.parametrize(
    ("size", "segment"), [(2**20, 2), (2**20 + 512, 20), (10 * 2**20, 10), (11 * 2**20 + 512, 12)]
)
def test_a_message_names_the_segment_of_a_tensor(size: int, segment: int):
    """Bytes to MiB: torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``get_allocation_size``."""
    assert segment_bytes(size) == segment * 2**20
