"""A stormy session that has begun, and moments to wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.training import TrainingSettings
from tests.sim.oracle import reference_of
from tests.sim.samples import tiny, with_settings
from tests.sim.storm import Climate, Storm

P1, P2, P3 = PNodeId("p1"), PNodeId("p2"), PNodeId("p3")
SIX = with_settings(steps=6, batch=4, microbatches=2, validate_every=3)


def begun(
    backend: Backend,
    *,
    n_pnodes: int = 3,
    settings: TrainingSettings = SIX,
    name: str = "tiny-gpt",
    patience_ms: float = 300_000.0,
    **climate: Any,
) -> Storm:
    """A session on a network that is late and repeats; it must end within `patience_ms`."""
    reference = reference_of(name, "", settings, backend)
    storm = Storm(tiny(name), settings, backend, Climate(**climate), reference)
    storm.deadline_ms = patience_ms
    storm.begin(n_pnodes)
    return storm


def committed(storm: Storm, n_rows: int) -> Callable[[], bool]:
    """Until so many steps are committed."""
    return lambda: len(storm.journal.rows) >= n_rows or storm.is_done


def events(storm: Storm, n_events: int) -> Callable[[], bool]:
    """Until so many events have passed."""
    left = [n_events]

    def is_time() -> bool:
        left[0] -= 1
        return left[0] < 0 or storm.is_done

    return is_time


def at(storm: Storm, time_ms: float) -> Callable[[], bool]:
    """Until that time."""
    return lambda: storm.now_ms >= time_ms or storm.is_done


def stage(storm: Storm, *names: str) -> Callable[[], bool]:
    """Until the session is in one of these stages."""
    return lambda: storm.is_done or (storm.orchestrator is not None and storm.lead.state.stage in names)


def both_ways(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    """Each pair, and back."""
    return [way for one, other in pairs for way in ((one, other), (other, one))]
