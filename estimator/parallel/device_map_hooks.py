"""What accelerate's hooks do around the modules of a model on several GPUs: bring the inputs, return the outputs.

The hook of a module of the map runs before the module's own forward, and so outside a checkpoint: what it brings is an
input of the checkpoint and stays until backward. It brings every tensor among the arguments, anew for every layer:
the mask and the rotary tables are copied once for each layer that is not where they were made.

Source: accelerate 1.15, hooks.py, ``AlignDevicesHook.pre_forward`` and ``post_forward``,
``attach_align_device_hook_on_blocks``; transformers 5.23, modeling_layers.py, ``GradientCheckpointingLayer``.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.families.block import DROPOUT, Block, ModuleHook
from estimator.families.rotary import Tables
from estimator.parallel.hooks import Hooks
from estimator.parallel.module_devices import FIRST, ModuleDevices
from estimator.tape.tape import ACTIVATIONS, LOGITS, TEMPORARIES, Tape, Tensor

DROPOUTS = ("drop", "emb_dropout", "embed_dropout")
"""What a family calls the dropout behind its embedding; Phi defines it after the layers: it lies on the last GPU."""


class DeviceMapHooks(Hooks):
    """The GPUs of a model that lies on several."""

    brings_inputs = True

    def __init__(self, tape: Tape, devices: ModuleDevices) -> None:
        self.tape = tape
        self.devices = devices

    def to(self, x: Tensor, gpu: int, component: int = TEMPORARIES) -> Tensor:
        """``x.to(gpu)``: the tensor itself, or a copy; backward copies the gradient. That GPU works from now on."""
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
        """A module outside the layers is called: its input, where it lies."""
        if module == DROPOUT:
            for name, _ in self.devices.outside:
                if name in DROPOUTS:
                    x = self.to(x, self.devices.of(name))
            return x
        return self.to(x, self.devices.of(module))

    def layer(self, index: int, block: Block) -> ModuleHook:
        """A layer is called: its input where it lies, and its own copies of what all layers share."""
        return MovedLayer(self, self.devices.layers[index], block)

    def work_at(self, module: str | None) -> None:
        """The GPU of a module works from now on, or the first."""
        self.tape.device = FIRST if module is None else self.devices.of(module)

    def returned(self, loss: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The model's own hook brings its outputs to where the batch came from: the loss, and all logits."""
        loss = self.to(loss, FIRST)
        return loss, None if logits is None else self.to(logits, FIRST, LOGITS)


class MovedLayer(NamedTuple):
    """A layer on its GPU."""

    hooks: DeviceMapHooks
    gpu: int
    block: Block

    def enter(self, x: Tensor) -> Tensor:
        """Its inputs are brought."""
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
