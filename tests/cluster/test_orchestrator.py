"""The orchestrator driver: nothing is left behind; what goes wrong anywhere is raised in its own words."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import numpy as np
import pytest

from dcnr_app.cluster.compute import Compute, ComputeEffect
from dcnr_app.cluster.effects import AppendCommit, Progress, RunForward, Trained, WriteCheckpoint
from dcnr_app.cluster.inputs import Outcome
from dcnr_app.cluster.start_point import Parts
from dcnr_app.errors import DcnrError, InvariantError, PeerError, StoreError, UnreachableError
from dcnr_app.ids import ORCHESTRATOR
from tests.cluster import local_run
from tests.cluster.local_run import CONTEXT, SETTINGS, LocalRun, MemoryJournal


def one_sequence() -> dict[str, np.ndarray]:
    """Input tensors of a prompt, by reference; the tokenizer passes ids on."""
    tokens = np.ones((1, CONTEXT), np.int32)
    return {"tokens:0": tokens, "targets:0": tokens, "tokenizer:0": tokens}


def test_no_handle_task_or_thread_is_left_after_training_and_generating() -> None:
    run = LocalRun()
    rows: list[np.ndarray] = []

    async def at_rest(trained: Trained) -> None:
        assert trained == Trained(3, stopped=False)
        rows.append(await run.orchestrator.logits(one_sequence(), CONTEXT - 1))
        rows.append(await run.orchestrator.logits(one_sequence(), CONTEXT - 1))

    async def test() -> set[asyncio.Task[None]]:
        await run.run(at_rest)
        return asyncio.all_tasks() - {asyncio.current_task()}

    before = set(threading.enumerate())
    assert asyncio.run(test()) == set()
    assert set(threading.enumerate()) == before
    assert len(run.handles) == 0
    assert {pnode: len(compute.handles) for pnode, compute in run.computes.items()} == {"p1": 0, "p2": 0}
    assert sorted(run.journal.decisions) == [1, 2, 3]
    assert sorted(run.journal.checkpoints) == [3]
    assert rows[0].shape == (300,)
    assert rows[0].tobytes() == rows[1].tobytes()


def test_tables_are_empty_after_a_pnode_was_lost_in_the_middle_of_a_step() -> None:
    run = LocalRun(settings=msgspec.structs.replace(SETTINGS, steps=1_000))

    async def test() -> None:
        session = asyncio.ensure_future(run.run())
        while len(run.steps) < 2:
            await asyncio.sleep(0)
        run.hub.cut(ORCHESTRATOR, run.plan.pnodes[1])
        await session

    with pytest.raises(UnreachableError, match="lost PNode p2") as caught:
        asyncio.run(test())
    assert caught.value.fix == "dcnr-app session resume s"
    assert len(run.handles) == 0
    assert {len(compute.handles) for compute in run.computes.values()} == {0}


class FullDisk(MemoryJournal):
    """Fails at the commit row of step 2."""

    error = StoreError("the disk is full", where="control.sqlite", why="no space left", fix="free some space")

    def commit(self, effect: AppendCommit) -> None:
        if effect.decision.step == 2:
            raise self.error
        super().commit(effect)


def failing(run: LocalRun, kind: type[DcnrError]) -> DcnrError:
    """The error with which the run ends."""
    with pytest.raises(kind) as caught:
        asyncio.run(run.run())
    return caught.value


def test_an_error_of_the_store_is_raised_as_the_store_told_it() -> None:
    run = LocalRun(journal=FullDisk())
    assert failing(run, StoreError) is FullDisk.error
    assert sorted(run.journal.decisions) == [1]


class NoCheckpoints(MemoryJournal):
    """Cannot write checkpoints."""

    def checkpoint(self, effect: WriteCheckpoint, parts: Parts) -> str:
        raise StoreError("this checkpoint was not written", where=f"step-{effect.step}")


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_its_place() -> None:
    assert failing(LocalRun(journal=NoCheckpoints()), StoreError).where == "step-3"


def test_an_error_in_a_vnode_names_the_vnode_the_pnode_and_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_run, "VOCABULARY", 900)
    error = failing(LocalRun(), PeerError)
    assert "VNode 'embed' failed in forward" in error.what
    assert "Error: " in error.what
    assert "PNode p1" in error.where
    assert "train step 1" in error.where


class Broken(Compute):
    """Its forward fails as only a bug of ours can."""

    def execute(self, effect: ComputeEffect) -> Outcome:
        if isinstance(effect, RunForward):
            raise RuntimeError("the sky fell")
        return super().execute(effect)


def test_a_bug_in_the_compute_thread_is_raised_with_pnode_and_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = failing(LocalRun(compute={"p2": Broken}), PeerError)
    assert (error.what, error.where) == ("RuntimeError: the sky fell", "PNode p2, RunForward")
    assert "Traceback" in caplog.text


class Angry(LocalRun):
    """An observer with a bug."""

    def progress(self, event: Progress) -> None:
        raise InvariantError(f"step {event.decision.step} was not expected")


def test_a_bug_where_events_are_taken_ends_the_run_with_its_own_words() -> None:
    assert failing(Angry(), InvariantError).what == "step 1 was not expected"


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_generating_on_a_lost_pnode_raises_that_it_was_lost(*, in_the_middle: bool) -> None:
    run = LocalRun()

    async def at_rest(trained: Trained) -> None:
        asked = asyncio.ensure_future(run.orchestrator.logits(one_sequence(), 0)) if in_the_middle else None
        run.hub.cut(ORCHESTRATOR, run.plan.pnodes[0])
        while run.orchestrator.failure is None:
            await asyncio.sleep(0)
        await (asked or run.orchestrator.logits(one_sequence(), 0))

    with pytest.raises(UnreachableError, match="lost PNode p1"):
        asyncio.run(run.run(at_rest))


def test_a_stop_ends_at_a_step_whose_state_was_kept() -> None:
    run = LocalRun(settings=msgspec.structs.replace(SETTINGS, steps=1_000))

    async def test() -> Trained:
        async with asyncio.TaskGroup() as tasks:
            session = tasks.create_task(run.run())
            while len(run.steps) < 4:
                await asyncio.sleep(0)
            run.orchestrator.stop()
            return await session

    trained = asyncio.run(test())
    assert trained.stopped
    assert trained.step == max(run.journal.decisions) == max(run.journal.checkpoints)
    assert 4 <= trained.step < 20
    assert len(run.handles) == 0
