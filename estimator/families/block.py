"""The modules that a layer's program calls, by name, with the dtypes and adapters of the setup."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from estimator.families.activations import activation
from estimator.families.adapters import (
    adapter_rank,
    adapter_shapes,
    is_quantized,
    is_trained_whole,
    trains_bias,
)
from estimator.families.dora import Dora, dora
from estimator.families.family import Kernels, NormKind, Rotary
from estimator.families.liger import kernels
from estimator.families.modules import (
    ACTIVATION,
    Bare,
    Embedding,
    Kernel,
    Linear,
    Module,
    Norm,
    weight_shapes,
)
from estimator.families.rotary import Tables, rotate
from estimator.families.weights import adapter_tensor_width, weight_width
from estimator.tape import fused
from estimator.tape import operators as op
from estimator.tape.attention import AttentionShape, attention
from estimator.tape.float8 import converts, linear_float8
from estimator.tape.tape import Parameter, Tape, Tensor
from estimator.values.arithmetic import elements
from estimator.values.facets.adapters import Adapters
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Model

BEFORE_LAYERS = ("word_embeddings_layernorm", "per_layer_projection_norm")
"""Norms outside the layers other than the final norm."""


@dataclass(slots=True)
class Loaded:
    """A linear or a bare weight with its parameters, and its adapters if it has any."""

    module: Linear | Bare
    weight: Parameter
    bias: Parameter | None = None
    lora_a: Parameter | None = None
    lora_b: Parameter | None = None
    lora_bias: Parameter | None = None
    magnitude: Parameter | None = None
    is_quantized: bool = False


class Owned(NamedTuple):
    """A parameter with its module and shape, for sharding."""

    module: Module
    shape: tuple[int, ...]
    parameter: Parameter
    is_adapter: bool


class ModuleHook(Protocol):
    """Hooks around a module call."""

    def enter(self, x: Tensor) -> Tensor:
        """Called with the input; returns the input."""

    def leave(self, x: Tensor) -> Tensor:
        """Called with the output; returns the output."""


class Factors(NamedTuple):
    """LoRA's B and A of a stack, cast to the stack's dtype for their product."""

    b: Tensor
    a: Tensor


class Block:
    """One layer, or the modules outside the layers, on a tape: modules to call, and the state they share."""

    rotary: Rotary | None = None
    """How this layer applies rotary embeddings, with tables shared by all layers."""
    mask: Tensor | None = None
    alibi: Tensor | None = None
    positions: Tensor | None = None
    """Position ids, if this layer has its own copy."""
    weights: Tensor | None = None
    """Eager attention's weights: a local name of the layer's forward until it returns, which a recomputation never
    does."""
    layer_input: Tensor | None = None
    """This layer's own per-token embedding."""
    sharing = ""
    """This layer's role in sharing keys and values, by ``sharing_of_keys``."""
    is_windowed = False
    cuts_gate = False
    """Whether this layer's MLP keeps only its largest gate activations (Gemma 3n)."""
    is_replay = False
    adapters_on = True
    """False: adapters are switched off, as ``disable_adapter`` does."""
    router_logits: dict[int, Tensor] | None = None
    """Where the router leaves its scores, if the model returns them, by played layer; None in a checkpoint's
    replay."""
    rotary_tables: Tables | None = None
    adapters_seen: int | None = None
    """Bytes per element of an adapter as PEFT sees it, if different from those it computes with."""
    out_of_float8: frozenset[str] | None = None
    """Linears that are not converted to FP8, where others are."""

    def __init__(
        self,
        tape: Tape,
        model: Model,
        setup: TrainingSetup,
        modules: Iterable[Module],
        *,
        key: str,
        norm_kind: NormKind,
        softmax_float32: bool = True,
        index: int | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        self.tape = tape
        self._parameters = {} if parameters is None else parameters
        """Existing parameters: a module has the same ones in every pass."""
        self.model = model
        self.setup = setup
        self.index = index
        self.kernels: Kernels = kernels(model, setup.computation, setup.adapters)
        """What Liger replaces."""
        self.norm_kind = norm_kind
        self.softmax_float32 = softmax_float32
        self.shared_states: dict[bool, tuple[Tensor, Tensor]] = {}
        """Keys and values shared between layers, by whether they have a window; one dict for the whole model."""
        self.linears: dict[str, Loaded] = {}
        self.stacks: dict[str, Loaded] = {}
        self.norms: dict[str, list[Parameter]] = {}
        self.embeddings: dict[str, Parameter] = {}
        self.tensors: dict[str, list[Parameter]] = {}
        """Bare parameters of a tower, by the name of their module."""
        self.looked_up: dict[str, tuple[Parameter, Parameter]] = {}
        """LoRA's A and B of embeddings, by name."""
        self.embedding_widths: dict[str, int] = {}
        self.owned: list[Owned] = []
        self.modules = tuple(modules)
        self.units: dict[str, ModuleHook] = {}
        """Hooks by the key of a module's first parameter: under FSDP1 for units of adapters, under ZeRO-3 for all
        modules."""
        for module in self.modules:
            self._add(module, key)

    def _add(self, module: Module, key: str) -> None:
        setup = self.setup
        trainable = is_trained_whole(module, setup.adapters)
        width = weight_width(module, setup)
        shapes, biased = weight_shapes(module), trains_bias(module, setup.adapters)
        parameters = [
            self._parameter(
                f"{key}.{module.name}.{part}",
                elements(shape),
                width,
                trainable=trainable or (biased and part == len(shapes) - 1),
            )
            for part, shape in enumerate(shapes)
        ]
        self.owned += [
            Owned(module, shape, parameter, is_adapter=False)
            for shape, parameter in zip(shapes, parameters, strict=True)
        ]
        match module:
            case Kernel():
                self.tensors[module.name] = parameters
            case Norm():
                self.norms[module.name] = parameters
            case Embedding():
                self.embeddings[module.name] = parameters[0]
                self.embedding_widths[module.name] = module.width
                if adapters := self._adapters(module, key):
                    self.looked_up[module.name] = adapters[0], adapters[1]
            case Linear():
                self.linears[module.name] = self._loaded(module, *parameters, key=key)
            case Bare():
                self.stacks[module.name] = self._loaded(module, *parameters, key=key)

    def _parameter(self, key: str, elements: int, width: int, *, trainable: bool) -> Parameter:
        if key not in self._parameters:
            has_grad = self.setup.batch.gradient_accumulation_steps > 1
            self._parameters[key] = Parameter(
                key, elements, width, trainable=trainable, has_grad=has_grad
            )
        return self._parameters[key]

    def _adapters(self, module: Linear | Bare | Embedding, key: str) -> list[Parameter]:
        parameters = []
        for part, shape in enumerate(adapter_shapes(module, self.setup.adapters)):
            name = f"{key}.{module.name}.lora{part}"
            width = adapter_tensor_width(module, shape, self.setup)
            parameter = self._parameter(name, elements(shape), width, trainable=True)
            self.owned.append(Owned(module, shape, parameter, is_adapter=True))
            parameters.append(parameter)
        return parameters

    def _loaded(
        self, module: Linear | Bare, weight: Parameter, bias: Parameter | None = None, *, key: str
    ) -> Loaded:
        """A module of these parameters, with whatever its adapter consists of."""
        packed = is_quantized(module, self.setup.adapters)
        loaded = Loaded(module, weight, bias, is_quantized=packed)
        if adapters := self._adapters(module, key):
            loaded.lora_a, loaded.lora_b, *beside = adapters
            if self.setup.adapters.lora_bias:
                loaded.lora_bias = beside[0]
            elif beside:
                loaded.magnitude = beside[0]
        return loaded

    @property
    def played(self) -> int:
        """Position of this layer among those played."""
        assert self.index is not None
        return self.index

    @property
    def rows(self) -> int:
        """Tokens of the micro-batch."""
        return self.setup.batch.tokens

    def tie(self, head: Linear, weight: Parameter, key: str) -> None:
        """Adds a tied head with an adapter, so that it is called like any linear."""
        self.linears[head.name] = self._loaded(head, weight, key=key)

    def adapted_embedding(
        self, name: str, ids: Tensor, found: Tensor, *, is_scaled: bool
    ) -> Tensor:
        """The embedding's output plus LoRA's branch: rows of A, times B; no dropout.

        The gradient of A arrives transposed and is copied into the layout of A.

        Source: peft 0.21, tuners/lora/layer.py, ``Embedding.forward``; torch 2.13,
        torch/csrc/autograd/functions/accumulate_grad.h, ``clone_obey_contract``.
        """
        if name not in self.looked_up or not self.adapters_on:
            return found
        tape = self.tape
        a, b = self.looked_up[name]
        rank = b.elements // self.embedding_widths[name]
        rows = tape.record(
            "LoRA A transposed", tape.view(a), [a], lambda t, g: [t.new(a.elements, a.width)]
        )
        columns = tape.record("LoRA B transposed", tape.view(b), [b], lambda t, g: [g[0]])
        after_a = op.embedding(tape, ids, rows, rank, self.rows)
        width = self.embedding_widths[name]
        branch = op.matmul(tape, after_a, columns, self.rows * width, "LoRA B")
        branch = op.scale(tape, branch, "LoRA scaling")
        if is_scaled:
            branch = op.scale(tape, branch)
        summed = op.add(tape, found, branch)
        del found
        return op.cast(tape, summed, self.embeddings[name].width)

    def has(self, name: str) -> bool:
        """Whether the layer has a module of this name."""
        return name in self.linears or name in self.norms

    @property
    def embedding_name(self) -> str:
        """Name of the token embedding."""
        return next(iter(self.embeddings))

    @property
    def embedding_unit(self) -> ModuleHook:
        """The hook around the token embedding."""
        return self.units[self.embeddings[self.embedding_name].key]

    @property
    def final_norm_name(self) -> str:
        """Name of the norm before the head; empty if there is none."""
        return next((name for name in self.norms if name not in BEFORE_LAYERS), "")

    def within(self, key: str, x: Tensor, program: Callable[[Tensor], Tensor]) -> Tensor:
        """Runs a module's program inside the hook for this key, if there is one."""
        unit = self.units.get(key)
        return program(x) if unit is None else unit.leave(program(unit.enter(x)))

    def norm(
        self, name: str, x: Tensor, *, groups: int = 1, kind: NormKind | None = None
    ) -> Tensor:
        """Normalises; ``groups``: rows per token, for norms over each head."""
        if self.units and self.norms[name]:
            key = self.norms[name][0].key
            return self.within(key, x, lambda x: self._norm(name, x, groups, kind))
        return self._norm(name, x, groups, kind)

    def _norm(self, name: str, x: Tensor, groups: int, kind: NormKind | None) -> Tensor:
        parameters = self.norms[name]
        rows = self.rows * groups
        is_of_heads = name.startswith("self_attn.")
        kernels = self.kernels
        is_replaced = kernels.norm and bool(parameters) and name not in kernels.left
        if is_replaced and (kernels.head_norms or not is_of_heads):
            is_final = self.index is None
            if (kind or self.norm_kind) is NormKind.LAYER_NORM:
                return fused.layer_norm(self.tape, x, parameters, rows)
            return fused.rms_norm(
                self.tape,
                x,
                parameters[0],
                rows,
                in_place=kernels.final_in_place if is_final else kernels.in_place,
                copies=is_of_heads and kernels.heads_first,
            )
        match kind or self.norm_kind:
            case NormKind.LAYER_NORM:
                return op.layer_norm(self.tape, x, parameters, rows)
            case NormKind.LAYER_NORM_FLOAT32:
                return op.layer_norm(self.tape, x, parameters, rows, in_float32=True)
            case NormKind.LAYER_NORM_PLUS_ONE:
                return op.layer_norm_plus_one(self.tape, x, parameters, rows)
            case NormKind.LAYER_NORM_IN_STEPS:
                return op.layer_norm_in_steps(self.tape, x, parameters[0], rows)
            case NormKind.RMS:
                return op.rms_norm(self.tape, x, parameters[0], rows)
            case NormKind.RMS_ONE_PLUS:
                return op.rms_norm_float32(self.tape, x, parameters[0], rows, one_plus=True)
            case NormKind.RMS_CAST_LAST:
                return op.rms_norm_float32(self.tape, x, parameters[0], rows, one_plus=False)
            case NormKind.RMS_BY_POWER:
                weight = parameters[0] if parameters else None
                return op.rms_norm_by_power(self.tape, x, weight, rows)
            case NormKind.RMS_WEIGHT_FLOAT32:
                in_float32 = op.cast(self.tape, parameters[0], 4)
                return op.rms_norm_float32(self.tape, x, in_float32, rows, one_plus=False)

    def linear(self, name: str, x: Tensor) -> Tensor:
        """The projection, plus LoRA's branch if it is adapted.

        Source of the branch: peft 0.21, tuners/lora/layer.py, ``Linear.forward``, and tuners/lora/bnb.py,
        ``Linear4bit.forward`` (which copies the base's output, and leaves the cast of x to autocast) and
        ``Linear8bitLt.forward`` (which does not copy it).
        """
        linked = self.linears[name]
        result = self._base(linked, x, name)
        if linked.lora_a is None or linked.lora_b is None or not self.adapters_on:
            return result
        tape = self.tape
        result_width = result.width
        if linked.is_quantized and not self.setup.adapters.has_8bit_base:
            result = op.clone(tape, result)
        follows_autocast = linked.is_quantized and tape.autocast_active
        # x itself stays alive: the caller holds it until this returns
        seen = self.adapters_seen or linked.lora_a.width
        adapter_input = x if follows_autocast else op.cast(tape, x, seen)
        if linked.magnitude is not None:
            result = self._with_dora(linked, adapter_input, result)
            # under autocast Linear4bit leaves it in the float32 produced by the magnitudes
            return result if follows_autocast else op.cast(tape, result, result_width)
        branch = self._branch(linked, adapter_input)
        if linked.is_quantized and not tape.autocast_active:
            branch = op.cast(tape, branch, result_width)
        result = op.add(tape, result, branch)
        del branch
        return op.cast(tape, result, result_width)

    def _with_dora(self, linked: Loaded, x: Tensor, result: Tensor) -> Tensor:
        assert linked.lora_a is not None
        assert linked.lora_b is not None
        assert linked.magnitude is not None
        tape, setup, linear = self.tape, self.setup, linked.module
        packed_width = None
        if linked.is_quantized:
            packed_width = 4 if setup.adapters.has_8bit_base else setup.precision.dtype.bytes
        layer = Dora(
            linear.in_features,
            linear.out_features,
            adapter_rank(linear, self.setup.adapters),
            linked.weight,
            linked.bias,
            linked.lora_a,
            linked.lora_b,
            linked.magnitude,
            packed_width,
            unpacks_scales=not setup.adapters.has_8bit_base,
        )
        dropped = op.dropout(tape, x, self.setup.adapters.lora_dropout)
        return op.add(tape, result, dora(tape, layer, dropped, result if dropped is x else None))

    def _branch(self, linked: Loaded, x: Tensor) -> Tensor:
        assert linked.lora_a is not None
        assert linked.lora_b is not None
        tape, linear = self.tape, linked.module
        rank = adapter_rank(linear, self.setup.adapters)
        # no name outlives its operator: without gradients nothing else keeps the low-rank tensor
        return op.scale(
            tape,
            self._matrix(
                self._matrix(
                    op.dropout(tape, x, self.setup.adapters.lora_dropout),
                    linked.lora_a,
                    (linear.in_features, rank),
                    "LoRA A",
                ),
                linked.lora_b,
                (rank, linear.out_features),
                "LoRA B",
                linked.lora_bias,
            ),
            "LoRA scaling",
        )

    def _matrix(
        self,
        x: Tensor,
        weight: Parameter,
        shape: tuple[int, int],
        name: str,
        bias: Parameter | None = None,
    ) -> Tensor:
        """One of an adapter's products; under FSDP1 it is a unit of its own."""
        is_float8 = self.out_of_float8 is not None and converts(*shape)
        call = self._in_float8 if is_float8 else op.linear
        return self.within(weight.key, x, lambda x: call(self.tape, x, weight, bias, *shape, name))

    def _base(self, linked: Loaded, x: Tensor, name: str) -> Tensor:
        linear = linked.module
        assert isinstance(linear, Linear)
        if linked.is_quantized and self.setup.adapters.has_8bit_base:
            return op.linear_8bit(self.tape, x, linear.in_features, linear.out_features, name)
        if linked.is_quantized:
            return op.linear_4bit(
                self.tape,
                x,
                linear.in_features,
                linear.out_features,
                self.setup.precision.dtype.bytes,
                name,
                nested=self.setup.adapters.bnb_4bit_use_double_quant,
            )
        weight, bias = linked.weight, linked.bias
        call: Callable[..., Tensor] = op.linear
        if linear.own_class and not linear.routes:
            call = op.product
        sizes = linear.in_features, linear.out_features
        if self._multiplies_in_float8(linear):
            call = self._in_float8
        return self.within(weight.key, x, lambda x: call(self.tape, x, weight, bias, *sizes, name))

    @property
    def _in_float8(self) -> Callable[..., Tensor]:
        return partial(linear_float8, pads=self.setup.precision.fp8_pad_inner_dim)

    def _multiplies_in_float8(self, linear: Linear) -> bool:
        if self.out_of_float8 is None or linear.conv1d or linear.name in self.out_of_float8:
            return False
        return converts(linear.in_features, linear.out_features)

    def router(self, name: str, x: Tensor, *, in_float32: bool = False) -> Tensor:
        """The scores of all experts: a product with a bare matrix, to which PEFT adds B @ A if it is adapted.

        Source of the sum: peft 0.21, tuners/lora/layer.py, ``ParamWrapper._activate_lora``, ``_LoraParameterProxy``.
        """
        stack = self.stacks[name]
        return self.within(
            stack.weight.key, x, lambda x: self._scores(stack, x, in_float32=in_float32)
        )

    def _scores(self, stack: Loaded, x: Tensor, *, in_float32: bool) -> Tensor:
        tape = self.tape
        hidden, experts = stack.module.in_features, stack.module.out_features
        weight: Tensor = stack.weight
        if stack.lora_a is not None and stack.lora_b is not None and self.adapters_on:
            product = op.matmul(tape, stack.lora_b, stack.lora_a, weight.elements, "router's B @ A")
            delta = op.cast(tape, op.scale(tape, product), weight.width)
            del product
            weight = op.add(tape, weight, delta)
            del delta
        if (
            in_float32
        ):  # `F.linear(hidden_states.type(torch.float32), self.weight.type(torch.float32))`
            source, weight = x, op.cast(tape, weight, 4)
            return op.linear(
                tape, op.cast(tape, source, 4), weight, stack.bias, hidden, experts, "router"
            )
        return op.linear(tape, x, weight, stack.bias, hidden, experts, "router")

    def factors(self, name: str) -> Factors | None:
        """What PEFT prepares when a wrapped stack is called: the factors, after one product that checks shapes.

        Source: peft 0.21, tuners/lora/layer.py, ``ParamWrapper.get_delta_factors``; torch 2.13,
        nn/utils/parametrize.py, ``ParametrizationList.__init__`` (without ``unsafe`` it computes the weight once).
        """
        tape, stack = self.tape, self.stacks[name]
        if stack.lora_a is None or stack.lora_b is None or not self.adapters_on:
            return None
        width = stack.weight.width
        ready = Factors(op.cast(tape, stack.lora_b, width), op.cast(tape, stack.lora_a, width))
        op.folded(tape, stack.weight, *ready)
        return ready

    def folded(self, name: str, factors: Factors | None) -> Tensor:
        """The stack that the experts use: the weight itself, or a new stack with every expert's B @ A added."""
        weight = self.stacks[name].weight
        return weight if factors is None else op.folded(self.tape, weight, *factors)

    def expert_bias(self, name: str, experts: Tensor, elements: int) -> Tensor | None:
        """The expert's bias for every row, if the stack has biases."""
        bias = self.stacks[name].bias
        if bias is None:
            return None
        return op.gather(self.tape, bias, experts, elements, "biases by expert")

    def activation(self, x: Tensor) -> Tensor:
        """The MLP's activation, with its parameters if any."""
        return self.within(ACTIVATION, x, self._activation)

    def _activation(self, x: Tensor) -> Tensor:
        if self.kernels.relu_squared and self.model.hidden_act == "relu2":
            return op.elementwise(self.tape, x, "relu2")
        return activation(self.tape, x, self.model.hidden_act, self.norms.get(ACTIVATION, ()))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **overrides: bool) -> Tensor:
        """Attention with this setup's kernel and this layer's mask."""
        shape = self.attention_shape(**overrides)
        out, weights = attention(self.tape, q, k, v, self.mask, shape)
        self.hold(weights)
        return out

    def hold(self, weights: Tensor | None) -> None:
        """Keep eager attention's weights until the layer has returned."""
        if not self.is_replay:
            self.weights = weights

    def attention_shape(self, **overrides: bool) -> AttentionShape:
        """Attention's sizes and options for this layer."""
        model, setup = self.model, self.setup
        if self.kernels.rotary:  # queries and keys are rotated in place
            overrides["head_major"] = self.kernels.heads_first and self.rotary is None
        return AttentionShape(
            batch=setup.batch.per_device_train_batch_size,
            length=setup.batch.max_length,
            heads=model.num_attention_heads,
            key_value_heads=model.num_key_value_heads,
            head_dim=model.head_dim,
            value_head_dim=model.v_head_dim or model.head_dim,
            implementation=setup.computation.attn_implementation,
            dropout=model.attn_pdrop,
            softcap=model.attn_logit_softcapping,
            softmax_float32=self.softmax_float32,
            padded=setup.batch.padded,
            upcast=model.reorder_and_upcast_attn,
            **overrides,
        )

    def by_heads(self, x: Tensor) -> Tensor:
        """Queries or keys as they are rotated, head by head. So lie their gradients, which no view makes rows again.

        Source: torch 2.13, autograd of ``view`` (``reshape`` of the gradient); transformers 5.23,
        models/llama/modeling_llama.py, ``q_proj(hidden_states).view(hidden_shape).transpose(1, 2)``.
        """
        is_rotated = self.rotary_tables is not None and self.rotary is Rotary.HALVES
        if not is_rotated or self.kernels.rotary:
            return x
        return op.viewed(self.tape, x, copies_gradient=True)

    def values_by_heads(self, x: Tensor) -> Tensor:
        """Values as eager attention multiplies them: their gradient lies head by head, too.

        Source: as ``by_heads``.
        """
        if not self.setup.computation.attn_implementation.keeps_scores:
            return x
        several = self.model.num_key_value_heads > 1
        return op.viewed(self.tape, x, copies_gradient=several)

    def rotate(
        self, q: Tensor, k: Tensor, parts: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rotary position embedding of queries and keys, if the layer has one; ``parts`` collects the rotated parts."""
        if self.rotary_tables is None or self.rotary is None:
            return q, k
        model = self.model
        if self.kernels.rotary:
            width, is_wide = q.width, self.rotary is Rotary.FLOAT32_HALVES
            if is_wide:
                q, k = op.cast(self.tape, q, 4), op.cast(self.tape, k, 4)
            q, k = fused.rotate(
                self.tape,
                q,
                k,
                self.rotary_tables,
                copies=self.kernels.heads_first,
                copies_gradients=self.setup.computation.attn_implementation.keeps_scores,
            )
            return (
                (op.cast(self.tape, q, width), op.cast(self.tape, k, width)) if is_wide else (q, k)
            )
        return rotate(
            self.tape,
            q,
            k,
            self.rotary_tables,
            self.rotary,
            share=model.partial_rotary_factor,
            head_dim=model.head_dim,
            parts=parts,
        )


def is_packed(owned: Owned, adapters: Adapters) -> bool:
    """Whether this is the weight of a quantised linear (derived, from ``is_quantized``)."""
    weight = not owned.is_adapter and len(owned.shape) > 1
    return weight and isinstance(owned.module, Linear) and is_quantized(owned.module, adapters)
