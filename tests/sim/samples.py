"""Tiny networks, settings and batches for simulated clusters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from dcnr_app.cluster.coordinator_state import Assignment
from dcnr_app.cluster.placement import assign
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.routes import outside_references
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.data.source import Microbatch
from dcnr_app.ids import PNodeId, SessionId
from dcnr_app.nodes.graph.load import load_network
from dcnr_app.nodes.graph.network import Network, encode_network
from dcnr_app.nodes.graph.training import Optimizer, Schedule, TrainingSettings
from dcnr_app.nodes.registry import Registry, load_registry

NETWORKS = Path(__file__).parents[2] / "assets" / "networks"
N_CONTEXT, N_VOCABULARY = 8, 16
SESSION = SessionId("simulated")
SETTINGS = TrainingSettings(
    steps=5,
    batch=8,
    microbatches=4,
    seed=11,
    optimizer=Optimizer(learning_rate=2e-2),
    schedule=Schedule(warmup_steps=2),
    validate_every=2,
    checkpoint_every=2,
)


@lru_cache
def registry() -> Registry:
    """All VNode types."""
    return load_registry()


@lru_cache
def tiny(name: str = "tiny-gpt", layers: int = 1, edit: str = "") -> Network:
    """A bundled network, shrunk. `edit`: "untied" gives the head its own weight; "head-owns" renames the
    embedder so that the tied weight's owner is the head's PNode, downstream."""
    text = (NETWORKS / f"{name}.yaml").read_text(encoding="utf-8")
    if edit == "untied":
        text = re.sub(r".*share: \{weight: embed\.weight\}\n", "", text)
    elif edit == "head-owns":
        text = re.sub(r"\bembed\b", "word_embed", text)
    sizes = {"layers": layers, "width": 8, "heads": 2, "context": N_CONTEXT, "vocabulary": N_VOCABULARY}
    return load_network(text, file=name, registry=registry(), overrides=sizes).network


def pnode_ids(n_pnodes: int) -> tuple[PNodeId, ...]:
    """p1, p2, ..."""
    return tuple(PNodeId(f"p{index + 1}") for index in range(n_pnodes))


def plan_for(network: Network, settings: TrainingSettings, n_pnodes: int, *, generation: int = 1) -> Plan:
    """The plan that the app would make."""
    return plan_of_pnodes(network, settings, pnode_ids(n_pnodes), generation)


def plan_of_pnodes(
    network: Network, settings: TrainingSettings, pnodes: Sequence[PNodeId], generation: int
) -> Plan:
    """The plan that the app would make for these PNodes, in this order."""
    assignment = assign(network, settings.rows, pnodes)
    return build_plan(network, assignment, tuple(pnodes), settings, generation=generation)


def plan_of(
    network: Network, settings: TrainingSettings, places: Mapping[str, PNodeId], *, generation: int = 1
) -> Plan:
    """A plan with every VNode where `places` says."""
    pnodes = tuple(sorted({places[node.name] for node in network.nodes if not node.vnode.is_host}))
    return build_plan(network, places, pnodes, settings, generation=generation)


def job_for(network: Network, settings: TrainingSettings, plan: Plan) -> Assignment:
    """A session from its beginning."""
    return Assignment(
        session=SESSION,
        plan=plan,
        network=encode_network(network),
        settings=settings,
        inputs=outside_references(network, plan),
    )


class Batches:
    """A BatchSource of random tokens below 15; steps in `poisoned` hold the token 15 too."""

    def __init__(
        self, settings: TrainingSettings, *, poisoned: Sequence[int] = (), token: int = N_VOCABULARY - 1
    ) -> None:
        self._settings = settings
        self._poisoned = frozenset(poisoned)
        self._token = token

    def batch(self, step: int) -> tuple[Microbatch, ...]:
        """Microbatches of a step, each with another number of counted targets."""
        made = [self._microbatch(step, index) for index in range(self._settings.microbatches)]
        if step in self._poisoned:
            made[1].tokens[0, 3] = self._token
        return tuple(made)

    def validation(self) -> tuple[Microbatch, ...]:
        """Five microbatches, so that more exist than are in flight; the last is padded."""
        made = [self._microbatch(0, index) for index in range(5)]
        made[-1].targets[1:] = -1
        return tuple(m._replace(target_count=int((m.targets >= 0).sum())) for m in made)

    def _microbatch(self, step: int, index: int) -> Microbatch:
        rows = self._settings.rows
        generator = np.random.default_rng((self._settings.seed, step, index))
        tokens = generator.integers(0, N_VOCABULARY - 1, (rows, N_CONTEXT)).astype(np.int32)
        targets = generator.integers(-1, N_VOCABULARY - 1, (rows, N_CONTEXT)).astype(np.int32)
        first = (step * self._settings.microbatches + index) * rows
        return Microbatch(tokens, targets, tuple(range(first, first + rows)), int((targets >= 0).sum()))


def with_settings(**changes: object) -> TrainingSettings:
    """SETTINGS with some fields changed."""
    return msgspec.structs.replace(SETTINGS, **changes)
