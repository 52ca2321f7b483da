"""Device maps, as accelerate and transformers infer them, computed without loading the model.

Two libraries split a model that is too large for one device. accelerate's ``infer_auto_device_map`` fills devices in
order. transformers 5, whose ``from_pretrained(device_map="auto")`` once called it, has its own copy, which counts bytes
and balances devices slightly differently. Both consider only weights and buffers: they reserve nothing for activations,
gradients or optimizer states.

Sizes are whole bits: accelerate counts a mask's element as an eighth of a byte, a packed weight as half of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from estimator.families.model_tree import (
    ModuleNode,
    module_tree,
    whole_classes,
)
from estimator.families.modules import Width
from estimator.families.registry import family_of
from estimator.values.refusals import NOT_MODELLED, InputError, Line, Refusal, show
from estimator.values.specs import Model

Device = int | str
"""A GPU index, ``cpu`` or ``disk``."""
CPU, DISK = "cpu", "disk"
HEAD = "lm_head"
EMBEDDING = "embed_tokens"

BITS = MappingProxyType({"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "int4": 4})
"""Bits per weight; accelerate's ``CustomDtype.INT4`` counts half a byte."""

Widths = Mapping[Width, int]
"""Bits per element, by kind of tensor."""

ACCELERATE: Mapping[str, Widths] = MappingProxyType(
    {
        dtype: {
            **dict.fromkeys((Width.WEIGHT, Width.MATRIX, Width.FLOAT32, Width.COMPLEX64), bits),
            Width.INT64: 64,
            Width.BOOL: 1,
        }
        for dtype, bits in BITS.items()
    }
)
"""accelerate 1.15, utils/modeling.py, ``compute_module_sizes(dtype=…)``: buffers of fractions shrink with the
weights, and ``dtype_byte_size`` counts a bool as one bit."""


class Balance(StrEnum):
    """The named strategies that ``device_map`` accepts instead of a map."""

    AUTO = "auto"
    BALANCED = "balanced"
    BALANCED_LOW_0 = "balanced_low_0"
    SEQUENTIAL = "sequential"


class Packing(StrEnum):
    """bitsandbytes' two ways to store the weight of a linear layer."""

    FOUR_BIT = "load_in_4bit"
    EIGHT_BIT = "load_in_8bit"


def infer_auto_device_map(
    model: Model,
    max_memory: Mapping[Device, int],
    *,
    dtype: str = "bfloat16",
    no_split_module_classes: Collection[str] | None = None,
    balance: Balance = Balance.SEQUENTIAL,
    with_tower: bool = False,
) -> dict[str, Device]:
    """accelerate's device map of a model with unpacked, tied weights: full module name → device.

    ``max_memory``: bytes per device. ``no_split_module_classes``: classes of modules that stay whole; None: the decoder
    layer, and the tower's, transformers' ``_no_split_modules``. ``with_tower``: the class that
    ``AutoModelForImageTextToText`` loads. ``balance``: what ``load_checkpoint_and_dispatch`` first does with
    ``get_balanced_memory``; sequential: use ``max_memory`` unchanged.

        fits on a device     used + module + tied partner ≤ max_memory − reserve
        reserve              the largest layer still to come, on the first GPU and on the CPU; 0 elsewhere

    A module that does not fit is split into its children, or, if it must stay whole, begins the next device; earlier
    devices are not revisited. The disk comes last and takes whatever remains.

    Leaves out: ``fallback_allocation`` and ``special_dtypes``; devices other than GPUs, CPU and disk.
    Error: none; equal to accelerate's own dict in tests/verify, for every family.
    Source: accelerate 1.15 utils/modeling.py, ``infer_auto_device_map`` and ``get_balanced_memory``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> infer_auto_device_map(TINY_LLAMA, {0: 2600})  # embedding 160, a layer 1,184, reserve for another
    {'model.embed_tokens': 0, 'model.layers.0': 0, 'model.layers.1': 'disk', 'model.norm': 'disk',
     'model.rotary_emb': 'disk', 'lm_head': 'disk'}
    """
    tree = module_tree(model, with_tower=with_tower)
    sizes = sizes_in_bits(tree, ACCELERATE[dtype])
    whole = whole_classes(model, with_tower=with_tower)
    if no_split_module_classes is not None:
        whole = frozenset(no_split_module_classes)
    budgets = _in_bits(max_memory)
    if balance is not Balance.SEQUENTIAL:
        firsts = _firsts(tree, sizes)
        if unknown := sorted(whole - {*firsts}):
            raise InputError(
                f"no_split_module_classes names {show(unknown[0])}, which has no child modules in {model.model_type}; "
                f"use {', '.join(firsts)}."
            )
        cushion = max([_mean_leaf(tree, sizes), *(firsts[name] for name in whole)])
        budgets = _balanced(budgets, sizes[""], cushion, balance)
    return _place(tree, sizes, budgets, whole, splits_what_would_fit_alone=False)


SPLIT_EXPERTS = Refusal(
    "transformers splits Llama 4's stacked experts before quantising them, which is not modelled yet; leave "
    "load_in_4bit and load_in_8bit out.",
    NOT_MODELLED,
)
PACKED_ON_THE_HOST = Refusal(
    "with {packing} transformers refuses modules on the CPU or the disk; give the GPUs more max_memory.",
    Line(
        "transformers",
        "quantizers/quantizer_bnb_4bit.py",
        75,
        "Some modules are dispatched on the CPU or the disk.",
    ),
)


def from_pretrained_device_map(
    model: Model,
    max_memory: Mapping[Device, int],
    *,
    dtype: str = "bfloat16",
    balance: Balance = Balance.AUTO,
    packing: Packing | None = None,
    with_tower: bool = False,
) -> dict[str, Device]:
    """Where ``from_pretrained(device_map="auto", max_memory=…)`` puts each module: full module name → device.

    As ``infer_auto_device_map``, with decoder layers whole, and:

        every GPU but the last     at most model / GPUs + 1.25 · max(largest layer, largest bare module)
        bitsandbytes               0.9 · max_memory; a packed weight counts ½ or 1 byte, its scales nothing

    Raises ``ValueError`` if transformers refuses the map, because of packed 4-bit modules on the CPU or disk, and for a
    packed Llama 4.

    Leaves out: ``max_memory=None``, which uses 0.9 of the machine's free memory (for the CPU and a single GPU).
    Error: none; equal to transformers' own dict in tests/verify, for every family.
    Source: transformers 5.23 integrations/accelerate.py, ``_get_device_map``, ``get_balanced_memory``,
    ``infer_auto_device_map``; quantizers/base.py, ``get_keys_to_not_convert``; quantizers/quantizer_bnb_4bit.py,
    ``adjust_max_memory`` and ``validate_environment``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> three = dict.fromkeys(range(3), 9999)  # GPUs 0 and 1: 2,720 / 3 + 1.25 · 1,184 = 2,386 bytes
    >>> from_pretrained_device_map(TINY_LLAMA, three)
    {'model.embed_tokens': 0, 'model.layers': 1, 'model.norm': 1, 'model.rotary_emb': 2, 'lm_head': 2}
    """
    if packing and family_of(model).splits_packed_experts:
        raise SPLIT_EXPERTS()
    tree, sizes, whole, cushion = _weighed(model, dtype, packing, with_tower)
    budgets = _in_bits(max_memory)
    if balance is not Balance.SEQUENTIAL:
        budgets = _balanced(budgets, sizes[""], cushion, balance)
    if packing:
        # floats, as in `adjust_max_memory`; a fraction of a bit can hold nothing
        budgets = {device: int(bits / 8 * 0.90 * 8) for device, bits in budgets.items()}
    placed = _place(tree, sizes, budgets, whole, splits_what_would_fit_alone=True)
    devices = set(placed.values())
    if packing and devices != {CPU} and devices & {CPU, DISK}:
        raise PACKED_ON_THE_HOST(packing=packing)
    return placed


def needed_bytes(
    model: Model,
    gpus: int,
    *,
    dtype: str = "bfloat16",
    packing: Packing | None = None,
    with_tower: bool = False,
) -> int:
    """Free bytes per GPU from which ``from_pretrained_device_map`` no longer depends on their size.

        max(the limit of every GPU but the last,  what is left for the last)

    Under bitsandbytes, which uses 0.9 of the free memory, the latter is divided by 0.9.

    Source: derived; nothing is reserved on the last GPU, so it takes what is left as soon as that fits.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> at_least = needed_bytes(TINY_LLAMA, 3)  # 2,720 / 3 + 1.25 · 1,184, as in the doctest above
    >>> from_pretrained_device_map(TINY_LLAMA, dict.fromkeys(range(3), at_least))["lm_head"], at_least
    (2, 2387)
    """
    unlimited: dict[Device, int] = dict.fromkeys(range(gpus), 2**60)
    _, sizes, _, cushion = _weighed(model, dtype, packing, with_tower)
    share = _balanced(_in_bits(unlimited), sizes[""], cushion, Balance.AUTO)[0]
    placed = from_pretrained_device_map(
        model, unlimited, dtype=dtype, packing=packing, with_tower=with_tower
    )
    last = sum(sizes[name] for name, device in placed.items() if device == gpus - 1)
    return max(share, last * 10 // 9 if packing else last) // 8 + 1


# --- sizes ----------------------------------------------------------------------------------------


class Weighed(NamedTuple):
    """A model's tree with the sizes that transformers counts; the same for all devices."""

    tree: ModuleNode
    sizes: Mapping[str, int]
    """Bits, as ``weight_sizes``."""
    whole: frozenset[str]
    """As ``whole_classes``."""
    cushion: int
    """Bits, as ``_cushion``."""


@lru_cache(maxsize=8)
def _weighed(model: Model, dtype: str, packing: Packing | None, with_tower: bool) -> Weighed:
    tree = module_tree(model, with_tower=with_tower)
    sizes = weight_sizes(tree, dtype=dtype, packing=packing)
    whole = whole_classes(model, with_tower=with_tower)
    return Weighed(tree, sizes, whole, _cushion(tree, sizes, whole))


def sizes_in_bits(
    tree: ModuleNode, widths: Widths, never_packed: str | None = None
) -> dict[str, int]:
    """Bits of each module with all its descendants, and of each part it may be split into: full name → bits.

    A tied head counts as nothing, since its weight is the embedding's.

    Source: accelerate 1.15 utils/modeling.py, ``compute_module_sizes``.

    >>> from estimator.families.modules import TINY_LLAMA
    >>> tree = module_tree(TINY_LLAMA, with_tower=False)
    >>> sizes_in_bits(tree, ACCELERATE["bfloat16"])["model.embed_tokens"] == 10 * 8 * 16
    True
    """
    sizes: dict[str, int] = {}

    def add(node: ModuleNode) -> int:
        bare = node.name == never_packed
        own = sum(
            one.elements * widths[Width.WEIGHT if bare and one.width is Width.MATRIX else one.width]
            for one in node.tensors
        )
        sizes[node.name] = own + sum(add(child) for child in node.children)
        for part in node.parts:
            if part.is_parameter:
                sizes[part.name] = sum(one.elements * widths[one.width] for one in part.tensors)
        return sizes[node.name]

    add(tree)
    return sizes


def weight_sizes(
    tree: ModuleNode, *, dtype: str = "bfloat16", packing: Packing | None = None
) -> dict[str, int]:
    """Bits of each module as transformers counts them: full name → bits. Source: as ``from_pretrained_device_map``."""
    return sizes_in_bits(tree, _widths(dtype, packing), _never_packed(tree))


def _cushion(tree: ModuleNode, sizes: Mapping[str, int], whole: Collection[str]) -> int:
    """Bits of the largest module that stays whole, or of one's own tensors, if that is more."""
    layers = (sizes[node.name] for node in tree.walk() if node.class_name in whole)
    return max(*layers, *_own_sizes(tree, sizes))


def _widths(dtype: str, packing: Packing | None) -> Widths:
    """As in ``param_element_size``: buffers keep their own dtype, and an element of a mask is a byte."""
    matrix = {None: BITS[dtype], Packing.FOUR_BIT: 4, Packing.EIGHT_BIT: 8}[packing]
    return {
        Width.WEIGHT: BITS[dtype],
        Width.MATRIX: matrix,
        Width.FLOAT32: 32,
        Width.BOOL: 8,
        Width.INT64: 64,
        Width.COMPLEX64: 64,
    }


def _never_packed(tree: ModuleNode) -> str | None:
    """The module of the last parameter, if that is a weight; bitsandbytes leaves it and the head unpacked.

    It is a norm, except in OLMo with a tied head, whose norms have no weight.
    """
    held = [(node.name, one.name) for node in tree.walk() for one in node.tensors]
    parameters = [(node, name) for node, name in held if name in {"weight", "bias"}]
    module, name = parameters[-1]
    return module if name == "weight" else None


def _own_sizes(tree: ModuleNode, sizes: Mapping[str, int]) -> Iterator[int]:
    """Bits of each module's own tensors, without its children's."""
    for node in tree.walk():
        yield sizes[node.name] - sum(sizes[child.name] for child in node.children)


def _firsts(tree: ModuleNode, sizes: Mapping[str, int]) -> dict[str, int]:
    """Bits of the first module of each class with children, starting with the model itself."""
    firsts: dict[str, int] = {}
    for node in tree.walk():
        if node.name and node.class_name and sizes[node.name]:
            firsts.setdefault(node.class_name, sizes[node.name])
    return firsts


def _mean_leaf(tree: ModuleNode, sizes: Mapping[str, int]) -> int:
    """Mean bits, in whole bytes, of modules that have tensors while none of their children do.

    Source: accelerate 1.15 utils/modeling.py, ``get_module_leaves``.
    """
    leaves = [
        sizes[node.name]
        for node in tree.walk()
        if sizes[node.name] and not any(sizes[child.name] for child in node.children)
    ]
    return sum(leaves) // (8 * len(leaves)) * 8


# --- budgets --------------------------------------------------------------------------------------


def _in_bits(max_memory: Mapping[Device, int]) -> dict[Device, int]:
    """Bits per device in the order of filling: GPUs by index, CPU, disk."""
    order: list[Device] = sorted(device for device in max_memory if isinstance(device, int))
    order += [device for device in (CPU, DISK) if device in max_memory]
    return {device: 8 * max_memory[device] for device in order}


def _balanced(
    budgets: Mapping[Device, int], total: int, cushion: int, balance: Balance
) -> dict[Device, int]:
    """Budgets with every GPU but the last limited to its share plus a margin."""
    gpus = [device for device in budgets if isinstance(device, int) and budgets[device] > 0]
    low_zero = balance is Balance.BALANCED_LOW_0 and len(gpus) > 1
    if not gpus:
        return dict(budgets)
    if low_zero and not {*range(len(gpus))} <= {*budgets}:
        raise InputError(
            "device_map balanced_low_0 needs GPUs numbered from 0 without gaps in max_memory."
        )
    share = total // (8 * (len(gpus) - low_zero)) + 5 * cushion // 32  # bytes: 1.25 · cushion / 8
    held = dict(budgets)
    for gpu in gpus[:-1]:
        if not (low_zero and gpu == 0):
            held[gpu] = min(8 * share, held[gpu])
    if low_zero:
        elsewhere = sum(bits for gpu, bits in held.items() if gpu in range(1, len(gpus)))
        held[0] = min(max(0, total - elsewhere), held[0])
    return held


# --- placing --------------------------------------------------------------------------------------


def _place(
    tree: ModuleNode,
    sizes: Mapping[str, int],
    budgets: Mapping[Device, int],
    whole: Collection[str],
    *,
    splits_what_would_fit_alone: bool,
) -> dict[str, Device]:
    """The algorithm that both libraries share.

    ``splits_what_would_fit_alone``: transformers splits a module that fits only without its tied partner; accelerate
    moves on to the next device.
    """
    devices = [*budgets, *({DISK} - {*budgets})]
    gpus = [device for device in devices if isinstance(device, int)]
    reserving = {*gpus[:1], CPU}
    used = dict.fromkeys(devices, 0)
    queue = list(tree.children)
    embedding, head = _embedding(tree), _last(tree)
    largest, bearers = _largest(queue, sizes, whole)
    placed: dict[str, Device] = {}
    place = iter(devices)
    device = next(place)
    while queue:
        node = queue.pop(0)
        bearers -= {one.name for one in (node.walk() if _splits(node, whole) else [node])}
        if not bearers:
            largest, bearers = _largest(queue, sizes, whole)
        reserve = largest if device in reserving else 0
        room = budgets.get(device, 0) - reserve - used[device]
        holds_one = _holds(node, embedding) and not _holds(node, head.name)
        names = (node.name, head.name) if holds_one and not head.tensors else (node.name,)
        size, with_tied = sizes[node.name], sum(sizes[name] for name in names)
        if device == DISK or with_tied <= room:
            used[device] += with_tied
            placed |= dict.fromkeys(names, device)
            if len(names) > 1:
                queue = [one for one in queue if one.name not in names]
        elif _splits(node, whole) and (size >= room or splits_what_would_fit_alone):
            queue[:0] = node.parts
            largest, bearers = _largest(queue, sizes, whole)
        else:
            used[device] += reserve
            device = next(place)
            queue.insert(0, node)
    return _grouped(placed)


def _embedding(tree: ModuleNode) -> str:
    """The module that a tied head shares its weight with: embed_tokens, or the first with a weight."""
    first = ""
    for node in tree.walk():
        if node.tensors and not node.children:
            first = first or node.name
            if node.name.endswith(f".{EMBEDDING}"):
                return node.name
    return first


def _last(node: ModuleNode) -> ModuleNode:
    """The last module in the order of ``named_modules``."""
    while node.children:
        node = node.children[-1]
    return node


def _holds(node: ModuleNode, name: str) -> bool:
    return f"{name}.".startswith(f"{node.name}.")


def _splits(node: ModuleNode, whole: Collection[str]) -> bool:
    return bool(node.children) and node.class_name not in whole


def _largest(
    nodes: Iterable[ModuleNode], sizes: Mapping[str, int], whole: Collection[str]
) -> tuple[int, set[str]]:
    """Bits of the largest module that cannot be split, and the names of all modules of that size."""
    pending, kept = [node for node in nodes if not node.is_parameter][::-1], []
    while pending:
        node = pending.pop()
        if _splits(node, whole):
            pending += node.children[::-1]
        else:
            kept.append(node.name)
    most = max((sizes[name] for name in kept), default=0)
    return most, {name for name in kept if sizes[name] == most}


def _grouped(placed: Mapping[str, Device]) -> dict[str, Device]:
    """The map with one key per subtree on a single device: a module's name, or an empty name for the whole model.

    Source: accelerate 1.15 utils/modeling.py, ``clean_device_map``.

    >>> _grouped({"model.a": 0, "model.b": 0, "lm_head": 1})
    {'model': 0, 'lm_head': 1}
    """
    under: dict[str, list[Device]] = defaultdict(list)
    for name, device in placed.items():
        for ancestor in _ancestors(name):
            under[ancestor].append(device)
    together = {name for name, all_of in under.items() if len(all_of) > 1 and len(set(all_of)) == 1}
    return {
        next((one for one in _ancestors(name) if one in together), name): device
        for name, device in placed.items()
    }


def _ancestors(name: str) -> list[str]:
    """The names of a module's ancestors, root first."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(len(parts))]
