"""What `dcnr-app network plan` works out: a plan, its prediction, and what to say of it."""

from __future__ import annotations

from typing import NamedTuple

from dcnr_app.app import App, make_backend
from dcnr_app.cluster.devices import ClusterFacts
from dcnr_app.cluster.limits import threads_for
from dcnr_app.cluster.local_cluster import worker_ids
from dcnr_app.cluster.local_facts import local_facts
from dcnr_app.cluster.placement import place
from dcnr_app.cluster.plan import Plan
from dcnr_app.cluster.prediction import Prediction, predict
from dcnr_app.cluster.schedule import build_plan
from dcnr_app.cluster.session import SessionJob, plan_for
from dcnr_app.engine.device import device_class, device_summary
from dcnr_app.engine.measure import measured
from dcnr_app.ids import SessionId
from dcnr_app.limits import Limits
from dcnr_app.nodes.graph.load import LoadedNetwork
from dcnr_app.settings import load_limits

_MATTERS = 0.01
"""Differences of predicted times below this share are not worth a word."""


class Preview(NamedTuple):
    """A plan with its prediction; `is_measured` says whether all speeds were measured, not assumed."""

    plan: Plan
    prediction: Prediction
    warnings: tuple[str, ...]
    is_measured: bool


def preview_cluster(loaded: LoadedNetwork, facts: ClusterFacts) -> Preview:
    """The fastest plan on these PNodes. Raises InvalidError."""
    found = place(loaded.network, loaded.training, facts)
    plan = build_plan(
        loaded.network, found.assignment, found.pnodes, loaded.training, generation=1, facts=facts
    )
    return Preview(plan, found.prediction, found.warnings, _is_measured(facts.only(found.pnodes)))


def preview_workers(app: App, loaded: LoadedNetwork, n_workers: int, *, measures: bool) -> Preview:
    """The plan that training with so many worker processes on this machine takes. With `measures` the machine
    is measured first, unless it was before. Raises InvalidError, StoreError."""
    limits = load_limits(app.home)
    kind = _device_class(app, limits, n_workers, measures=measures)
    plan, facts = _local(app, loaded, n_workers, kind, limits)
    prediction = predict(loaded.network, loaded.training, facts, plan.assignment)
    warnings: list[str] = []
    best_n, best_ms = n_workers, prediction.step_ms
    for fewer in range(1, n_workers):
        other, other_facts = _local(app, loaded, fewer, kind, limits)
        step_ms = predict(loaded.network, loaded.training, other_facts, other.assignment).step_ms
        if step_ms < best_ms:
            best_n, best_ms = fewer, step_ms
    if best_ms < prediction.step_ms * (1.0 - _MATTERS):
        workers = "worker" if best_n == 1 else "workers"
        warnings.append(
            f"{best_n} {workers} would be faster: {best_ms:.1f} ms per step, "
            f"{prediction.step_ms:.1f} ms with {n_workers}"
        )
    return Preview(plan, prediction, (*warnings, *_memory(prediction)), _is_measured(facts))


def _device_class(app: App, limits: Limits, n_workers: int, *, measures: bool) -> str:
    threads = threads_for(limits, device_summary().n_cores, n_workers)
    backend = make_backend(threads)
    try:
        if measures:
            measured(app.home.measured, backend, threads, app.clock)
        return device_class(backend.device_class())
    finally:
        backend.close()


def _local(
    app: App, loaded: LoadedNetwork, n_workers: int, kind: str, limits: Limits
) -> tuple[Plan, ClusterFacts]:
    pnodes = worker_ids(n_workers)
    job = SessionJob(
        session=SessionId("preview"), generation=1, network=loaded.network, settings=loaded.training
    )
    return plan_for(job, pnodes), local_facts(pnodes, app.home.measured, kind, limits)


def _memory(prediction: Prediction) -> list[str]:
    """A word where the worker processes would need more memory together than the machine has free."""
    need_bytes = sum(share.memory_bytes for share in prediction.pnodes)
    free_bytes = min((s.free_memory_bytes for s in prediction.pnodes if s.free_memory_bytes), default=None)
    if free_bytes is None or need_bytes <= free_bytes:
        return []
    return [f"{need_bytes / 1e6:,.0f} MB of memory needed, {free_bytes / 1e6:,.0f} MB free"]


def _is_measured(facts: ClusterFacts) -> bool:
    return all(device.measured_ms > 0 for device in facts.devices)
