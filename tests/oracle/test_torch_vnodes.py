"""VNodes in float64 against PyTorch's functional layer and its autograd.

Legend: B batch · T tokens · D width · H heads · K head size · V vocabulary.
"""

# ruff: noqa: E402  # PyTorch is looked for before what needs it is imported

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'dcnr-app[oracle]'")

from torch.nn import functional

from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.nodes.attention import Attention
from dcnr_app.nodes.contract import VNode
from dcnr_app.nodes.cross_entropy import CrossEntropy
from dcnr_app.nodes.gelu import Gelu
from dcnr_app.nodes.layernorm import LayerNorm
from tests.contracts.vnode import Case, away_from_zero, run_both, spec_of

pytestmark = pytest.mark.oracle

TOLERANCE = 1e-10
N_TOKENS = 150  # three query tiles, the last one not full
Tensors = Mapping[str, torch.Tensor]


def _attention(vnode: Attention, p: Tensors, x_BTD: torch.Tensor) -> torch.Tensor:
    n_batch, n_tokens, _ = x_BTD.shape

    def project(name: str) -> torch.Tensor:
        y = functional.linear(x_BTD, p[f"{name}_weight"], p.get(f"{name}_bias"))
        y_BHTK = y.view(n_batch, n_tokens, vnode.n_heads, vnode.n_head_dim).transpose(1, 2)
        return _rotate(y_BHTK, vnode.rope_base) if vnode.rope_base and name != "value" else y_BHTK

    q, k, v = (project(name) for name in ("query", "key", "value"))
    scores = q @ k.transpose(-1, -2) / vnode.n_head_dim**0.5
    is_later = torch.ones(n_tokens, n_tokens, dtype=torch.bool).triu(1)
    out = torch.softmax(scores.masked_fill(is_later, float("-inf")), -1) @ v
    return out.transpose(1, 2).reshape(n_batch, n_tokens, -1)


def _rotate(x_BHTK: torch.Tensor, base: float) -> torch.Tensor:
    """Pairs (i, i + K/2) as complex numbers, turned by the angle p base^(-2i/K)."""
    n_tokens, size = x_BHTK.shape[-2:]
    a, b = x_BHTK.chunk(2, -1)
    rates = base ** (-2 * torch.arange(size // 2, dtype=torch.float64) / size)
    angles = torch.arange(n_tokens, dtype=torch.float64)[:, None] * rates
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


def _layernorm(vnode: LayerNorm, p: Tensors, x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (vnode.n_dim,), p["gain"], p.get("bias"), vnode.eps)


def _gelu(_: Gelu, __: Tensors, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def _cross_entropy(_: CrossEntropy, __: Tensors, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1, reduction="sum"
    )


class Compared(NamedTuple):
    """A VNode, the shapes of its float inputs, how widely they spread, and PyTorch's word for it."""

    vnode: VNode
    shape: tuple[int, ...]
    spread: float
    on_torch: Callable[..., torch.Tensor]


COMPARED = {
    "attention": Compared(
        Attention(n_dim=12, n_heads=3, n_head_dim=8, rope_base=10000.0), (2, N_TOKENS, 12), 1.0, _attention
    ),
    "attention without rotation": Compared(
        Attention(n_dim=10, n_heads=2, n_head_dim=5, has_bias=False), (2, N_TOKENS, 10), 1.0, _attention
    ),
    "layernorm": Compared(LayerNorm(n_dim=33), (4, 50, 33), 3.0, _layernorm),
    "layernorm without bias": Compared(
        LayerNorm(n_dim=16, eps=0.1, has_bias=False), (7, 16), 0.3, _layernorm
    ),
    "gelu": Compared(Gelu(), (5, 400), 4.0, _gelu),
    "cross_entropy": Compared(CrossEntropy(), (3, 40, 61), 5.0, _cross_entropy),
}


def _case(name: str) -> Case:
    compared = COMPARED[name]
    generator = np.random.default_rng(len(name))
    params = {own: away_from_zero(generator, spec.shape) for own, spec in compared.vnode.params().items()}
    ins = [compared.spread * generator.standard_normal(compared.shape)]
    if isinstance(compared.vnode, CrossEntropy):
        ins.append(generator.integers(-1, compared.shape[-1], compared.shape[:-1], dtype=np.int32))
    outs = compared.vnode.shapes(tuple(spec_of(array) for array in ins))
    grads = tuple(np.asarray(generator.standard_normal(out.shape)) for out in outs)
    return Case(compared.vnode, params, tuple(ins), grads)


def _relative_error(ours: np.ndarray, theirs: torch.Tensor | None) -> float:
    assert theirs is not None
    expected = theirs.detach().numpy()
    assert ours.dtype == np.float64
    assert ours.shape == expected.shape
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", COMPARED)
def test_vnode_and_its_gradients_equal_those_of_pytorch_in_float64(name: str) -> None:
    case = _case(name)
    backend = ReferenceBackend(threads=1)
    forward, backward = run_both(backend, case)
    params = {own: torch.from_numpy(value).requires_grad_() for own, value in case.params.items()}
    x = torch.from_numpy(case.ins[0]).requires_grad_()
    out = COMPARED[name].on_torch(case.vnode, params, x, *(torch.from_numpy(each) for each in case.ins[1:]))
    out.backward(torch.from_numpy(case.grads[0]))
    errors = {
        "out": _relative_error(backend.to_host(forward.outs[0]), out),
        "dx": _relative_error(backend.to_host(backward.in_grads[0]), x.grad),
        **{f"d{own}": _relative_error(backward.param_grads[own], p.grad) for own, p in params.items()},
    }
    backend.close()
    assert not {what: error for what, error in errors.items() if not error <= TOLERANCE}
