"""The peer of the training benchmark: the same network in PyTorch eager, as a careful user writes it.

Knows nothing of this project but the work file's layout, so that any Python with PyTorch can run it.

Legend: B sequences · T tokens · D width · H heads · K head size · C = H·K · V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

WARM_UP_STEPS = 3
"""Untimed first steps of both sides: allocators, thread pools and caches settle."""
PROJECTIONS = ("query", "key", "value")
Parameters = dict[str, torch.nn.Parameter]


class Shape(NamedTuple):
    """What of the network is not in the shapes of its parameters."""

    n_layers: int
    n_heads: int
    rope_base: float = 10000.0
    eps: float = 1e-5


class Hyper(NamedTuple):
    """AdamW's settings and the clip norm; `decaying` names the parameters that weight decay applies to."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float
    decaying: frozenset[str]


def make_parameters(weights: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float32) -> Parameters:
    """Parameters by our names, but the three projections of an attention joined into one matrix `qkv`."""
    tensors = {name: torch.from_numpy(value).to(dtype) for name, value in weights.items()}
    for name in [name for name in tensors if name.endswith((".query_weight", ".query_bias"))]:
        parts = [tensors.pop(name.replace(".query_", f".{part}_")) for part in PROJECTIONS]
        tensors[name.replace(".query_", ".qkv_")] = torch.cat(parts)
    return {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}


def split_projections(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of the joining: tensors (gradients, say) by our names."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if ".qkv_" not in name:
            found[name] = tensor
            continue
        for part, third in zip(PROJECTIONS, tensor.chunk(3), strict=True):
            found[name.replace(".qkv_", f".{part}_")] = third
    return found


def rotation(n_tokens: int, head_size: int, base: float, dtype: torch.dtype) -> tuple[Any, Any]:
    """cos and sin (T, K/2) of the angles p base^(-2i/K), half-rotation layout (Su et al. 2021)."""
    rates = base ** (-2.0 * torch.arange(head_size // 2, dtype=torch.float64) / head_size)
    angles = torch.outer(torch.arange(n_tokens, dtype=torch.float64), rates)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def loss_sum(p: Parameters, shape: Shape, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Sum over targets that are not -1 of the cross-entropy, of a pre-norm GPT with a tied head."""
    embedding_VD = p["embed.weight"]
    n_batch, n_tokens = tokens_BT.shape
    head_size = embedding_VD.shape[1] // shape.n_heads
    cos_TK, sin_TK = rotation(n_tokens, head_size, shape.rope_base, embedding_VD.dtype)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], p[f"{name}.gain"], p[f"{name}.bias"], shape.eps)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def rotate(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos_TK - b * sin_TK, b * cos_TK + a * sin_TK), -1)

    x_BTD = functional.embedding(tokens_BT, embedding_VD)
    for index in range(shape.n_layers):
        block = f"block/{index}"
        y_BTD = norm(x_BTD, f"{block}/norm_1")
        qkv = functional.linear(y_BTD, p[f"{block}/attention.qkv_weight"], p[f"{block}/attention.qkv_bias"])
        heads = qkv.view(n_batch, n_tokens, 3, shape.n_heads, head_size).permute(2, 0, 3, 1, 4)
        out = functional.scaled_dot_product_attention(
            rotate(heads[0]), rotate(heads[1]), heads[2], is_causal=True
        )
        out_BTD = out.transpose(1, 2).reshape(n_batch, n_tokens, -1)
        x_BTD = x_BTD + linear(out_BTD, f"{block}/project")
        hidden = functional.gelu(linear(norm(x_BTD, f"{block}/norm_2"), f"{block}/up"), approximate="tanh")
        x_BTD = x_BTD + linear(hidden, f"{block}/down")
    logits_NV = functional.linear(norm(x_BTD, "final_norm"), embedding_VD).flatten(0, 1)
    return functional.cross_entropy(logits_NV, targets_BT.flatten(), ignore_index=-1, reduction="sum")


def make_step(
    p: Parameters, shape: Shape, hyper: Hyper, microbatches: int
) -> Callable[[torch.Tensor, torch.Tensor, float], tuple[float, float]]:
    """A function of (tokens, targets, learning rate) that does one step and returns (loss, gradient norm)."""
    groups = [
        {
            "params": [x for name, x in p.items() if name in hyper.decaying],
            "weight_decay": hyper.weight_decay,
        },
        {"params": [x for name, x in p.items() if name not in hyper.decaying], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(hyper.beta1, hyper.beta2), eps=hyper.eps, fused=True)

    def step(tokens_BT: torch.Tensor, targets_BT: torch.Tensor, rate: float) -> tuple[float, float]:
        n_targets = int((targets_BT >= 0).sum())
        total = 0.0
        for tokens, targets in zip(
            tokens_BT.chunk(microbatches), targets_BT.chunk(microbatches), strict=True
        ):
            loss = loss_sum(p, shape, tokens, targets) / n_targets
            loss.backward()
            total += loss.item()
        length = torch.nn.utils.clip_grad_norm_(p.values(), hyper.clip_norm or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total, length.item()

    return step


def peak_bytes() -> int:
    """Most memory that this process has held at once. Not Linux's ru_maxrss: it begins with the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def run(work: Path, microbatches: int, threads: int) -> dict[str, Any]:
    """Train over all batches of a work file; the figures of the steps after the warm-up."""
    torch.set_num_threads(threads)
    with np.load(work) as file:
        facts = json.loads(file["facts"].tobytes())
        weights = {name: file[f"weight:{name}"] for name in facts["parameters"]}
        batches = torch.from_numpy(file["tokens"]).long()
    hyper = Hyper(**{**facts["hyper"], "decaying": frozenset(facts["hyper"]["decaying"])})
    parameters = make_parameters(weights)
    del weights
    step = make_step(parameters, Shape(facts["n_layers"], facts["n_heads"]), hyper, microbatches)
    losses, times_ms = [], []
    for batch_BT, rate in zip(batches, facts["rates"], strict=True):
        begin = time.perf_counter()
        losses.append(step(batch_BT[:, :-1].contiguous(), batch_BT[:, 1:].contiguous(), rate)[0])
        times_ms.append((time.perf_counter() - begin) * 1000.0)
    version = f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    return {
        "losses": losses,
        "step_ms": times_ms[WARM_UP_STEPS:],
        "peak_bytes": peak_bytes(),
        "engine": version,
    }


def main() -> None:
    """Run and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    json.dump(run(arguments.work, arguments.microbatches, arguments.threads), sys.stdout)


if __name__ == "__main__":
    main()
