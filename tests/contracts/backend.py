"""The backend contract: every op as a case with a float64 oracle, for any backend. Knows no concrete one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dcnr_app.engine.backend import AdamWStep, Array, Backend
from tests.contracts import backend_oracles as oracles
from tests.contracts.backend_case import OpCase, Oracle, Run

STEP = AdamWStep(
    learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-3, weight_decay=0.1, t=3, clip_coefficient=0.5
)
SCALE = 0.3
EPS = 1e-5
BASE = 10_000.0


def _linear_cases() -> list[OpCase]:
    def backward(b: Backend, x: Array, w: Array, dy: Array) -> Sequence[Array]:
        dx, dw, db = b.linear_backward(x, w, dy, has_bias=True)
        return dx, dw, db

    cases = []
    for n, i, o in ((1, 3, 5), (3, 7, 1), (2, 1, 4), (257, 17, 9), (513, 33, 131), (300, 64, 300)):
        forward_shapes, backward_shapes = ((n, i), (o, i), (o,)), ((n, i), (o, i), (n, o))
        cases += [
            OpCase(
                f"linear_forward {n} {i} {o}",
                forward_shapes,
                lambda b, x, w, c: (b.linear_forward(x, w, c),),
                lambda x, w, c: (np.einsum("ni,oi->no", x, w) + c,),
            ),
            OpCase(
                f"linear_forward without bias {n} {i} {o}",
                forward_shapes[:2],
                lambda b, x, w: (b.linear_forward(x, w, None),),
                lambda x, w: (np.einsum("ni,oi->no", x, w),),
            ),
            OpCase(
                f"linear_backward {n} {i} {o}",
                backward_shapes,
                backward,
                lambda x, w, dy: (
                    np.einsum("no,oi->ni", dy, w),
                    np.einsum("no,ni->oi", dy, x),
                    np.einsum("no->o", dy),
                ),
            ),
        ]
    for a, b in (((1, 4), (4, 3)), ((259, 5), (5, 7)), ((3, 2, 9, 5), (3, 2, 5, 8)), ((5, 1, 6), (5, 6, 1))):
        cases.append(
            OpCase(
                f"matmul {a} {b}",
                (a, b),
                lambda b_, x, y: (b_.matmul(x, y),),
                lambda x, y: (np.einsum("...mk,...kn->...mn", x, y),),
            )
        )
    return cases


def _attention_cases() -> list[OpCase]:
    def backward(b: Backend, q: Array, k: Array, v: Array, dout: Array) -> Sequence[Array]:
        out, logsumexp = b.attention_forward(q, k, v, SCALE)
        return b.attention_backward(q, k, v, out, logsumexp, dout, SCALE)

    cases = []
    for shape in (
        (1, 1, 1, 4),
        (2, 3, 5, 4),
        (1, 2, 64, 8),
        (2, 1, 65, 6),
        (1, 2, 130, 3),
        (9, 4, 66, 3),
        (1, 40, 66, 2),
    ):
        cases += [
            OpCase(
                f"attention_forward {shape}",
                (shape,) * 3,
                lambda b, q, k, v: b.attention_forward(q, k, v, SCALE),
                lambda q, k, v: oracles.attention(q, k, v, SCALE),
            ),
            OpCase(
                f"attention_backward {shape}",
                (shape,) * 4,
                backward,
                lambda q, k, v, dout: oracles.attention_gradients(q, k, v, dout, SCALE),
            ),
        ]
    for shape, first, inverse in (
        ((2, 3, 7, 6), 0, False),
        ((1, 1, 1, 2), 9, False),
        ((2, 2, 5, 4), 3, True),
    ):
        cases.append(
            OpCase(
                f"rope {shape} {first} {inverse}",
                (shape,),
                lambda b, x, first=first, inverse=inverse: (b.rope(x, BASE, first, inverse=inverse),),
                lambda x, first=first, inverse=inverse: (oracles.rope(x, BASE, first, inverse=inverse),),
            )
        )
    return cases


def _rowwise_cases() -> list[OpCase]:
    def layernorm_backward(b: Backend, x: Array, gain: Array, dy: Array) -> Sequence[Array]:
        _, saved = b.layernorm_forward(x, gain, None, EPS)
        dx, dgain, dbias = b.layernorm_backward(x, gain, saved, dy, has_bias=True)
        return dx, dgain, dbias

    def cross_entropy_backward(b: Backend, logits: Array, targets: Array) -> Sequence[Array]:
        _, logsumexp = b.cross_entropy_forward(logits, targets)
        dloss = b.full((), 0.25, "float64" if b.dtype_of(logits) == "float64" else "float32")
        return (b.cross_entropy_backward(logits, targets, logsumexp, dloss),)

    cases = []
    for n, d in ((1, 5), (2051, 3), (300, 600), (2, 1000)):
        cases += [
            OpCase(
                f"layernorm_forward {n} {d}",
                ((n, d), (d,), (d,)),
                lambda b, x, g, c: (b.layernorm_forward(x, g, c, EPS)[0],),
                lambda x, g, c: (oracles.layernorm(x, g, c, EPS),),
            ),
            OpCase(
                f"layernorm_backward {n} {d}",
                ((n, d), (d,), (n, d)),
                layernorm_backward,
                lambda x, g, dy: oracles.layernorm_gradients(x, g, dy, EPS),
            ),
            OpCase(
                f"cross_entropy_forward {n} {d}",
                ((n, d),),
                lambda b, x, t: b.cross_entropy_forward(x, t),
                oracles.cross_entropy,
                ids=(((n,), -1, d),),
            ),
            OpCase(
                f"cross_entropy_backward {n} {d}",
                ((n, d),),
                cross_entropy_backward,
                lambda x, t: (oracles.cross_entropy_gradient(x, t, 0.25),),
                ids=(((n,), -1, d),),
            ),
            OpCase(
                f"softmax {n} {d}",
                ((n, 1, d),),
                lambda b, x: (b.softmax(x),),
                lambda x: (np.exp(x) / np.exp(x).sum(-1, keepdims=True),),
            ),
        ]
    return cases


def _gelu_cases() -> list[OpCase]:
    cases = []
    for shape in ((1,), (3, 5, 7), (400, 400)):
        cases += [
            OpCase(
                f"gelu_forward {shape}",
                (shape,),
                lambda b, x: (b.gelu_forward(x),),
                lambda x: (oracles.gelu(x),),
            ),
            OpCase(
                f"gelu_backward {shape}",
                (shape,) * 2,
                lambda b, x, dy: (b.gelu_backward(x, dy),),
                lambda x, dy: (oracles.gelu_gradient(x, dy),),
            ),
        ]
    return cases


def _plain_cases() -> list[OpCase]:
    shape = (5, 7, 3)
    both: tuple[tuple[str, Run, Oracle], ...] = (
        ("sum of all", lambda b, x: (b.sum(x, None),), lambda x: (x.sum(),)),
        ("sum", lambda b, x: (b.sum(x, 1, keepdims=True),), lambda x: (x.sum(1, keepdims=True),)),
        ("max", lambda b, x: (b.max(x, -1),), lambda x: (x.max(-1),)),
        ("exp", lambda b, x: (b.exp(x),), lambda x: (np.exp(x),)),
        ("log", lambda b, x: (b.log(x),), lambda x: (np.log(x),)),
        ("sqrt", lambda b, x: (b.sqrt(x),), lambda x: (np.sqrt(x),)),
        ("tanh", lambda b, x: (b.tanh(x),), lambda x: (np.tanh(x),)),
        ("operators", lambda b, x: (-x + x * x - x / 2.0,), lambda x: (-x + x * x - x / 2.0,)),
        ("maximum of a number", lambda b, x: (b.maximum(x, 0.5),), lambda x: (np.maximum(x, 0.5),)),
        ("greater", lambda b, x: (b.greater(x, 0.5),), lambda x: (x > 0.5,)),
        ("equal", lambda b, x: (b.equal(x, x),), lambda x: (x == x,)),
        ("where", lambda b, x: (b.where(b.greater(x, 0.5), x, 0.0),), lambda x: (np.where(x > 0.5, x, 0),)),
        ("reshape", lambda b, x: (b.reshape(x, (-1, 21)),), lambda x: (x.reshape(5, 21),)),
        ("transpose", lambda b, x: (b.transpose(x, (2, 0, 1)),), lambda x: (np.moveaxis(x, 2, 0),)),
        (
            "reshape of a transpose",
            lambda b, x: (b.reshape(b.transpose(x, (1, 0, 2)), (35, 3)),),
            lambda x: (np.moveaxis(x, 1, 0).reshape(35, 3),),
        ),
        ("slice_axis", lambda b, x: (b.slice_axis(x, 1, 2, 5),), lambda x: (x[:, 2:5],)),
        ("concat", lambda b, x: (b.concat([x, x], 1),), lambda x: (np.hstack((x, x)),)),
        ("copy", lambda b, x: (b.copy(x),), lambda x: (x,)),
        (
            "contiguous",
            lambda b, x: (b.contiguous(b.transpose(x, (2, 1, 0))),),
            lambda x: (np.moveaxis(x, 0, 2).swapaxes(0, 1),),
        ),
    )
    return [OpCase(name, (shape,), run, oracle, is_positive=True) for name, run, oracle in both]


def _indexed_cases() -> list[OpCase]:
    cases = [
        OpCase(
            "gather_rows",
            ((11, 4),),
            lambda b, table, ids: (b.gather_rows(table, ids),),
            lambda table, ids: (np.array([[table[j] for j in row] for row in ids]),),
            ids=(((3, 6), 0, 11),),
        )
    ]
    for n, d, n_rows in ((40, 3, 7), (1, 1, 2), (300, 5, 2)):
        cases.append(
            OpCase(
                f"scatter_add_rows {n} {d} {n_rows}",
                ((n, d),),
                lambda b, rows, ids, n_rows=n_rows: (b.scatter_add_rows(ids, rows, n_rows),),
                lambda rows, ids, n_rows=n_rows: (oracles.scatter_add(ids, rows, n_rows),),
                ids=(((n,), 0, n_rows),),
            )
        )
    return cases


def _update_cases() -> list[OpCase]:
    def unscale(b: Backend, gradient: Array) -> Sequence[Array]:
        facts = b.unscale(gradient, 8.0)
        assert facts.is_finite
        return facts.gradient, b.from_host(np.asarray(facts.squared_norm))

    settings = STEP._asdict()
    cases = []
    for shape in ((1,), (7, 5), (400, 400)):
        cases += [
            OpCase(
                f"unscale {shape}", (shape,), unscale, lambda g: (g / 8, ((g / 8) ** 2).sum()), gives_up=True
            ),
            OpCase(
                f"adamw {shape}",
                (shape,) * 4,
                lambda b, w, g, m, v: b.adamw(w, g, m, v, STEP),
                lambda w, g, m, v: oracles.adamw(w, g, m, v, **settings),
                is_positive=True,
                gives_up=True,
            ),
            OpCase(
                f"sgd {shape}",
                (shape,) * 3,
                lambda b, w, g, u: b.sgd(w, g, u, STEP),
                lambda w, g, u: oracles.sgd(w, g, u, **settings),
                gives_up=True,
            ),
            OpCase(
                f"accumulate {shape}",
                (shape,) * 2,
                lambda b, total, x: (b.accumulate(total, x),),
                lambda total, x: (total + x,),
                gives_up=True,
            ),
        ]
    return cases


CASES: tuple[OpCase, ...] = (
    *_linear_cases(),
    *_attention_cases(),
    *_rowwise_cases(),
    *_gelu_cases(),
    *_plain_cases(),
    *_indexed_cases(),
    *_update_cases(),
)
