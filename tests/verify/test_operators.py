"""Single operators of the real torch, counted storage by storage: the contents of tests/reference/operators.csv.

The meta device runs the operators that a GPU would run, without values. Autocast does not support it, so those
rows run on the CPU, with operators on both its 16-bit list and CUDA's. GPU-only effects are excluded:
workspaces inside a kernel, and a convolution's copies of its input (tests/test_operators.py has these by
hand). ``UPDATE_OPERATORS=1`` rewrites the file; tests/test_operators.py checks our rules against it without torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from tests import operator_cases as cases
from tests.operator_cases import (
    BATCH,
    CASES,
    CHOSEN,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LENGTH,
    LOSS_BYTES,
    ODD,
    OUT,
    VOCABULARY,
    H,
    Measured,
    T,
    read_table,
    write_table,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
F = torch.nn.functional
Storages = pytest.importorskip("tests.verify.storages").Storages


class Source(torch.autograd.Function):
    """An earlier operator that makes a tensor and drops its gradient."""

    @staticmethod
    def forward(ctx: Any, needed: Any, like: Any) -> Any:
        return torch.empty(like[0], dtype=like[1], device=needed.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


class Sink(torch.autograd.Function):
    """A loss that saves nothing and hands each output a new gradient."""

    @staticmethod
    def forward(ctx: Any, *outputs: Any) -> Any:
        ctx.likes = [(output.shape, output.dtype, output.device) for output in outputs]
        return torch.empty((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return tuple(torch.empty(shape, dtype=of, device=at) for shape, of, at in ctx.likes)


class Real:
    """Inputs that need a gradient; weights and constants that existed before and are not counted."""

    def __init__(self, counted: Any, dtype: Any, device: str) -> None:
        self.counted, self.dtype, self.device = counted, dtype, device
        self._before: list[Any] = []
        self._needed = self.stands(lambda: torch.zeros((), device=device, requires_grad=True))

    def stands(self, make: Callable[[], Any]) -> Any:
        """Makes tensors that are never counted."""
        with torch.utils._python_dispatch._disable_current_modes():
            made = make()
        self._before.append(made)
        found = [made] if isinstance(made, torch.Tensor) else [*made.parameters(), *made.buffers()]
        for tensor in found:
            self.counted.know(tensor.untyped_storage())
        return made

    def input(self, *shape: int, grad: bool = True, dtype: Any = None) -> Any:
        if not grad:
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        return Source.apply(self._needed, (shape, dtype or self.dtype))

    def weight(self, *shape: int, trained: bool = True) -> Any:
        return self.stands(
            lambda: torch.zeros(shape, dtype=self.dtype, device=self.device, requires_grad=trained)
        )

    def constant(self, *shape: int, dtype: Any = None) -> Any:
        return self.stands(
            lambda: torch.zeros(shape, dtype=dtype or self.dtype, device=self.device)
        )

    def module(self, make: Callable[[], Any], *, trained: bool = True) -> Any:
        """A layer of transformers in the case's dtype."""

        def built() -> Any:
            with torch.device(self.device):
                return make().to(self.dtype).requires_grad_(trained)

        return self.stands(built)


def _native_dropout(x: Any, p: float, training: bool = True) -> Any:
    """The GPU's version: torch 2.13, aten/src/ATen/native/Dropout.cpp, ``is_fused_kernel_acceptable``."""
    return torch.ops.aten.native_dropout(x, p, training)[0] if p else x


def _owners(x: Any) -> tuple[int, int]:
    """Reference counts of a tensor and of its storage, including the dispatcher's references."""
    return x._use_count(), torch._C._storage_Use_Count(x.untyped_storage()._cdata)


class AsWithoutMode(Storages):
    """Backward as it runs without a dispatch mode: in place, where autograd would else choose the functional variant.

    Source: torch 2.13, torch/csrc/autograd: input_buffer.cpp, ``can_accumulate_inplace`` (a sum of two gradients takes
    over the first one's storage if nothing else holds it); FunctionsManual.cpp, ``areAnyTensorSubclassLike``.
    """

    TWINS: ClassVar = {
        torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
        torch.ops.aten.scatter.value: torch.ops.aten.scatter_.value,
        torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    }

    def __init__(self, sole: tuple[int, int]) -> None:
        super().__init__()
        self.in_backward = False
        self.sole = sole
        """``_owners`` of a gradient that nobody but the engine holds."""
        self.seen: list[tuple[int, int]] = []

    def know(self, storage: Any) -> None:
        """Marks a storage as never counted."""
        self._known[storage._cdata] = lambda: storage

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if self.in_backward:
            func = self.TWINS.get(func, func)
            if func is torch.ops.aten.add.Tensor and isinstance(args[1], torch.Tensor):
                self.seen.append(_owners(args[0]))
                if self.seen[-1] == self.sole and args[0].shape == args[1].shape:
                    return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


@cache
def sole_owner() -> tuple[int, int]:
    """``_owners`` of a fresh gradient, at the point where two gradients are added."""
    with AsWithoutMode((0, 0)) as counted:
        x = Source.apply(torch.zeros((), device="meta", requires_grad=True), ((4,), torch.float32))
        loss = Sink.apply(x * 2.0, x * 3.0)
        counted.in_backward = True
        loss.backward()
    (seen,) = counted.seen
    return seen


def real(name: str, dtype: str) -> Measured:
    """One operator forward and backward, as torch runs it."""
    case = CASES[name]
    device = "cpu" if case.autocast else "meta"
    with AsWithoutMode(sole_owner()) as counted:
        one = Real(counted, getattr(torch, dtype), device)
        counted.restart()
        autocast = torch.autocast("cpu", torch.bfloat16) if case.autocast else nullcontext()
        with autocast, patch.object(F, "dropout", _native_dropout):
            outputs = REAL[name](one)
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        forward = counted.restart()
        loss = Sink.apply(*outputs)
        del outputs
        kept = counted.alive - LOSS_BYTES
        counted.restart()
        counted.in_backward = True
        loss.backward(one.constant(dtype=torch.float32))
        return Measured(kept, forward, counted.restart())


def _linear(*, trained: bool, bias: bool, needs_x: bool = True) -> Callable[[Real], Any]:
    def run(played: Real) -> Any:
        x = played.input(T, H, grad=needs_x)
        b = played.weight(OUT, trained=trained) if bias else None
        return F.linear(x, played.weight(OUT, H, trained=trained), b)

    return run


def _float8(
    *, trained: bool = True, bias: bool = False, tokens: int = T, pads: bool = True
) -> Callable[[Real], Any]:
    def run(played: Real) -> Any:
        pytest.importorskip("torchao")
        from torchao.float8 import Float8LinearConfig
        from torchao.float8.float8_linear import Float8Linear

        plain = played.module(lambda: torch.nn.Linear(H, OUT, bias=bias), trained=trained)
        linear = Float8Linear.from_float(plain, Float8LinearConfig(pad_inner_dim=pads))
        return linear(played.input(tokens, H))

    return run


def _product(played: Real) -> Any:
    x, weight, bias = played.input(T, H), played.weight(OUT, H), played.weight(OUT)
    return x @ weight.T + bias


def _two_linears(played: Real) -> Any:
    x, weight = played.input(T, H), played.weight(OUT, H)
    return [F.linear(x, weight) for _ in range(2)]


def _unary(run: Callable[[Any], Any], *shape: int) -> Callable[[Real], Any]:
    return lambda played: run(played.input(*(shape or (T, H))))


def _binary(
    run: Callable[[Any, Any], Any],
    second: tuple[int, ...] = (T, H),
    grads: tuple[bool, bool] = (True, True),
) -> Callable[[Real], Any]:
    return lambda played: run(
        played.input(T, H, grad=grads[0]), played.input(*second, grad=grads[1])
    )


def _view_in_place(x: Any) -> Any:
    view = x.view(-1)
    view.mul_(torch.empty_like(view))
    return view


def _in_place(x: Any) -> Any:
    return x.mul_(torch.empty_like(x))


def _filled(tensor: Real) -> Any:
    a, b = tensor.input(T, H), tensor.input(T, H)
    out = torch.empty(2 * T, H, dtype=tensor.dtype, device=tensor.device)
    out[:T] = a
    out[T:] = b
    return out


def _add_to_slice(played: Real) -> Any:
    x, b = played.input(T, H), played.input(T // 2, H)
    x[T // 2 :] += b
    return x


def _scatter(tensor: Real) -> Any:
    x, indices = tensor.input(T, CHOSEN), tensor.constant(T, CHOSEN, dtype=torch.long)
    return torch.full((T, H), float("-inf"), dtype=tensor.dtype, device=tensor.device).scatter_(
        1, indices, x
    )


def _gather(played: Real) -> Any:
    return played.input(T, H)[played.constant(T * CHOSEN, dtype=torch.long)]


def _grouped(*, trained: bool) -> Callable[[Real], Any]:
    def run(played: Real) -> Any:
        stack = played.weight(EXPERTS, H, OUT, trained=trained)
        return torch._grouped_mm(
            played.input(T, H), stack, played.constant(EXPERTS, dtype=torch.int32)
        )

    return run


def _folded(played: Real) -> Any:
    stack = played.weight(EXPERTS, OUT, H, trained=False)
    b, a = played.input(EXPERTS, OUT, CHOSEN), played.input(EXPERTS, CHOSEN, H)
    return torch.baddbmm(stack, b, a, alpha=2.0)


def _cross_entropy(played: Real) -> Any:
    logits = played.input(T, VOCABULARY).float()
    return F.cross_entropy(logits, played.constant(T, dtype=torch.long), ignore_index=-100)


def _layer_norm(*, trained: bool = True, bias: bool = True) -> Callable[[Real], Any]:
    def run(played: Real) -> Any:
        layer = played.module(lambda: torch.nn.LayerNorm(H, bias=bias), trained=trained)
        return layer(played.input(T, H))

    return run


def _layer_norm_in_float32(played: Real) -> Any:
    """As under CUDA's autocast, whose float32 list differs from the CPU's: the last argument first."""
    x, weight, bias = played.input(T, H), played.weight(H), played.weight(H)
    bias32, weight32 = bias.float(), weight.float()
    return F.layer_norm(x.float(), (H,), weight32, bias32)


def _of(path: str, *arguments: Any, trained: bool = True, **keys: Any) -> Callable[[Real], Any]:
    """A transformers layer, by the end of its import path."""
    from importlib import import_module

    module, name = path.rsplit(".", 1)
    made = getattr(import_module(f"transformers.{module}"), name)
    return lambda played: played.module(lambda: made(*arguments, **keys), trained=trained)(
        played.input(T, H)
    )


def _activation(name: str) -> Callable[[Real], Any]:
    from transformers.activations import ACT2FN

    return _unary(ACT2FN[name])


def _gated(name: str) -> Callable[[Real], Any]:
    from transformers.activations import ACT2FN

    def run(played: Real) -> Any:
        gate, up = played.input(T, H), played.input(T, H)
        return ACT2FN[name](gate) * up

    return run


def _xielu(played: Real) -> Any:
    from transformers.activations import XIELUActivation

    return played.module(XIELUActivation)._xielu_python(played.input(T, H))


def _heads(played: Real, heads: int = HEADS) -> Any:
    """[b, heads, s, d], in the token-by-token memory layout of a projection."""
    return played.input(BATCH, LENGTH, heads, HEAD_DIM).transpose(1, 2)


def _matmul(played: Real) -> Any:
    q, k = (
        played.input(BATCH, HEADS, LENGTH, HEAD_DIM),
        played.input(BATCH, HEADS, HEAD_DIM, LENGTH),
    )
    return q @ k


def _matmul_of_views(one: Real) -> Any:
    q, k = _heads(one), _heads(one)
    return q @ k.transpose(2, 3)


def _rotary(path: str, ending: str = "", *, half: bool = False) -> Callable[[Real], Any]:
    from importlib import import_module

    run = getattr(import_module(f"transformers.models.{path}"), f"apply_rotary_pos_emb{ending}")

    def turned(one: Real) -> Any:
        width = HEAD_DIM // 2 if half or "glm" in path else HEAD_DIM
        of = torch.float32 if path.startswith(("olmo", "ernie")) else None
        cosine, sine = (one.constant(1, LENGTH, width, dtype=of) for _ in range(2))
        q, k = _heads(one), _heads(one, KV_HEADS)
        return run(q, k, cosine, sine)

    return turned


def _scan(batch: int, length: int, groups: int = cases.GROUPS) -> Callable[[Real], Any]:
    from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_chunk_scan

    heads, width, state = cases.SCAN_HEADS, cases.SCAN_DIM, cases.STATE

    def from_convolution(played: Real, count: int, width: int) -> Any:
        """In the memory layout of Mamba 2's convolution, tokens last, which decides whether a product copies."""
        return played.input(batch, count, width, length).permute(0, 3, 1, 2)

    def run(played: Real) -> Any:
        x = from_convolution(played, heads, width)
        step = played.input(batch, length, heads)
        decay = played.input(heads, dtype=torch.float32)
        b, c = (from_convolution(played, groups, state) for _ in range(2))
        skip, step_bias = played.weight(heads), played.weight(heads)
        out = mamba2_chunk_scan(
            x, step, decay, b, c, cases.CHUNK, D=skip, dt_bias=step_bias, dt_softplus=True
        )
        return out[0] if isinstance(out, tuple) else out

    return run


def _rotary_complex(one: Real) -> Any:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb

    table = one.constant(1, LENGTH, HEAD_DIM // 2, dtype=torch.complex64)
    q, k = _heads(one), _heads(one, KV_HEADS)
    return apply_rotary_emb(q, k, table)


def _flash(heads: int = HEADS) -> Callable[[Real], Any]:
    def run(one: Real) -> Any:
        q, k, v = _heads(one), _heads(one, heads), _heads(one, heads)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention
        return kernel(q, k, v, 0.0, True)[0]

    return run


def _efficient(*, mask: bool = False) -> Callable[[Real], Any]:
    def run(one: Real) -> Any:
        q, k, v = _heads(one), _heads(one), _heads(one)
        bias = one.constant(BATCH, 1, LENGTH, LENGTH) if mask else None
        if bias is not None:
            bias = bias.expand(BATCH, HEADS, LENGTH, LENGTH)
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(q, k, v, bias, True, 0.0, not mask)[0]

    return run


def _eager(*, dropout: float = 0.0, softcap: float | None = None) -> Callable[[Real], Any]:
    if softcap:
        from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward
    else:
        from transformers.models.llama.modeling_llama import eager_attention_forward

    class Layer:
        num_key_value_groups = HEADS // KV_HEADS
        training = True

    def run(one: Real) -> Any:
        q, k, v = _heads(one), _heads(one, KV_HEADS), _heads(one, KV_HEADS)
        mask = one.constant(BATCH, 1, LENGTH, LENGTH)
        keys = {"softcap": softcap} if softcap else {}
        out, _ = eager_attention_forward(
            Layer(), q, k, v, mask, scaling=0.125, dropout=dropout, **keys
        )
        return out

    return run


NORMS = "models.{0}.modeling_{0}.{1}RMSNorm"
REAL: dict[str, Callable[[Real], Any]] = {
    "cast": lambda tensor: tensor.input(T, H).to(
        torch.bfloat16 if tensor.dtype is torch.float32 else torch.float32
    ),
    "add a number": _unary(lambda x: x + 1.0),
    "multiply by a number": _unary(lambda x: x * 2.0),
    "multiply by a number in place": _unary(lambda x: x.mul_(2.0)),
    "multiply by noise in place": _unary(_in_place),
    "multiply a view by noise in place": _unary(_view_in_place),
    "add": _binary(torch.add),
    "add, broadcast": _binary(torch.add, (H,)),
    "add in place": _binary(lambda a, b: a.add_(b)),
    "add to a slice": _add_to_slice,
    "subtract": _binary(torch.sub),
    "subtract, broadcast": _binary(torch.sub, (T, 1)),
    "multiply": _binary(torch.mul),
    "multiply, broadcast": _binary(torch.mul, (T, 1)),
    "multiply, one gradient": _binary(torch.mul, grads=(True, False)),
    "divide": _binary(torch.div),
    "divide, broadcast": _binary(torch.div, (T, 1)),
    "divide by a constant": lambda played: (
        played.input(T, H) / played.constant(1, dtype=torch.float32)
    ),
    "square": _unary(lambda x: x.pow(2)),
    "mean": _unary(lambda x: x.mean(-1, keepdim=True)),
    "standard deviation": _unary(lambda x: x.std(-1, keepdim=True)),
    "largest of each row": _unary(lambda x: x.max(dim=-1, keepdim=True)[0]),
    "clamp below": _unary(lambda x: x.clamp(min=0.5)),
    "clamp": _unary(lambda x: x.clamp(0.5, 1.0)),
    "softmax": _unary(lambda x: F.softmax(x, dim=-1)),
    "dropout": _unary(lambda x: F.dropout(x, 0.1, True)),
    "no dropout": _unary(torch.nn.Identity()),
    "where": lambda played: torch.where(
        played.constant(T, H, dtype=torch.bool), played.input(T, H), played.input(T, H)
    ),
    "masked_fill": lambda played: played.input(T, H).masked_fill(
        played.constant(T, H, dtype=torch.bool), 0.0
    ),
    "clone": _unary(torch.clone),
    "view": _unary(lambda x: x.view(-1)),
    "slice": _unary(lambda x: x[:, : H // 2]),
    "pick": _unary(lambda x: x[:, torch.zeros(1, dtype=torch.long, device=x.device)]),
    "split": _unary(lambda x: x.split(H // 2, -1)),
    "concatenate": lambda played: torch.cat([played.input(T, H), played.input(T, OUT)], -1),
    "pad": _unary(lambda x: F.pad(x, (0, OUT - H))),
    "copies into one tensor": _filled,
    "repeat": _unary(lambda x: x.repeat(3, 1)),
    "expand": lambda played: played.input(T, 1).expand(T, H),
    "repeat_kv": lambda one: transformers.integrations.sdpa_attention.repeat_kv(
        _heads(one, KV_HEADS), 2
    ),
    "repeat_kv of one head": lambda one: _heads(one, 1).expand(-1, HEADS, -1, -1),
    "top_k": _unary(lambda x: x.topk(CHOSEN, dim=-1)[0]),
    "gather rows": _gather,
    "scatter": _scatter,
    "sum of experts": lambda played: played.input(T * CHOSEN, H).view(T, CHOSEN, H).sum(1),
    "grouped product": _grouped(trained=True),
    "grouped product, frozen": _grouped(trained=False),
    "adapters folded into experts": _folded,
    "embedding": lambda module: F.embedding(
        module.constant(T, dtype=torch.long), module.weight(VOCABULARY, H)
    ),
    "cross-entropy": _cross_entropy,
    "linear": _linear(trained=True, bias=False),
    "linear with bias": _linear(trained=True, bias=True),
    "linear, frozen": _linear(trained=False, bias=True),
    "linear of an input without gradient": _linear(trained=True, bias=True, needs_x=False),
    "linear under autocast": _linear(trained=True, bias=False),
    "linear with bias under autocast": _linear(trained=True, bias=True),
    "linear, frozen, under autocast": _linear(trained=False, bias=True),
    "two linears of one weight under autocast": _two_linears,
    "linear in FP8": _float8(),
    "linear in FP8 with bias": _float8(bias=True),
    "linear in FP8, frozen": _float8(trained=False, bias=True),
    "linear in FP8 without padding": _float8(pads=False),
    "linear in FP8 of an odd number of tokens": _float8(tokens=ODD),
    "product": _product,
    "product under autocast": _product,
    "matmul": _matmul,
    "matmul of transposed heads": _matmul_of_views,
    "matmul under autocast": _matmul,
    "RMSNorm": _of(NORMS.format("llama", "Llama"), H),
    "RMSNorm, frozen": _of(NORMS.format("llama", "Llama"), H, trained=False),
    "RMSNorm, Gemma": _of(NORMS.format("gemma", "Gemma"), H),
    "RMSNorm, OLMo 2": _of(NORMS.format("olmo2", "Olmo2"), H),
    "RMSNorm, Gemma 4": _of(NORMS.format("gemma4", "Gemma4"), H),
    "RMSNorm, Gemma 4, without a weight": _of(
        NORMS.format("gemma4", "Gemma4"), H, with_scale=False
    ),
    "L2Norm, Llama 4": _of("models.llama4.modeling_llama4.Llama4TextL2Norm"),
    "LayerNorm": _layer_norm(),
    "LayerNorm without bias": _layer_norm(bias=False),
    "LayerNorm, frozen": _layer_norm(trained=False),
    "LayerNorm under autocast": _layer_norm_in_float32,
    "LayerNorm, Cohere": _of("models.cohere.modeling_cohere.CohereLayerNorm", H),
    "LayerNorm, Nemotron": _of("models.nemotron.modeling_nemotron.NemotronLayerNorm1P", H),
    "LayerNorm, OLMo": _of("models.olmo.modeling_olmo.OlmoLayerNorm", H),
    "silu": _activation("silu"),
    "gelu": _activation("gelu"),
    "gelu_pytorch_tanh": _activation("gelu_pytorch_tanh"),
    "gelu_new": _activation("gelu_new"),
    "gelu_fast": _activation("gelu_fast"),
    "gelu, BLOOM": _of("models.bloom.modeling_bloom.BloomGelu"),
    "relu": _activation("relu"),
    "relu2": _activation("relu2"),
    "sigmoid": _activation("sigmoid"),
    "tanh": _activation("tanh"),
    "xielu": _xielu,
    "silu × up": _gated("silu"),
    "gelu_pytorch_tanh × up": _gated("gelu_pytorch_tanh"),
    "softplus": _unary(F.softplus),
    "exponential": _unary(torch.exp),
    "cumulative sum": _unary(lambda x: torch.cumsum(x, dim=0)),
    "repeat_interleave": _unary(lambda x: x.repeat_interleave(3, dim=0, output_size=3 * T)),
    "rotary": _rotary("llama.modeling_llama"),
    "rotary, OLMo": _rotary("olmo.modeling_olmo"),
    "rotary, GLM": _rotary("glm.modeling_glm"),
    "rotary, Cohere": _rotary("cohere.modeling_cohere"),
    "rotary, DeepSeek V2": _rotary_complex,
    "rotary, DeepSeek V3": _rotary("deepseek_v3.modeling_deepseek_v3", "_interleave"),
    "rotary, ERNIE": _rotary("ernie4_5.modeling_ernie4_5"),
    "scan of one chunk": _scan(1, cases.CHUNK),
    "scan of several chunks": _scan(1, 3 * cases.CHUNK),
    "scan of several chunks, the last filled up": _scan(1, 3 * cases.CHUNK - 7),
    "scan of several texts of a chunk": _scan(3, cases.CHUNK),
    "scan of several texts of several chunks": _scan(2, 3 * cases.CHUNK),
    "scan of a group a head": _scan(2, 3 * cases.CHUNK, cases.SCAN_HEADS),
    "rotary, GPT-OSS": _rotary("gpt_oss.modeling_gpt_oss", half=True),
    "flash attention": _flash(),
    "flash attention of grouped heads": _flash(KV_HEADS),
    "memory-efficient attention": _efficient(),
    "memory-efficient attention with a mask": _efficient(mask=True),
    "eager attention": _eager(),
    "eager attention with dropout": _eager(dropout=0.1),
    "eager attention with softcap": _eager(softcap=50.0),
}


ROWS = [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes]


def test_every_operator_has_a_real_counterpart():
    assert REAL.keys() == CASES.keys()


@pytest.mark.parametrize(("name", "dtype"), ROWS)
def test_the_file_matches_torch(name, dtype):
    if "UPDATE_OPERATORS" in os.environ:
        pytest.skip("the file is written anew")
    assert real(name, dtype) == read_table()[name, dtype]


@pytest.mark.skipif("UPDATE_OPERATORS" not in os.environ, reason="writes the file of operators")
def test_the_file_is_rewritten():
    write_table({row: real(*row) for row in ROWS})
