"""What the README shows works: its network loads and its VNode type keeps the contract."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dcnr_app.cli.main import COMMANDS
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.nodes.contract import Context
from dcnr_app.nodes.graph.load import load_network
from dcnr_app.nodes.registry import load_registry

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The first code block in a language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_network_of_the_readme_loads() -> None:
    loaded = load_network(block("yaml"), file="my-gpt.yaml", registry=load_registry())
    assert (loaded.context, loaded.vocabulary) == (64, 512)


def test_vnode_type_of_the_readme_multiplies_forward_and_backward() -> None:
    scope: dict[str, object] = {"__name__": "scale"}
    exec(compile(block("python"), "README.md", "exec", dont_inherit=True), scope)  # noqa: S102 - the README is ours
    scale = scope["Scale"](factor=2.5)  # type: ignore[operator]
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    ctx = Context(backend=ReferenceBackend())
    assert np.array_equal(scale.forward(ctx, {}, (x,)).outs[0], 2.5 * x)
    assert np.array_equal(scale.backward(ctx, {}, {}, (x,)).in_grads[0], 2.5 * x)


def test_every_command_and_vnode_type_is_in_the_readme() -> None:
    missing = [name for name in (*COMMANDS, *load_registry().names()) if f"`{name}" not in README]
    assert not missing


def test_pictures_and_notes_that_the_readme_links_are_there() -> None:
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / target).is_file(), target
