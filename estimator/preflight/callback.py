"""Compares measured with estimated memory after the second step of a run."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from estimator.contract.units import gib
from estimator.preflight.check import Preflight, check
from estimator.proof import rows

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from transformers import TrainerCallback as Callback
    except ImportError:
        Callback = object

MEASURED_STEP = 2
"""The first step that has optimizer states from its beginning: the estimate's peak is of such a step."""
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "liger_kernel")


class PeakReading(NamedTuple):
    """Peaks since the last reset, in bytes, on one GPU."""

    allocated: int
    reserved: int
    device: int
    """All processes' memory on the card, now."""


class Counter(Protocol):
    """Reads a GPU's memory counters."""

    name: str

    def reset(self) -> None:
        """Reset the peaks."""

    def read(self) -> PeakReading:
        """The peaks since the last reset."""


class CudaCounter:
    """torch's counters of the current device.

    Source: torch 2.13, cuda/memory.py, max_memory_allocated, max_memory_reserved, mem_get_info.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self.name = str(torch.cuda.get_device_name())

    def reset(self) -> None:
        """Begin a new peak."""
        self._cuda.synchronize()
        self._cuda.reset_peak_memory_stats()

    def read(self) -> PeakReading:
        """The peaks since then."""
        self._cuda.synchronize()
        free, total = self._cuda.mem_get_info()
        return PeakReading(
            self._cuda.max_memory_allocated(), self._cuda.max_memory_reserved(), total - free
        )


class MemoryCheck(Callback):
    """A callback that prints the measured and estimated memory of step two, and can append them to a file.

    It resets torch's peak counters after the first step. With ``rows_file`` it appends a row that
    ``data/measurements.csv`` takes; share it and the estimate learns from it.

    >>> from estimator.preflight import MemoryCheck
    >>> # trainer.add_callback(MemoryCheck(trainer, rows_file="measured.csv"))
    """

    def __init__(
        self,
        trainer: Any,
        *,
        gpu: object = None,
        max_length: int | None = None,
        rows_file: str | Path | None = None,
        counter: Counter | None = None,
    ) -> None:
        self.before: Preflight = check(trainer, gpu=gpu, max_length=max_length, show=False)
        self.sentence = ""
        """The sentence printed after step two."""
        self._file = None if rows_file is None else Path(rows_file)
        self._counter = counter if counter is not None else _cuda()
        self._model = trainer.model
        self._began = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Resets the counters after the first step and reads them after the second."""
        if self._counter is None:
            if state.global_step == MEASURED_STEP:
                self._say("Not measured: torch sees no CUDA device.")
        elif state.global_step == MEASURED_STEP - 1:
            self._counter.reset()
            self._began = time.perf_counter()
        elif state.global_step == MEASURED_STEP and self._began:
            self._compare(self._counter.read(), time.perf_counter() - self._began)

    def _compare(self, reading: PeakReading, seconds: float) -> None:
        answer = self.before.estimate
        measured = (
            f"Measured in step {MEASURED_STEP}: {gib(reading.allocated)} GiB allocated at the peak"
        )
        if answer is None:
            self._say(f"{measured}. {self.before.sentence}")
        else:
            error = 100 * (answer.peak.bytes / reading.allocated - 1)
            self._say(f"{measured}, estimated {gib(answer.peak.bytes)} GiB ({error:+.1f} %).")
        if self._file is not None and answer is not None:
            rows.append(self._file, self._row(reading, seconds))

    def _row(self, reading: PeakReading, seconds: float) -> rows.Row:
        keys, counter = self.before.keys, self._counter
        assert counter is not None
        return {
            "id": _id(keys),
            "setup": json.dumps(keys),
            "gpu": counter.name,
            "outcome": rows.MEASURED,
            "measured": f"step {MEASURED_STEP} of a run, its counters reset after step {MEASURED_STEP - 1}",
            "allocated_peak_bytes": reading.allocated,
            "reserved_peak_bytes": reading.reserved,
            "device_peak_bytes": reading.device,
            **_counted(self._model),
            "step_seconds": round(seconds, 4),
            "versions": "; ".join(
                f"{name} {found}" for name in PACKAGES if (found := _version(name))
            ),
            "source": "estimator/preflight/callback.py",
            "retrieved": datetime.now(UTC).date().isoformat(),
        }

    def _say(self, sentence: str) -> None:
        self.sentence = sentence
        print(sentence)  # noqa: T201 — it is what the callback is for


def _cuda() -> Counter | None:
    torch = sys.modules.get("torch")
    return CudaCounter(torch) if torch is not None and torch.cuda.is_available() else None


def _id(keys: Any) -> str:
    model = keys["model"]
    name = model.split("/")[-1] if isinstance(model, str) else model.get("model_type", "model")
    rows_and_tokens = f"{keys.get('per_device_train_batch_size', 1)}x{keys['max_length']}"
    return f"preflight-{name}-{keys['method']}-{rows_and_tokens}"


def _counted(model: Any) -> dict[str, int]:
    """Elements of the model that ran; packed weights know how many they hold only by their base's shape."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    count = getattr(model, "num_parameters", None)
    return {"trainable_parameters": trained} | ({"total_parameters": count()} if count else {})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
