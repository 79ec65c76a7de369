"""The PNodes that a session is planned for, and how its crew is made once it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from dcnr_app.clock import Clock
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.local_cluster import ClusterSettings, LocalCluster, worker_ids
from dcnr_app.cluster.orchestrator_seams import Crew
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.registry import Registry

_RESTART_MS = 5_000.0
"""A worker process of this machine is there again after two seconds: sooner than a plan without it pays."""


class Staff(NamedTuple):
    """PNodes of the first plan; `make` builds their crew in the run's TaskGroup. With `recovers`, a lost
    PNode does not end the session, and for `grace_ms` it may come back before others take over its VNodes.
    With `facts` of all PNodes, plans go by predicted times and may leave PNodes out."""

    pnodes: tuple[PNodeId, ...]
    make: Callable[[asyncio.TaskGroup], Crew]
    recovers: bool = False
    grace_ms: float = 0.0
    facts: ClusterFacts | None = None


def local_staff(
    settings: ClusterSettings, registry: Registry, make_backend: Callable[[int], Backend], clock: Clock
) -> Staff:
    """Worker processes of this machine, or one PNode in this process."""

    def make(tasks: asyncio.TaskGroup) -> Crew:
        return LocalCluster(settings, registry=registry, make_backend=make_backend, clock=clock, tasks=tasks)

    return Staff(
        pnodes=worker_ids(settings.n_workers),
        make=make,
        recovers=settings.restarts and settings.n_workers > 0,
        grace_ms=_RESTART_MS,
    )
