"""What every VNode type must hold to, as functions that a test calls per example. Knows no formula.

A type joins by one row in `EXAMPLES`; a registered type without a row fails `test_contract.py`. Inputs stay
0.2 away from zero, so that no finite difference steps over a kink.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  # gives NumPy the name bfloat16
import numpy as np

from dcnr_app.engine.backend import Backend, DType
from dcnr_app.nodes.add import Add
from dcnr_app.nodes.attention import Attention
from dcnr_app.nodes.attention_head import AttentionHead
from dcnr_app.nodes.broadcast import Broadcast
from dcnr_app.nodes.concat import Concat
from dcnr_app.nodes.contract import Backward, Context, Forward, TensorSpec, VNode
from dcnr_app.nodes.cross_entropy import CrossEntropy
from dcnr_app.nodes.dropout import Dropout
from dcnr_app.nodes.embedder import Embedder
from dcnr_app.nodes.gelu import Gelu
from dcnr_app.nodes.layernorm import LayerNorm
from dcnr_app.nodes.linear import Linear
from dcnr_app.nodes.mask import Mask
from dcnr_app.nodes.mse import Mse
from dcnr_app.nodes.multiply import Multiply
from dcnr_app.nodes.position import Position
from dcnr_app.nodes.relu import Relu
from dcnr_app.nodes.reshape import Reshape
from dcnr_app.nodes.rope import Rope
from dcnr_app.nodes.split import Split
from dcnr_app.nodes.stack import Stack
from dcnr_app.nodes.tokenizer import Tokenizer

HostArray = np.ndarray[Any, Any]
KEY = (11, 3, 1, 77)
STEP = 1e-5
TOLERANCE = 1e-6


class Integers(NamedTuple):
    """An int32 input with values low..high-1."""

    shape: tuple[int, ...]
    low: int
    high: int


class Example(NamedTuple):
    """One VNode with its inputs: a tuple is the shape of a float input."""

    vnode: VNode
    ins: tuple[tuple[int, ...] | Integers, ...]


EXAMPLES: Mapping[str, Example] = {
    "add": Example(Add(), ((2, 3), (2, 3), (2, 3))),
    "attention": Example(Attention(n_dim=5, n_heads=2, n_head_dim=4, rope_base=100.0), ((2, 6, 5),)),
    # Without rotation a key bias shifts all scores of a row alike: its gradient is zero, nothing to check.
    "attention-plain": Example(Attention(n_dim=5, n_heads=2, n_head_dim=3, has_bias=False), ((2, 6, 5),)),
    "attention_head": Example(AttentionHead(n_dim=5, n_head_dim=4, rope_base=100.0), ((2, 6, 5),)),
    "attention_head-plain": Example(AttentionHead(n_dim=5, n_head_dim=3, has_bias=False), ((2, 6, 5),)),
    "broadcast": Example(Broadcast(n_outputs=3), ((2, 3),)),
    "concat": Example(Concat(axis=1), ((2, 3, 2), (2, 1, 2), (2, 4, 2))),
    "cross_entropy": Example(CrossEntropy(), ((2, 4, 7), Integers((2, 4), -1, 7))),
    "dropout": Example(Dropout(rate=0.3), ((4, 5),)),
    "embedder": Example(Embedder(n_tokens=6, n_dim=4), (Integers((2, 5), 0, 6),)),
    "gelu": Example(Gelu(), ((3, 5),)),
    "layernorm": Example(LayerNorm(n_dim=6), ((2, 3, 6),)),
    "layernorm-plain": Example(LayerNorm(n_dim=6, has_bias=False), ((4, 6),)),
    "linear": Example(Linear(n_in=4, n_out=3), ((2, 3, 4),)),
    "linear-plain": Example(Linear(n_in=4, n_out=3, has_bias=False), ((5, 4),)),
    "mask-causal": Example(Mask(kind="causal", fill=-2.0), ((2, 4, 5),)),
    "mask-padding": Example(Mask(kind="padding"), ((2, 4, 3), Integers((2, 4), 0, 3))),
    "mse": Example(Mse(), ((3, 4), (3, 4))),
    "multiply": Example(Multiply(), ((3, 4), (3, 4))),
    "position": Example(Position(n_positions=5, n_dim=3), ((2, 4, 3),)),
    "relu": Example(Relu(), ((4, 5),)),
    "reshape": Example(Reshape(shape=(3, -1)), ((2, 2, 6),)),
    "rope": Example(Rope(n_heads=2, base=100.0), ((2, 5, 8),)),
    "split": Example(Split(n_outputs=3), ((2, 6),)),
    "stack": Example(Stack(), ((2, 3, 2), (2, 3, 2), (2, 3, 2))),
    "tokenizer": Example(Tokenizer(), (Integers((2, 4), 0, 9),)),
}


class Case(NamedTuple):
    """An example with host values: parameters, inputs, and one gradient per output."""

    vnode: VNode
    params: dict[str, HostArray]
    ins: tuple[HostArray, ...]
    grads: tuple[HostArray, ...]


Run = Callable[[Context, Mapping[str, Any], Mapping[str, Any], tuple[Any, ...]], Backward]


def context(backend: Backend, **changes: Any) -> Context:
    """A training context with a fixed key."""
    return Context(**{"backend": backend, "key": KEY, **changes})


def case_of(name: str, dtype: str = "float64") -> Case:
    """The example's values in `dtype`: the same numbers in every process and, up to rounding, every dtype."""
    example = EXAMPLES[name]
    random = np.random.default_rng(zlib.crc32(name.encode()))
    params = {
        own_name: away_from_zero(random, spec.shape).astype(dtype)
        for own_name, spec in example.vnode.params().items()
    }
    ins = tuple(
        random.integers(entry.low, entry.high, entry.shape, dtype=np.int32)
        if isinstance(entry, Integers)
        else away_from_zero(random, entry).astype(dtype)
        for entry in example.ins
    )
    outs = example.vnode.shapes(tuple(spec_of(array) for array in ins))
    grads = tuple(away_from_zero(random, out.shape).astype(dtype) for out in outs)
    return Case(example.vnode, params, ins, grads)


def away_from_zero(random: np.random.Generator, shape: tuple[int, ...]) -> HostArray:
    """float64 values of both signs with magnitudes in 0.2 .. 1.2."""
    sign = np.where(random.random(shape) < 0.5, -1.0, 1.0)
    return np.asarray(sign * random.uniform(0.2, 1.2, shape))


def spec_of(array: HostArray) -> TensorSpec:
    """The spec of a host array."""
    dtype: DType = str(array.dtype)  # type: ignore[assignment]  # NumPy's names are those of DType
    return TensorSpec(tuple(array.shape), dtype)


def to_device(backend: Backend, host: Mapping[str, HostArray]) -> dict[str, Any]:
    """Device arrays by name."""
    return {name: backend.from_host(array) for name, array in host.items()}


def run_forward(backend: Backend, case: Case, **changes: Any) -> Forward:
    """The case's forward."""
    ins = tuple(backend.from_host(array) for array in case.ins)
    return case.vnode.forward(context(backend, **changes), to_device(backend, case.params), ins)


def run_both(backend: Backend, case: Case, run: Run | None = None) -> tuple[Forward, Backward]:
    """Forward, then backward (or `run` in its place)."""
    forward = run_forward(backend, case)
    grads = tuple(backend.from_host(array) for array in case.grads)
    backward = run or case.vnode.backward
    return forward, backward(context(backend), to_device(backend, case.params), forward.saved, grads)


def gradient_targets(name: str) -> tuple[str, ...]:
    """What the example has gradients for: `param:<name>` and `input:<port>` of float inputs."""
    example = EXAMPLES[name]
    if not example.vnode.is_differentiable:
        return ()
    floats = [index for index, entry in enumerate(example.ins) if not isinstance(entry, Integers)]
    return (*(f"param:{own}" for own in example.vnode.params()), *(f"input:{index}" for index in floats))


def check_gradient(backend: Backend, name: str, target: str, run: Run | None = None) -> None:
    """Directional derivative along a random direction against central differences, in float64.

    With F = Σ <out, grad>:  <dF/dtarget, u> = (F(+hu) − F(−hu)) / 2h + O(h²).
    Raises AssertionError on a relative error above 1e-6.
    """
    case = case_of(name)
    kind, _, which = target.partition(":")
    direction = away_from_zero(
        np.random.default_rng(zlib.crc32(target.encode())),
        (case.params[which] if kind == "param" else case.ins[int(which)]).shape,
    )
    _, (in_grads, param_grads) = run_both(backend, case, run)
    gradient = param_grads[which] if kind == "param" else in_grads[int(which)]
    analytic = float(np.sum(backend.to_host(gradient) * direction))
    ahead = _objective(backend, _moved(case, kind, which, STEP * direction))
    behind = _objective(backend, _moved(case, kind, which, -STEP * direction))
    numeric = (ahead - behind) / (2 * STEP)
    assert abs(numeric) > 1e-3, f"{name} {target}: the example says nothing, its derivative is {numeric}"
    error = abs(analytic - numeric) / abs(numeric)
    assert error <= TOLERANCE, f"{name} {target}: backward says {analytic}, differences say {numeric}"


def scaled_backward(vnode: VNode, target: str, factor: float) -> Run:
    """The type's backward with one gradient scaled: a bug that the gradient check must find."""
    kind, _, which = target.partition(":")

    def run(ctx: Context, params: Any, saved: Any, grads: Any) -> Backward:
        in_grads, param_grads = vnode.backward(ctx, params, saved, grads)
        if kind == "param":
            return Backward(in_grads, {**param_grads, which: param_grads[which] * factor})
        changed = [g * factor if index == int(which) else g for index, g in enumerate(in_grads)]
        return Backward(tuple(changed), param_grads)

    return run


def _moved(case: Case, kind: str, which: str, shift: HostArray) -> Case:
    if kind == "param":
        return case._replace(params={**case.params, which: case.params[which] + shift})
    changed = [x + shift if index == int(which) else x for index, x in enumerate(case.ins)]
    return case._replace(ins=tuple(changed))


def _objective(backend: Backend, case: Case) -> float:
    outs = run_forward(backend, case).outs
    return float(sum(np.sum(backend.to_host(out) * grad) for out, grad in zip(outs, case.grads, strict=True)))
