"""A session's checkpoints: how one is written, and where a session goes on after its last run. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

import dcnr_app
from dcnr_app.clock import Clock
from dcnr_app.cluster.decision import LossScale
from dcnr_app.cluster.effects import WriteCheckpoint
from dcnr_app.cluster.journal import read_decisions, read_validations
from dcnr_app.cluster.start_point import Parts, StartPoint
from dcnr_app.settings import Home
from dcnr_app.store.checkpoints import load_checkpoint, write_checkpoint
from dcnr_app.store.files import Files
from dcnr_app.store.manifest import CheckpointFacts
from dcnr_app.store.sessions import SessionRecord, get_session
from dcnr_app.store.shelf import PassedOver, WhyUnfit, latest_checkpoint, list_checkpoints, rotate
from dcnr_app.store.store import Store


class Found(msgspec.Struct, frozen=True):
    """Where a session goes on, and the newer checkpoints that cannot be used, with the reasons."""

    start: StartPoint
    passed_over: tuple[PassedOver, ...] = ()


def find_start(home: Home, store: Store, record: SessionRecord, why_unfit: WhyUnfit) -> Found:
    """The newest checkpoint that verifies and fits, or the seed if none was written yet, and the decisions
    made after it. Raises StoreError with all reasons if there are checkpoints but none does."""
    decisions = read_decisions(store, record.session)
    validated = frozenset(read_validations(store, record.session))
    device_class = get_session(store, record.session).device_class
    if not list_checkpoints(home, record.session):
        return Found(StartPoint(recorded=decisions, validated=validated, device_class=device_class))
    found = latest_checkpoint(home, record.session, why_unfit)
    checkpoint = load_checkpoint(found.path)
    facts = checkpoint.manifest.facts
    start = StartPoint(
        step=facts.step,
        t=facts.n_applied,
        scale=LossScale(facts.loss_scale["scale"], int(facts.loss_scale["finite_steps"])),
        parts=checkpoint.state,
        recorded={step: decision for step, decision in decisions.items() if step > facts.step},
        validated=validated,
        device_class=device_class,
    )
    return Found(start, found.passed_over)


def checkpoint_writer(
    home: Home, store: Store, record: SessionRecord, clock: Clock, files: Files, assets: Mapping[str, bytes]
) -> Callable[[WriteCheckpoint, Parts], str]:
    """Writes checkpoints of a session with these assets, keeps the newest `keep_last`; returns the path."""
    batch, keep_last = int(record.settings["batch"]), int(record.settings["keep_last"])

    def write(effect: WriteCheckpoint, parts: Parts) -> str:
        facts = CheckpointFacts(
            session=record.session,
            step=effect.step,
            n_applied=effect.t,
            network=record.network,
            dataset=record.dataset,
            tokenizer=record.tokenizer,
            cursor_position=effect.step * batch,
            loss_scale={"scale": effect.scale, "finite_steps": float(effect.finite_steps)},
            settings=record.settings,
            device_class=get_session(store, record.session).device_class,
            app_version=dcnr_app.__version__,
            created_ms=clock.wall_ms(),
        )
        path = write_checkpoint(home, facts, parts, assets, files=files)
        rotate(home, record.session, keep_last, files)
        return str(path)

    return write
