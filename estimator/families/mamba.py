"""Mamba 2's mixer as PyTorch runs it without the packages mamba-ssm and causal-conv1d.

Source: transformers 5.23, models/granitemoehybrid/modeling_granitemoehybrid.py, ``GraniteMoeHybridMambaLayer`` and
``GraniteMoeHybridRMSNormGated``; models/falcon_h1/modeling_falcon_h1.py, ``FalconH1Mixer``;
models/nemotron_h/modeling_nemotron_h.py, ``NemotronHMamba2Mixer``. Local names are those of the source, because they
determine how long each tensor lives.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.families import parts
from estimator.families.block import Block
from estimator.families.modules import LEAF, Norm, OwnParameter, Tree, TreeTensor, tree
from estimator.tape import operators as op
from estimator.tape.scan import Inputs, ScanShape, scan
from estimator.tape.tape import Tensor
from estimator.values.specs import Model

MAMBA_FALLBACK = ("state-space layers", "mamba-ssm and causal-conv1d")
"""What is counted as the PyTorch fallback, and the packages that have kernels for it."""


def mamba_tree(
    model: Model, class_name: str, *buffers: TreeTensor, unadaptable: bool = False
) -> Tree:
    """Three parameters per head, a convolution, and two projections around the scan."""
    sizes = model.state_space
    assert sizes is not None
    output = parts.linear(sizes.width, model.hidden_size, sizes.out_bias)
    return tree(
        class_name,
        *buffers,
        dt_bias=OwnParameter(Norm("", sizes.heads)),
        A_log=OwnParameter(Norm("", sizes.heads)),
        D=OwnParameter(Norm("", sizes.heads)),
        act=LEAF,
        conv1d=Norm("", sizes.conv_width, bias=sizes.conv_bias, taps=sizes.conv_kernel),
        in_proj=parts.linear(model.hidden_size, sizes.projected_width, sizes.in_bias),
        norm=Norm("", sizes.width) if sizes.is_normed else LEAF,
        out_proj=replace(output, unadaptable=unadaptable),
    )


def mamba(b: Block, x: Tensor, block: str, *, multiplies: bool = False) -> Tensor:
    """Projection to gate, channels and steps; convolution; scan; gated norm; output projection.

    ``multiplies``: Falcon-H1 multiplies the projection's input by a constant and its output by a buffer.
    """
    tape, setup, sizes = b.tape, b.setup, b.model.state_space
    assert sizes is not None
    width = x.width
    x = _without_padding(b, x)
    if multiplies:
        x = op.scale(tape, x)
    whole = b.linear(f"{block}.in_proj", x)
    if multiplies:
        vector = Tensor(sizes.projected_width, setup.precision.dtype.bytes, None)
        whole = op.multiply(tape, whole, vector, "times multipliers")
    decay = op.scale(
        tape,
        op.elementwise(
            tape, op.cast(tape, b.norms[f"{block}.A_log"][0], 4), "exponential", saves="output"
        ),
    )
    gate, channels, step = op.split(
        tape, whole, [b.rows * size for size in (sizes.width, sizes.conv_width, sizes.heads)]
    )
    channels = _without_padding(b, _convolved(b, channels, f"{block}.conv1d"))
    x, key, query = op.split(
        tape,
        channels,
        [b.rows * size for size in (sizes.width, sizes.group_width, sizes.group_width)],
    )
    shape = ScanShape(
        setup.batch.per_device_train_batch_size,
        setup.batch.max_length,
        sizes.heads,
        sizes.head_dim,
        sizes.state_size,
        sizes.groups,
        sizes.chunk_size,
    )
    skip, step_bias = b.norms[f"{block}.D"][0], b.norms[f"{block}.dt_bias"][0]
    out = scan(tape, shape, Inputs(x, step, decay, key, query, skip, step_bias))
    out = _gated_norm(b, out, gate, f"{block}.norm")
    out = b.linear(f"{block}.out_proj", op.cast(tape, out, width))
    del whole, channels
    return out


def _without_padding(b: Block, x: Tensor) -> Tensor:
    """``apply_mask_to_padding_states``: multiplies padded tokens by 0, which saves the attention mask."""
    if not b.setup.batch.padded:
        return x
    b.tape.operation = "padding masked"
    mask = Tensor(b.rows, 1, None)
    return op.multiply(b.tape, x, mask, "padding masked")


def _convolved(b: Block, x: Tensor, name: str) -> Tensor:
    """``causal_conv1d_fn``: computes some positions more than it keeps, because of padding; then the activation."""
    tape, setup, sizes = b.tape, b.setup, b.model.state_space
    assert sizes is not None
    weight, *bias = b.norms[name]
    longer = setup.batch.per_device_train_batch_size * (
        setup.batch.max_length + sizes.conv_kernel - 1
    )
    out = op.part(
        tape,
        op.convolution(
            tape,
            x,
            weight,
            longer * sizes.conv_width,
            "convolution",
            bias=bias[0] if bias else None,
        ),
        x.elements,
    )
    out = op.elementwise(tape, out, "silu")
    return op.cast(tape, out, x.width)


def _gated_norm(b: Block, x: Tensor, gate: Tensor, name: str) -> Tensor:
    """SiLU of the gate in float32 and RMSNorm over each group of heads, times the weight; or only the gate."""
    tape, sizes = b.tape, b.model.state_space
    assert sizes is not None
    if not sizes.is_normed:
        return op.multiply(tape, x, op.elementwise(tape, gate, "silu"), "output × gate")
    if not sizes.norm_before_gate:
        x = _gated(b, x, gate)
    x = op.normalized(tape, x, b.rows * sizes.groups)
    x = op.multiply(tape, b.norms[name][0], x, "norm")
    return _gated(b, x, gate) if sizes.norm_before_gate else x


def _gated(b: Block, x: Tensor, gate: Tensor) -> Tensor:
    gate = op.elementwise(b.tape, op.cast(b.tape, gate, 4), "silu")
    return op.multiply(b.tape, x, gate, "output × gate")
