"""What inductor schedules for a compiled step: dynamo, AOTAutograd, the partitioner, lowering and fusion, no kernel."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from functorch.compile import make_boxed_func
from torch.utils._ordered_set import OrderedSet

with warnings.catch_warnings(
    action="ignore", category=DeprecationWarning
):  # of torch.jit, in itself
    from torch._inductor import compile_fx, memory
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V


class Scheduled(NamedTuple):
    """One graph as inductor would run it."""

    is_backward: bool
    peak: int
    """Bytes of buffers alive at the most, with what forward has saved and without the weights."""
    kernels: int
    """Fused ones, products and attention."""
    fused_bytes: int
    """Bytes that the fused ones read and write."""


def schedules(step: Callable[[Callable[..., Any]], Any], model: torch.nn.Module) -> list[Scheduled]:
    """The graphs of a step, which calls the compiled model and backward; their operators run one by one."""
    found: list[Scheduled] = []

    def lowered(graph: torch.fx.GraphModule, inputs: Sequence[Any], **named: Any) -> Any:
        found.append(_scheduled(copy.deepcopy(graph), inputs, bool(named.get("is_backward"))))
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx.compile_fx(graph, inputs, inner_compile=lowered)

    torch._dynamo.reset()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        step(torch.compile(model, backend=backend))
    return found


def _scheduled(graph: torch.fx.GraphModule, inputs: Sequence[Any], is_backward: bool) -> Scheduled:
    fake = torch._dynamo.utils.detect_fake_mode(inputs)
    with V.set_debug_handler(DebugContext()), V.set_fake_mode(fake):
        compile_fx.record_original_output_strides(graph)
        compile_fx._recursive_post_grad_passes(graph, is_inference=False)
        compile_fx.view_to_reshape(graph)
        lowering = GraphLowering(graph, example_inputs=inputs, is_backward=is_backward)
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*inputs)
            lowering.init_wrapper_code()
            lowering._update_scheduler()
            nodes = lowering.scheduler.nodes
            freed = memory.get_freeable_input_buf(nodes, OrderedSet(lowering.graph_inputs))
            peak, _ = memory.estimate_peak_memory(
                nodes, freed, OrderedSet(lowering.get_output_names())
            )
            moved = [(type(node).__name__, node.get_read_write_buffers_sizes()) for node in nodes]
    fused = [size for kind, size in moved if kind in ("SchedulerNode", "FusedSchedulerNode")]
    others = [size for kind, size in moved if kind.startswith("Extern") and size]
    return Scheduled(is_backward, peak, len(fused) + len(others), sum(fused))
