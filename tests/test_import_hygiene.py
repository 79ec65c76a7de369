"""What importing costs: the graph of VNodes needs no heavy library, and `--help` not even arrays."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "mlx", "cupy", "numba", "torch", "textual", "litestar", "graphene", "aiohttp", "boto3", "grpc",
    "zeroconf", "cryptography", "tokenizers", "tiktoken", "safetensors", "sqlite3", "rich", "psutil",
}  # fmt: skip


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after this code."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True, timeout=30
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "module",
    [
        "dcnr_app.nodes",
        "dcnr_app.nodes.registry",
        "dcnr_app.nodes.graph.load",
        "dcnr_app.cluster.coordinator",
        "dcnr_app.cluster.worker",
    ],
)
def test_pure_modules_load_no_heavy_library(module: str) -> None:
    assert loaded_after(f"import {module}") & HEAVY == set()


def test_every_vnode_type_can_be_loaded_without_a_heavy_library() -> None:
    assert loaded_after("from dcnr_app.nodes.registry import load_registry; load_registry()") & HEAVY == set()


def test_pure_cores_load_no_array_library() -> None:
    code = "import dcnr_app.cluster.coordinator, dcnr_app.cluster.worker, dcnr_app.nodes.graph.load"
    assert "numpy" not in loaded_after(code)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["no-such-command"]])
def test_the_command_line_answers_without_numpy_grpc_or_rich(arguments: list[str]) -> None:
    code = f"from dcnr_app.cli.main import run; run({arguments!r})"
    assert loaded_after(code) & (HEAVY | {"numpy", "asyncio"}) == set()
