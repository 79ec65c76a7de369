"""Float64 formulas of the engine's ops, written another way than the engine: full matrices, complex numbers,
complex-step derivatives, loops. Knows no backend."""

from __future__ import annotations

import math

import numpy as np

F = np.ndarray


def causal_weights(q: F, k: F, scale: float) -> F:
    """The whole T x T softmax of each head."""
    n_tokens = q.shape[2]
    scores = np.array([[scale * q[b, h] @ k[b, h].T for h in range(q.shape[1])] for b in range(q.shape[0])])
    scores = scores.reshape(*q.shape[:3], n_tokens)
    scores[..., ~np.tri(n_tokens, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(q: F, k: F, v: F, scale: float) -> tuple[F, F]:
    """Output and logsumexp."""
    n_tokens = q.shape[2]
    logits = np.einsum("bhqd,bhkd->bhqk", q, k) * scale
    logits = np.where(np.tri(n_tokens, dtype=bool), logits, -np.inf)
    logsumexp = np.log(np.exp(logits).sum(-1))
    return np.einsum("bhqk,bhkd->bhqd", causal_weights(q, k, scale), v), logsumexp


def attention_gradients(q: F, k: F, v: F, dout: F, scale: float) -> tuple[F, F, F]:
    """dq, dk, dv through the whole softmax Jacobian of each row."""
    weights = causal_weights(q, k, scale)
    dweights = np.einsum("bhqd,bhkd->bhqk", dout, v)
    jacobian = np.einsum("bhqk,kl->bhqkl", weights, np.eye(weights.shape[-1]))
    jacobian = jacobian - np.einsum("bhqk,bhql->bhqkl", weights, weights)
    dscores = np.einsum("bhqkl,bhql->bhqk", jacobian, dweights) * scale
    return (
        np.einsum("bhqk,bhkd->bhqd", dscores, k),
        np.einsum("bhqk,bhqd->bhkd", dscores, q),
        np.einsum("bhqk,bhqd->bhkd", weights, dout),
    )


def layernorm(x: F, gain: F, bias: F | None, eps: float) -> F:
    """Row by row with NumPy's own mean and variance."""
    rows = [(row - np.mean(row)) / math.sqrt(np.var(row) + eps) * gain for row in x]
    return np.array(rows) + (0.0 if bias is None else bias)


def layernorm_gradients(x: F, gain: F, dy: F, eps: float) -> tuple[F, F, F]:
    """dx by each row's Jacobian (I - 1/D - n nᵀ/D · var/(var + eps)) / std; dgain, dbias by loops."""
    width = x.shape[1]
    dx, dgain = np.zeros_like(x), np.zeros(width)
    for i, row in enumerate(x):
        std = math.sqrt(np.var(row) + eps)
        normal = (row - row.mean()) / std
        jacobian = (np.eye(width) - 1.0 / width - np.outer(normal, normal) / width) / std
        dx[i] = jacobian @ (dy[i] * gain)
        dgain += dy[i] * normal
    return dx, dgain, dy.sum(0)


def gelu(x: F) -> F:
    """The tanh form."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gelu_gradient(x: F, dy: F) -> F:
    """Complex-step derivative: exact to rounding, and no formula of its own (Squire & Trapp 1998)."""
    return dy * gelu(x + 1e-30j).imag / 1e-30


def rope(x: F, base: float, first_position: int, *, inverse: bool) -> F:
    """Multiplication of the complex number a + ib by e^(iθ)."""
    half = x.shape[3] // 2
    angles = np.array(
        [
            [(first_position + t) / base ** (2.0 * i / x.shape[3]) for i in range(half)]
            for t in range(x.shape[2])
        ]
    )
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp((-1j if inverse else 1j) * angles)
    return np.concatenate((turned.real, turned.imag), axis=-1)


def cross_entropy(logits: F, targets: F) -> tuple[F, F]:
    """Σ -log softmax[target], and each row's logsumexp."""
    logsumexp = np.array([math.log(sum(math.exp(value) for value in row)) for row in logits])
    losses = [logsumexp[i] - logits[i, t] for i, t in enumerate(targets) if t >= 0]
    return np.asarray(math.fsum(losses)), logsumexp


def cross_entropy_gradient(logits: F, targets: F, dloss: float) -> F:
    """softmax - one_hot, row by row."""
    out = np.zeros_like(logits)
    for i, target in enumerate(targets):
        if target >= 0:
            weights = np.exp(logits[i]) / np.exp(logits[i]).sum()
            out[i] = (weights - np.eye(logits.shape[1])[target]) * dloss
    return out


def scatter_add(ids: F, rows: F, n_rows: int) -> F:
    """One row after the other."""
    out = np.zeros((n_rows, rows.shape[-1]), rows.dtype)
    for target, row in zip(ids.reshape(-1), rows.reshape(-1, rows.shape[-1]), strict=True):
        out[target] = out[target] + row
    return out


def adamw(w: F, g: F, m: F, v: F, **s: float) -> tuple[F, F, F]:
    """As algorithm 2 of the paper, with the clip coefficient first."""
    gradient = s["clip_coefficient"] * g
    new_m = s["beta1"] * m + (1 - s["beta1"]) * gradient
    new_v = s["beta2"] * v + (1 - s["beta2"]) * gradient**2
    m_hat, v_hat = new_m / (1 - s["beta1"] ** s["t"]), new_v / (1 - s["beta2"] ** s["t"])
    decayed = w - s["learning_rate"] * s["weight_decay"] * w
    return decayed - s["learning_rate"] * m_hat / (np.sqrt(v_hat) + s["eps"]), new_m, new_v


def sgd(w: F, g: F, velocity: F, **s: float) -> tuple[F, F]:
    """Momentum without dampening, decoupled decay."""
    new_velocity = s["beta1"] * velocity + s["clip_coefficient"] * g
    decayed = w - s["learning_rate"] * s["weight_decay"] * w
    return decayed - s["learning_rate"] * new_velocity, new_velocity
