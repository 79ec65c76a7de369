"""An overflow on one PNode is a decision for all, also when it is replayed.

Restated from public reports: Megatron-Bridge#5591, WeatherGenerator#2724, pytorch#76282.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest

from dcnr_app.cluster.coordinator_state import Recovery
from dcnr_app.cluster.inputs import Tick
from dcnr_app.cluster.messages import AnyMessage, Commit, GradientsReady, TrainRequest
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from dcnr_app.runtime.tables import HandleTable
from tests.sim.journal import Journal, resumed
from tests.sim.result import Chaos, Result
from tests.sim.samples import N_VOCABULARY, SETTINGS, Batches, job_for, plan_for, tiny, with_settings
from tests.sim.world import World

POISONED = with_settings(checkpoint_every=2, steps=6)
N_PNODES = 3


@pytest.mark.parametrize("at", ["p1", "p2", "p3"])
def test_what_is_not_finite_on_any_one_pnode_makes_all_skip_with_one_scale(backend: Backend, at: str) -> None:
    world = World(tiny(), SETTINGS, backend, chaos=Chaos(5, 5.0, 0.2))
    scales: dict[int, set[float]] = defaultdict(set)
    commits: dict[int, set[tuple[bool, float, int]]] = defaultdict(set)

    def spoil(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del to
        match message:
            case TrainRequest():
                scales[message.step].add(message.loss_scale)
            case Commit():
                commits[message.step].add((message.skip, message.loss_scale, message.t))
            case GradientsReady(step=2) if sender == at:
                name = min(message.norms)
                broken = msgspec.structs.replace(message.norms[name], is_finite=False)
                return msgspec.structs.replace(message, norms={**message.norms, name: broken})
            case _:
                pass
        return message

    world.tamper = spoil
    world.start(job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, N_PNODES)))
    world.run()
    assert [row.skip for row in world.journal.rows.values()] == [False, True, False, False, False]
    assert [row.t for row in world.journal.rows.values()] == [1, 1, 2, 3, 4]
    assert {len(told) for told in (*scales.values(), *commits.values())} == {1}, "all are told the same"
    world.check_rest()
    world.end()


def poisoned_journal(backend: Backend) -> Journal:
    """A checkpoint at step 2 in which the row of one token is not a number; that token occurs in step 3."""
    network = tiny(edit="untied")
    world = World(network, POISONED, backend)
    world.start(job_for(network, POISONED, plan_for(network, POISONED, 1)))
    world.run(until=lambda: 2 in world.journal.checkpoints)
    journal = world.journal
    journal.checkpoints[2].state["embed.weight"]["weight"][N_VOCABULARY - 1] = float("nan")
    journal.rows = {step: row for step, row in journal.rows.items() if step <= 2}
    journal.ledger = [row for row in journal.ledger if row[0] <= 2]
    journal.validations = {step: loss for step, loss in journal.validations.items() if step < 2}
    return journal


def trained_from(backend: Backend, lost: PNodeId | None, n_rows: int) -> tuple[Result, World]:
    """The rest of that session; with `lost`, a PNode ends once so many rows are there."""
    network, journal, table = tiny(edit="untied"), poisoned_journal(backend), HandleTable()
    world = World(
        network, POISONED, backend, journal=journal, source=Batches(POISONED, poisoned=[3]),
        chaos=Chaos(7, 5.0, 0.2),
    )  # fmt: skip
    job = job_for(network, POISONED, plan_for(network, POISONED, N_PNODES))
    job = msgspec.structs.replace(
        resumed(job, network, journal, table, device_class=""), recovery=Recovery(graph=network)
    )
    world.start(job, table)

    def tick() -> None:
        if not world.lead.trained and not world.lead.failures:
            world.lead.take(Tick())
            world.after(50.0, tick)

    tick()
    if lost is not None:
        world.run(until=lambda: len(journal.rows) == n_rows)
        world.lose(lost)
    world.run()
    assert not world.lead.failures
    return world.result(), world


@pytest.mark.parametrize("n_rows", [3, 4])
@pytest.mark.parametrize("lost", ["p1", "p2", "p3"])
def test_a_skip_that_is_replayed_is_a_skip_and_one_only(backend: Backend, lost: str, n_rows: int) -> None:
    expected, _ = trained_from(backend, None, 0)
    result, world = trained_from(backend, PNodeId(lost), n_rows)
    assert [row.skip for row in result.decisions] == [False, False, True, False, False, False]
    assert any(progress.is_replay and progress.decision.skip for progress in world.lead.progress)
    assert result == expected
    assert len([row for row in result.ledger if row[0] == 3]) == POISONED.batch
    world.check_rest()
    world.end()
