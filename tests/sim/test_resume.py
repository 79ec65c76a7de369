"""A session that stops, or loses its processes, goes on from what is durable as if nothing had happened."""

from __future__ import annotations

import msgspec
import pytest

from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.effects import SessionFailed
from dcnr_app.engine.backend import Backend
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.runtime.tables import HandleTable
from tests.sim.journal import Journal, resumed
from tests.sim.samples import SETTINGS, job_for, plan_for, tiny, with_settings
from tests.sim.world import Chaos, Result, World, train

EIGHT = with_settings(steps=8, validate_every=3)


@pytest.fixture(scope="module")
def undisturbed(backend: Backend) -> Result:
    """Eight steps on one PNode, never interrupted."""
    return train(World(tiny(), EIGHT, backend))


def crashed(
    backend: Backend, seed: int, n_rows: int, *, checkpoint_ms: float = 3.0, n_pnodes: int = 2
) -> Journal:
    """What is durable when all processes die once `n_rows` steps are committed."""
    world = World(tiny(), EIGHT, backend, chaos=Chaos(seed, 5.0, 0.2), checkpoint_ms=checkpoint_ms)
    world.start(job_for(tiny(), EIGHT, plan_for(tiny(), EIGHT, n_pnodes)))
    world.run(until=lambda: len(world.journal.rows) == n_rows)
    return world.journal


def go_on(
    backend: Backend,
    journal: Journal,
    *,
    n_pnodes: int,
    settings: TrainingSettings = EIGHT,
    device_class: str = "",
    seed: int = 0,
    at: int | None = None,
) -> World:
    """A new cluster that resumes from `journal`; runs until nothing is under way."""
    network = tiny()
    world = World(network, settings, backend, chaos=Chaos(seed, 5.0, 0.2), journal=journal)
    table = HandleTable()
    job = job_for(network, settings, plan_for(network, settings, n_pnodes))
    here = device_class or _device_class(backend)
    world.start(resumed(job, network, journal, table, device_class=here, at=at), table)
    world.run()
    return world


def _device_class(backend: Backend) -> str:
    world = World(tiny(), SETTINGS, backend)
    world.start(job_for(tiny(), SETTINGS, plan_for(tiny(), SETTINGS, 1)))
    world.run(until=lambda: bool(world.lead.ready))
    (ready,) = world.lead.ready.values()
    return ready.device_class


@pytest.mark.parametrize("n_pnodes", [1, 2, 3])
@pytest.mark.parametrize("n_rows", range(1, 9))
def test_a_crash_after_any_commit_changes_no_bit_and_writes_no_second_row(
    backend: Backend, undisturbed: Result, n_rows: int, n_pnodes: int
) -> None:
    journal = crashed(backend, n_rows, n_rows)
    from_step = journal.durable_step
    world = go_on(backend, journal, n_pnodes=n_pnodes, seed=n_rows)
    assert not world.lead.failures
    assert world.result() == undisturbed
    replayed = [progress.decision.step for progress in world.lead.progress if progress.is_replay]
    assert replayed == list(range(from_step + 1, n_rows + 1))
    for process in world.workers.values():
        process.watch.finish(1, from_step + 1, 8)
    world.check_rest()
    world.end()


def test_a_long_replay_keeps_the_distance_between_commits_and_checkpoints(
    backend: Backend, undisturbed: Result
) -> None:
    journal = crashed(backend, 1, 7)
    journal.checkpoints = {2: journal.checkpoints[2]}  # the newer ones are lost
    network = tiny()
    world = World(network, EIGHT, backend, journal=journal, checkpoint_ms=500.0)
    table = HandleTable()
    job = job_for(network, EIGHT, plan_for(network, EIGHT, 2))
    world.start(resumed(job, network, journal, table, device_class=_device_class(backend)), table)
    world.run()
    assert [trained.step for trained in world.lead.trained] == [8]
    assert set(journal.checkpoints) == {2, 4, 6, 8}
    assert world.result() == undisturbed


@pytest.mark.parametrize("n_rows", range(1, 7))
def test_a_stop_ends_at_a_step_that_a_checkpoint_keeps_and_can_be_resumed(
    backend: Backend, undisturbed: Result, n_rows: int
) -> None:
    world = World(tiny(), EIGHT, backend, chaos=Chaos(n_rows, 5.0, 0.2), checkpoint_ms=20.0)
    world.start(job_for(tiny(), EIGHT, plan_for(tiny(), EIGHT, 2)))
    world.run(until=lambda: len(world.journal.rows) == n_rows)
    world.request_stop()
    world.run()
    (trained,) = world.lead.trained
    assert trained.stopped
    assert n_rows <= trained.step <= n_rows + 1
    assert world.journal.durable_step == trained.step == len(world.journal.rows)
    world.check_rest()
    world.end()
    resumed_world = go_on(backend, world.journal, n_pnodes=3)
    assert resumed_world.result() == undisturbed
    assert not any(progress.is_replay for progress in resumed_world.lead.progress)


def test_a_stop_before_the_first_step_ends_at_once(backend: Backend) -> None:
    world = World(tiny(), EIGHT, backend)
    world.start(job_for(tiny(), EIGHT, plan_for(tiny(), EIGHT, 2)))
    world.request_stop()
    world.run()
    (trained,) = world.lead.trained
    assert (trained.step, trained.stopped) == (0, True)
    assert not world.journal.rows


def test_a_stop_in_the_last_step_is_a_finished_session(backend: Backend) -> None:
    world = World(tiny(), EIGHT, backend)
    world.start(job_for(tiny(), EIGHT, plan_for(tiny(), EIGHT, 2)))
    world.run(until=lambda: len(world.journal.rows) == 8)
    world.request_stop()
    world.run()
    (trained,) = world.lead.trained
    assert (trained.step, trained.stopped) == (8, False)


def test_a_validation_that_a_crash_cut_off_is_made_up_for(backend: Backend, undisturbed: Result) -> None:
    journal = crashed(backend, 3, 8)
    world = go_on(backend, journal, n_pnodes=2)
    del journal.validations[8]
    again = go_on(backend, journal, n_pnodes=3)
    assert [trained.step for trained in again.lead.trained] == [8]
    assert not again.lead.progress
    assert again.result() == world.result() == undisturbed


def _changed(journal: Journal, step: int, **changes: object) -> None:
    row = journal.rows[step]
    journal.rows[step] = msgspec.structs.replace(row, **changes)


@pytest.fixture
def two_to_replay(backend: Backend) -> Journal:
    """A journal with a checkpoint at step 2 and rows 3 and 4 after it."""
    journal = crashed(backend, 5, 4, checkpoint_ms=5.0)
    journal.checkpoints = {2: journal.checkpoints[2]}
    return journal


def test_a_replay_that_differs_on_the_same_device_class_stops_with_diverged(
    backend: Backend, two_to_replay: Journal
) -> None:
    loss = two_to_replay.rows[4].loss
    _changed(two_to_replay, 4, loss=loss * (1 + 2**-50))
    world = go_on(backend, two_to_replay, n_pnodes=2)
    (failure,) = world.lead.failures
    assert failure.kind == "diverged"
    assert failure.where == "step 4"
    assert repr(loss) in failure.what
    assert repr(two_to_replay.rows[4].loss) in failure.what
    assert set(two_to_replay.rows) == {1, 2, 3, 4}
    assert len(world.lead.handles) == 0


def test_a_replay_that_differs_on_another_device_class_goes_on_with_the_recorded_decision(
    backend: Backend, two_to_replay: Journal
) -> None:
    recorded = _with_other_norm(two_to_replay)
    world = go_on(backend, two_to_replay, n_pnodes=2, device_class="elsewhere")
    assert not world.lead.failures
    assert two_to_replay.rows[4] == recorded
    assert world.lead.progress[1].decision == recorded
    assert [trained.step for trained in world.lead.trained] == [8]


def _with_other_norm(journal: Journal) -> Decision:
    _changed(journal, 4, gradient_norm=journal.rows[4].gradient_norm * 1.001)
    return journal.rows[4]


def test_an_update_cannot_be_replayed_with_gradients_that_overflow(
    backend: Backend, two_to_replay: Journal
) -> None:
    kept = two_to_replay.checkpoints[2]
    kept.state["final_norm.gain"]["weight"][0] = float("nan")
    world = go_on(backend, two_to_replay, n_pnodes=2, device_class="elsewhere")
    failures: list[SessionFailed] = world.lead.failures
    assert [failure.kind for failure in failures] == ["diverged"]
    assert "overflow" in failures[0].what


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_disk_holds_training_back_to_checkpoint_every_steps(
    backend: Backend, undisturbed: Result, seed: int
) -> None:
    world = World(tiny(), EIGHT, backend, chaos=Chaos(seed, 5.0, 0.2), checkpoint_ms=2000.0)
    result = train(world, n_pnodes=2)
    assert result == undisturbed
    written = world.lead.checkpoint_ms
    assert set(written) == {2, 4, 6, 8}
    for step in (5, 7):  # the third step after a checkpoint that is not durable yet
        assert world.lead.commit_ms[step] > written[step - 3]
