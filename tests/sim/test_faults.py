"""What goes wrong ends the session with its place named, or leaves no trace at all."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.cluster.effects import AppendCommit, LoadBatch, WriteCheckpoint
from dcnr_app.cluster.inputs import TaskFailed
from dcnr_app.cluster.messages import AnyMessage, Commit, Hop, SiteGradient
from dcnr_app.engine.backend import Backend
from dcnr_app.ids import PNodeId
from dcnr_app.runtime.tables import HandleTable
from tests.sim.journal import resumed
from tests.sim.samples import N_VOCABULARY, SETTINGS, Batches, job_for, plan_for, tiny, with_settings
from tests.sim.world import Chaos, World, train


def started(backend: Backend, *, n_pnodes: int = 3, chaos: Chaos = Chaos(1, 5.0, 0.2)) -> World:  # noqa: B008
    """A session that has just begun."""
    world = World(tiny(), SETTINGS, backend, chaos=chaos)
    world.start(job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, n_pnodes)))
    return world


# ---- skips


@pytest.mark.parametrize("n_pnodes", [1, 2, 3])
def test_an_overflow_on_one_pnode_makes_all_skip(backend: Backend, n_pnodes: int) -> None:
    network = tiny(edit="untied")
    settings = with_settings(checkpoint_every=1, steps=4)
    poisoned = World(network, settings, backend)
    job = job_for(network, settings, plan_for(network, settings, 1))
    poisoned.start(job)
    poisoned.run(until=lambda: 1 in poisoned.journal.checkpoints)
    journal = poisoned.journal
    # Token 15 occurs in step 3 alone; its row of the embedding is not a number.
    journal.checkpoints[1].state["embed.weight"]["weight"][N_VOCABULARY - 1] = float("nan")
    journal.rows = {1: journal.rows[1]}
    journal.ledger = [row for row in journal.ledger if row[0] == 1]

    source = Batches(settings, poisoned=[3])
    world = World(network, settings, backend, journal=journal, source=source, chaos=Chaos(2, 5.0, 0.2))
    table = HandleTable()
    job = job_for(network, settings, plan_for(network, settings, n_pnodes))
    world.start(resumed(job, network, journal, table, device_class="", at=1), table)
    world.run()
    assert [trained.step for trained in world.lead.trained] == [4]
    assert [journal.rows[step].skip for step in (1, 2, 3, 4)] == [False, False, True, False]
    assert [journal.rows[step].t for step in (1, 2, 3, 4)] == [1, 2, 2, 3]
    assert journal.rows[3].learning_rate == 0.0
    assert journal.checkpoints[3].bits() == journal.checkpoints[2].bits() != journal.checkpoints[4].bits()
    assert {skipped for step, _, skipped in journal.ledger if step == 3} == {True}
    assert len([sample for step, sample, _ in journal.ledger if step == 3]) == settings.batch
    assert {skipped for step, _, skipped in journal.ledger if step != 3} == {False}
    world.check_rest()
    world.end()


def test_one_parameter_that_is_not_finite_anywhere_is_enough_to_skip(backend: Backend) -> None:
    world = started(backend, n_pnodes=2, chaos=Chaos())

    def spoil(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del to
        if sender == "p2" and hasattr(message, "norms") and message.step == 2:
            name = min(message.norms)
            norms = {**message.norms, name: msgspec.structs.replace(message.norms[name], is_finite=False)}
            return msgspec.structs.replace(message, norms=norms)
        return message

    world.tamper = spoil
    world.run()
    assert [row.skip for row in world.journal.rows.values()] == [False, True, False, False, False]
    assert [row.t for row in world.journal.rows.values()] == [1, 1, 2, 3, 4]


# ---- repeated and old messages


def test_a_commit_that_arrives_many_times_applies_once(backend: Backend) -> None:
    world = World(tiny(), SETTINGS, backend, chaos=Chaos(3, 5.0, 1.0))  # everything arrives twice
    result = train(world, n_pnodes=3)
    assert result == train(World(tiny(), SETTINGS, backend))
    for process in world.workers.values():
        assert set(process.watch.applied.values()) == {1}


@pytest.mark.parametrize("seed", range(12))
def test_a_new_generation_in_mid_step_drops_all_that_is_old(backend: Backend, seed: int) -> None:
    expected = train(World(tiny(), SETTINGS, backend))
    world = started(backend, n_pnodes=3, chaos=Chaos(seed, 8.0, 0.3))
    n_events = [40 + 37 * seed]

    def is_time() -> bool:
        n_events[0] -= 1
        return n_events[0] < 0

    world.run(until=is_time)
    network, table = tiny(), HandleTable()
    job = job_for(network, SETTINGS, plan_for(network, SETTINGS, 2 + seed % 2, generation=2))
    ready = world.lead.ready
    device_class = next(iter(ready.values())).device_class if ready else ""
    new = resumed(job, network, world.journal, table, device_class=device_class)
    world.start(new, table)
    world.run()
    assert not world.lead.failures
    assert world.result() == expected
    for pnode in job.plan.pnodes:
        world.workers[pnode].watch.finish(2, new.resume_step + 1, SETTINGS.steps)
        assert len(world.workers[pnode].compute.handles) == 0
    told = [refused for _, _, refused in world.refusals]
    assert all(refused.generation == 1 and refused.reason for refused in told)


def test_a_hop_of_an_older_generation_is_refused_with_the_reason(backend: Backend) -> None:
    world = started(backend, n_pnodes=2, chaos=Chaos())
    kept: list[tuple[PNodeId, PNodeId, AnyMessage]] = []

    def keep(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        if isinstance(message, Hop):
            kept.append((sender, to, message))
        return message

    world.tamper = keep
    world.run(until=lambda: bool(kept))
    network = tiny()
    world.start(job_for(network, SETTINGS, plan_for(network, SETTINGS, 2, generation=2)))
    world.run(until=lambda: len(world.lead.ready) == 2)
    sender, to, hop = kept[0]
    world.refusals.clear()
    world.workers[to].receive(sender, hop, {})
    ((_, back, refused),) = world.refusals
    assert back == sender
    assert refused.reason == "generation 1 is not the current one, 2"
    assert (refused.tag, refused.generation) == ("hop.v1", 1)
    world.run()
    assert not world.lead.failures


# ---- failures


def test_a_vnode_that_fails_ends_the_session_and_is_named(backend: Backend) -> None:
    source = Batches(SETTINGS, poisoned=[3], token=N_VOCABULARY)
    world = World(tiny(), SETTINGS, backend, source=source, chaos=Chaos(4, 5.0, 0.2))
    world.start(job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, 3)))
    world.run()
    (failure,) = world.lead.failures
    assert failure.kind == "failed"
    assert "VNode 'embed' failed in forward" in failure.what
    assert "ValueError" in failure.what, "the reason is told too"
    assert "16" in failure.what
    assert failure.where == "PNode p1, segment 0, train step 3, microbatch 1"
    assert not world.lead.trained
    world.end()


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_pnode_ends_the_session_and_is_named(backend: Backend, seed: int) -> None:
    world = started(backend, chaos=Chaos(seed, 5.0, 0.2))
    world.run(until=lambda: len(world.journal.rows) == seed % 5)
    lost = PNodeId(f"p{1 + seed % 3}")
    world.lose(lost)
    world.run()
    (failure,) = world.lead.failures
    assert (failure.kind, failure.where) == ("lost", lost)
    assert lost in failure.what
    assert "connection reset" in failure.what
    assert len(world.journal.rows) <= seed % 5 + 1
    world.end()


@pytest.mark.parametrize("effect", [LoadBatch, AppendCommit, WriteCheckpoint])
def test_a_store_that_fails_ends_the_session_and_loses_nothing_durable(
    backend: Backend, effect: type
) -> None:
    world = started(backend)
    world.run(until=lambda: len(world.journal.rows) == 1)
    world.failing[effect] = TaskFailed("the disk is full", "session.db")
    world.run()
    (failure,) = world.lead.failures
    assert (failure.kind, failure.what, failure.where) == ("store", "the disk is full", "session.db")
    assert not world.lead.trained
    assert len(world.lead.handles) == 0
    world.end()


def test_no_row_is_applied_before_it_is_durable(backend: Backend) -> None:
    world = started(backend)
    world.run(until=lambda: len(world.journal.rows) == 2)
    world.failing[AppendCommit] = TaskFailed("the disk is full", "session.db")
    commits: list[Commit] = []

    def note(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del sender, to
        if isinstance(message, Commit):
            commits.append(message)
        return message

    world.tamper = note
    world.run()
    assert all(message.step <= 2 for message in commits)


def test_a_message_that_does_not_fit_the_plan_is_refused_and_ends_the_session(backend: Backend) -> None:
    world = started(backend, n_pnodes=2, chaos=Chaos())

    def spoil(sender: PNodeId, to: PNodeId, message: AnyMessage) -> AnyMessage:
        del sender, to
        return msgspec.structs.replace(message, step=9) if isinstance(message, SiteGradient) else message

    world.tamper = spoil
    world.run()
    (failure,) = world.lead.failures
    assert "refused site-gradient.v1: step 9 is ahead of 2" in failure.what
    world.end()
