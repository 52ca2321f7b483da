"""Which module is on which GPU under ``device_map="auto"``.

The map is that of ``estimator.parallel.placement``, which considers only weights. One process runs all GPUs, one at
a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from estimator.families.model_tree import (
    ModuleNode,
    layer_class,
    layer_kind,
    layer_modules,
    module_tree,
    outer_modules,
    tied_head,
    tower_layers,
)
from estimator.families.modules import Module
from estimator.parallel.placement import (
    CPU,
    DISK,
    HEAD,
    Device,
    Packing,
    from_pretrained_device_map,
    needed_bytes,
    weight_sizes,
)
from estimator.resident.overhead import context_bytes
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.precision import Precision
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Gpu, Model

FIRST = 0
"""The GPU that Trainer puts a batch on, and that accelerate returns the outputs to."""
ROTARY = "rotary_emb"
UNLIMITED = 2**50
"""Bytes, more than any card has, so that only balancing determines the map."""

Modules = tuple[tuple[Module, int], ...]
"""Modules with weights, and their multiplicity."""


class ModuleDevices(NamedTuple):
    """The GPU of every module of a model, by number."""

    layers: tuple[int, ...]
    """The GPU of each decoder layer."""
    outside: tuple[tuple[str, int], ...]
    """The GPU of each module outside the layers, by the last part of its name, such as ``embed_tokens``."""
    gpus: int
    """Number of GPUs; some may hold nothing."""

    def of(self, name: str) -> int:
        """The GPU of a module outside the layers; the first GPU if there is no such module."""
        return dict(self.outside).get(name, FIRST)

    @property
    def used(self) -> tuple[int, ...]:
        """The GPUs that hold or do anything, in order."""
        return tuple(sorted({FIRST, *self.layers, *(gpu for _, gpu in self.outside)}))

    def layers_on(self, gpu: int) -> tuple[int, ...]:
        """Indices of the layers that one GPU holds."""
        return tuple(index for index, seat in enumerate(self.layers) if seat == gpu)

    def outside_on(self, gpu: int) -> tuple[str, ...]:
        """Names of the modules outside the layers that one GPU holds."""
        return tuple(name for name, seat in self.outside if seat == gpu)


def module_devices(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> ModuleDevices:
    """The GPU of every module (a number, from 0), as ``from_pretrained(device_map="auto")`` chooses on idle cards.

    If the weights do not fit on the cards, this is the map for larger cards: see ``why_left_on_the_cpu``.

    Source: transformers 5.23, integrations/accelerate.py, ``get_balanced_memory``; accelerate 1.15, utils/modeling.py,
    ``get_max_memory`` (free: the card's memory less its context).

    >>> from estimator.families.modules import TINY_LLAMA
    >>> from estimator.values.strategies import Strategy
    >>> module_devices(TINY_LLAMA, None, TrainingSetup(strategy=Strategy.DEVICE_MAP, num_gpus=2)).layers
    (0, 0)
    """
    question = model, setup.mesh.num_gpus, setup.precision.dtype.value, _packing(setup.adapters)
    found = None
    if gpu is not None and _free(gpu) < _needed_bytes(*question):
        found = _devices(*question, _free(gpu))
    found = found or _devices(*question, UNLIMITED)
    assert found is not None
    return found


def why_left_on_the_cpu(model: Model, gpu: Gpu | None, setup: TrainingSetup) -> str | None:
    """Why the weights alone are too large for the cards, in one sentence; None if they fit.

    What does not fit goes to the CPU or disk. accelerate then keeps the parameters on the meta device and loads their
    values only for each forward call, so no optimizer can update them.

    Source: accelerate 1.15, hooks.py, ``AlignDevicesHook.init_hook`` and ``post_forward``.
    """
    question = model, setup.mesh.num_gpus, setup.precision.dtype.value, _packing(setup.adapters)
    if gpu is None or _free(gpu) >= _needed_bytes(*question):
        return None
    if _devices(*question, _free(gpu)) is not None:
        return None
    return _too_large(setup.mesh.num_gpus, gpu)


def _too_large(gpus: int, gpu: Gpu) -> str:
    return (
        f"device_map leaves part of the model on the CPU, as the weights are too large for {gpus} × "
        f"{gpu.name}, and weights that accelerate offloads cannot be trained; raise num_gpus, take a larger GPU, or "
        "take method qlora."
    )


class Unit(NamedTuple):
    """A layer, or a module outside the layers, on its GPU."""

    device: int
    name: str
    """Such as ``embed_tokens`` or ``visual.merger``; empty: a layer."""
    layer: int = 0
    """Index of a layer."""
    in_tower: bool = False
    """Whether a layer is one of the vision tower."""


class WithTower(NamedTuple):
    """A model with its vision tower over GPUs, before any step."""

    units: tuple[Unit, ...]
    """In the order of definition."""
    weights: tuple[int, ...]
    """Bytes of weights and buffers on each GPU, as transformers counts them (4-bit: without scales)."""


@lru_cache(maxsize=64)
def placed_with_tower(
    model: Model, gpu: Gpu | None, adapters: Adapters, precision: Precision, gpus: int
) -> WithTower | str:
    """Where ``from_pretrained(device_map="auto")`` puts a model with its vision tower, on idle cards; a sentence if the
    weights are too large for them. A layer that is split is where its first part is.

    Raises ``InputError`` for a tower whose tree is not known.

    Source: as ``module_devices``; ``module_tree``.
    """
    tree, packing = module_tree(model, with_tower=True), _packing(adapters)
    limits: dict[Device, int] = dict.fromkeys(range(gpus), UNLIMITED if gpu is None else _free(gpu))
    placed = from_pretrained_device_map(
        model, limits, dtype=precision.dtype.value, packing=packing, with_tower=True
    )
    if {CPU, DISK} & set(placed.values()):
        assert gpu is not None
        return _too_large(gpus, gpu)
    sizes = weight_sizes(tree, dtype=precision.dtype.value, packing=packing)
    weights = [
        sum(sizes[name] for name, device in placed.items() if device == seat) // 8
        for seat in range(gpus)
    ]
    return WithTower(tuple(_units(model, tree, placed)), tuple(weights))


def _units(model: Model, tree: ModuleNode, placed: dict[str, Device]) -> Iterator[Unit]:
    assert model.vision is not None
    of_tower = tower_layers(model.vision)
    named: list[str] = []

    def look(node: ModuleNode, above: str) -> Iterator[Unit]:
        if above.endswith(of_tower):
            index = int(node.name.rpartition(".")[2])
            yield Unit(_device(node.name, placed), "", index, in_tower=True)
        elif above.endswith("layers"):
            yield Unit(_device(node.name, placed), "", int(node.name.rpartition(".")[2]))
        elif node.children:
            for child in node.children:
                yield from look(child, node.name)
        else:
            name = _short(node.name)
            if name not in named:
                named.append(name)
                yield Unit(_device(node.name, placed), name)

    yield from look(tree, "")


def _short(name: str) -> str:
    """A module's name without the model's; of the text the last part, of the tower two.

    >>> _short("model.language_model.embed_tokens"), _short("model.visual.merger.mlp.0"), _short("lm_head")
    ('embed_tokens', 'visual.merger', 'lm_head')
    """
    words = name.removeprefix("model.").split(".")
    return words[-1] if words[0] in ("language_model", "text_model") else ".".join(words[:2])


def _free(gpu: Gpu) -> int:
    return gpu.memory_bytes - context_bytes(gpu).low


def _packing(adapters: Adapters) -> Packing | None:
    if adapters.has_4bit_base:
        return Packing.FOUR_BIT
    return Packing.EIGHT_BIT if adapters.has_8bit_base else None


@lru_cache(maxsize=1024)
def _devices(
    model: Model, gpus: int, dtype: str, packing: Packing | None, free: int
) -> ModuleDevices | None:
    """None if anything is left on the CPU or disk."""
    limits: dict[Device, int] = dict.fromkeys(range(gpus), free)
    try:
        placed = from_pretrained_device_map(model, limits, dtype=dtype, packing=packing)
    except ValueError:  # transformers refuses packed modules on the CPU
        return None
    if {CPU, DISK} & set(placed.values()):
        return None
    layers, outside = _sorted_out(model)
    return ModuleDevices(
        tuple(_device(name, placed) for name in layers),
        tuple((name.rpartition(".")[2], _device(name, placed)) for name in outside),
        gpus,
    )


@lru_cache(maxsize=256)
def _needed_bytes(model: Model, gpus: int, dtype: str, packing: Packing | None) -> int:
    return needed_bytes(model, gpus, dtype=dtype, packing=packing)


@lru_cache(maxsize=64)
def _sorted_out(model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Full names of the layers, and of the modules outside them, in model order."""
    whole, layers, outside = layer_class(model), [], []

    def look(node: ModuleNode) -> None:
        if node.class_name == whole:
            layers.append(node.name)
        elif node.children:
            for child in node.children:
                look(child)
        else:
            outside.append(node.name)

    look(module_tree(model))
    return tuple(layers), tuple(outside)


def _device(name: str, placed: dict[str, Device]) -> int:
    """The device of a module: from its own entry, its nearest ancestor's, or that of its first part."""
    above = name
    while above not in placed and above:
        above = above.rpartition(".")[0]
    found = placed.get(above)
    if found is None:
        found = next(gpu for key, gpu in placed.items() if key.startswith(f"{name}."))
    assert isinstance(found, int)
    return found


# --- what one GPU holds ---------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def modules_on(model: Model, at: ModuleDevices, gpu: int) -> Modules:
    """The modules with weights on one GPU, and their multiplicity (a count).

    Source: derived, from ``outer_modules`` and ``layer_modules``.
    """
    return tuple(_modules_on(model, at, gpu))


def _modules_on(model: Model, at: ModuleDevices, gpu: int) -> Iterator[tuple[Module, int]]:
    yield from ((module, 1) for module in outer_modules(model) if at.of(module.name) == gpu)
    own = at.layers_on(gpu)
    kinds = [layer_kind(model, index) for index in own]
    for kind, count in Counter(kinds).items():
        lowest = own[kinds.index(kind)]
        yield from ((module, count) for module in layer_modules(model, lowest))


def heads_on(model: Model, at: ModuleDevices, gpu: int) -> Modules:
    """A tied head on one GPU, whose adapter or copy is there too, and its count, 1.

    Source: derived, from ``tied_head``.
    """
    return tuple((head, 1) for head in tied_head(model) if at.of(HEAD) == gpu)
