"""accelerate's hooks under a device map: they move a module's inputs to its GPU, and the outputs back.

The hook runs before the module's own forward, so outside a checkpoint: what it copies is an input of the checkpoint and
stays until backward. It copies every tensor argument again for every layer, so the mask and the rotary tables are
copied once for each layer on another GPU than theirs.

Source: accelerate 1.15, hooks.py, ``AlignDevicesHook.pre_forward`` and ``post_forward``,
``attach_align_device_hook_on_blocks``; transformers 5.23, modeling_layers.py, ``GradientCheckpointingLayer``.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.families.block import Block, ModuleHook
from estimator.families.modules import DROPOUT
from estimator.families.rotary import Tables
from estimator.parallel.hooks import Hooks
from estimator.parallel.module_devices import FIRST, ModuleDevices
from estimator.tape.tape import ACTIVATIONS, LOGITS, TEMPORARIES, Tape, Tensor

DROPOUTS = ("drop", "emb_dropout", "embed_dropout")
"""Names of the dropout after the embedding. Phi defines it after the layers, so it is on the last GPU."""


class DeviceMapHooks(Hooks):
    """The hooks of a model spread over several GPUs."""

    brings_inputs = True

    def __init__(self, tape: Tape, devices: ModuleDevices) -> None:
        self.tape = tape
        self.devices = devices

    def to(self, x: Tensor, gpu: int, component: int = TEMPORARIES) -> Tensor:
        """``x.to(gpu)``: the tensor itself, or a copy whose backward copies the gradient. Continues on that GPU."""
        tape = self.tape
        tape.device = gpu
        if x.storage is None or x.storage.device == gpu:
            return x
        source, elements, width = x.storage.device, x.elements, x.width

        def backward(t: Tape, g: list[Tensor | None]) -> list[Tensor | None]:
            t.device = source
            return [t.new(elements, width)]

        tape.operation = "copy from another GPU"
        node = tape.begin("copy to another GPU, backward", [x], backward)
        return tape.finish(node, tape.new(elements, width, component))

    def enter(self, module: str, x: Tensor) -> Tensor:
        """Calls a module outside the layers: returns its input on its GPU."""
        if module == DROPOUT:
            for name, _ in self.devices.outside:
                if name in DROPOUTS:
                    x = self.to(x, self.devices.of(name))
            return x
        return self.to(x, self.devices.of(module))

    def layer(self, index: int, block: Block) -> ModuleHook:
        """Calls a layer: its input on its GPU, with its own copies of inputs that all layers share."""
        return MovedLayer(self, self.devices.layers[index], block)

    def work_at(self, module: str | None) -> None:
        """Continues on a module's GPU, or on the first."""
        self.tape.device = FIRST if module is None else self.devices.of(module)

    def returned(self, loss: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The model's own hook copies its outputs, the loss and all logits, to the batch's GPU."""
        loss = self.to(loss, FIRST)
        return loss, None if logits is None else self.to(logits, FIRST, LOGITS)


class MovedLayer(NamedTuple):
    """A layer on its GPU."""

    hooks: DeviceMapHooks
    gpu: int
    block: Block

    def enter(self, x: Tensor) -> Tensor:
        """Copies its inputs to its GPU."""
        hidden = self.hooks.to(x, self.gpu)
        block = self.block
        block.mask = self._shared(block.mask)
        block.alibi = self._shared(block.alibi)
        block.positions = self._shared(block.positions)
        if block.rotary_tables is not None:
            cosine, sine = block.rotary_tables
            copied = self._shared(cosine)
            assert copied is not None
            other = copied if sine is cosine else self._shared(sine)
            assert other is not None
            block.rotary_tables = Tables(copied, other)
        return hidden

    def leave(self, x: Tensor) -> Tensor:
        """Its output stays where it is."""
        return x

    def _shared(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else self.hooks.to(x, self.gpu, ACTIVATIONS)
