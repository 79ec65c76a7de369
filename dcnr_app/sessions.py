"""Sessions from end to end: create, run, resume, generate. Blocking; knows no command line."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dcnr_app.clock import Clock
from dcnr_app.cluster import keeping
from dcnr_app.cluster.feeds import SessionFeed, check_inputs
from dcnr_app.cluster.generation import Sampling
from dcnr_app.cluster.journal import CheckpointWriter, SessionJournal, append_generation
from dcnr_app.cluster.keeping import Found
from dcnr_app.cluster.result import Scores, session_result
from dcnr_app.cluster.session import (
    RunOutcome,
    SessionJob,
    SessionTools,
    Watcher,
    plan_for,
    run_session,
)
from dcnr_app.cluster.staff import Staff
from dcnr_app.cluster.start_point import StartPoint
from dcnr_app.data.baselines import bits_per_byte, measure_baselines, target_bytes
from dcnr_app.data.cursor import BatchCursor, CursorSettings
from dcnr_app.data.dataset import Dataset
from dcnr_app.data.shards import verify_shards
from dcnr_app.data.source import NoBatches
from dcnr_app.data.tokenizer import TOKENIZER_FILE, Tokenizer, tokenizer_from_file
from dcnr_app.engine.backend import Backend
from dcnr_app.errors import DcnrError, InvalidError, StoreError
from dcnr_app.fitness import fitness
from dcnr_app.ids import SessionId
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.load import LoadedNetwork
from dcnr_app.nodes.graph.network import context_of, decode_network, encode_network, network_id
from dcnr_app.nodes.graph.training import TrainingSettings, settings_form
from dcnr_app.nodes.registry import Registry
from dcnr_app.settings import Home
from dcnr_app.store import manifest as checkpoint_manifest
from dcnr_app.store.checkpoints import load_checkpoint, needed_bytes
from dcnr_app.store.files import SYSTEM_FILES, Files, check_free_bytes
from dcnr_app.store.sessions import (
    SessionRecord,
    Status,
    committed_step,
    create_session,
    network_bytes,
    new_session_id,
    update_session,
)
from dcnr_app.store.shelf import latest_checkpoint, list_checkpoints
from dcnr_app.store.store import Store

STOP_FILE = "stop.request"
_BYTES_PER_FLOAT = 4
_SLOTS = 3  # weight and two optimizer slots


class Workshop(msgspec.Struct, frozen=True, kw_only=True):
    """What app.py built for running sessions."""

    home: Home
    clock: Clock
    registry: Registry
    make_backend: Callable[[int], Backend]
    staff: Staff
    pid: int
    files: Files = SYSTEM_FILES


class Text(msgspec.Struct, frozen=True):
    """A dataset with its tokenizer, and how long their preparation took."""

    dataset: Dataset
    tokenizer: Tokenizer
    prepare_s: float = 0.0


def create(
    shop: Workshop, store: Store, loaded: LoadedNetwork, settings: TrainingSettings, text: Text
) -> SessionRecord:
    """Record a new session, after all that can be checked beforehand was checked.

    Raises InvalidError if network, dataset and workers do not fit, StoreError if the disk has too little
    room.
    """
    manifest = text.dataset.manifest
    if manifest.n_vocab > loaded.vocabulary:
        raise InvalidError(
            f"the tokenizer has {manifest.n_vocab} ids, the network {loaded.network.name!r} knows "
            f"{loaded.vocabulary}",
            fix="train a smaller tokenizer, or raise the network's vocabulary",
        )
    check_inputs(loaded.network)
    now_ms = shop.clock.wall_ms()
    session = new_session_id(now_ms, secrets.randbits(16))
    network = loaded.network
    draft = SessionJob(session=session, generation=1, network=network, settings=settings)
    plan_for(draft, shop.staff.pnodes, shop.staff.facts)
    BatchCursor(text.dataset, _cursor_settings(settings, loaded.context))
    n_floats = sum(math.prod(p.spec.shape) for p in network_parameters(network).values())
    state_bytes = n_floats * _BYTES_PER_FLOAT * _SLOTS
    check_free_bytes(shop.home.sessions, needed_bytes(state_bytes, kept=settings.keep_last), shop.files)
    record = SessionRecord(
        session=session,
        created_ms=now_ms,
        status="running",
        step=0,
        network=network_id(network),
        network_name=network.name,
        dataset=manifest.id,
        tokenizer=manifest.tokenizer_sha256,
        settings=settings_form(settings),
        device_class="",
        workers=shop.staff.pnodes,
        pid=shop.pid,
    )
    create_session(store, record, encode_network(network))
    return record


def find_start(shop: Workshop, store: Store, record: SessionRecord) -> Found:
    """Where a session goes on. Raises StoreError if it has checkpoints but none verifies."""
    return keeping.find_start(shop.home, store, record, fitness(shop.registry))


def run(
    shop: Workshop,
    store: Store,
    record: SessionRecord,
    text: Text,
    found: Found,
    watcher: Watcher,
    prompt: str,
) -> dict[str, Any]:
    """Train a recorded session from `found` to its end or a stop; returns the result object.

    What became of it is recorded, also when this raises.
    """
    network = decode_network(network_bytes(store, record.session), shop.registry)
    cursor = BatchCursor(text.dataset, _cursor_settings(settings_of(record), context_of(network)))
    backend = shop.make_backend(1)
    stop_file = shop.home.sessions / record.session / STOP_FILE
    stop_file.unlink(missing_ok=True)
    job = SessionJob(
        session=record.session,
        generation=_next_generation(shop, store, record, found.start),
        network=network,
        settings=settings_of(record),
        context=context_of(network),
        start=found.start,
        prompt=prompt,
    )
    feed = SessionFeed(network, cursor, backend, {"tokenizer": text.tokenizer})
    tools = _tools(shop, feed, _journal(shop, store, record, text.tokenizer), text.tokenizer)
    _mark(store, record.session, status="running", pid=shop.pid, workers=shop.staff.pnodes)
    try:
        for split in (text.dataset.manifest.train, text.dataset.manifest.validation):
            verify_shards(text.dataset.folder, split.shards)  # or changed text would be trained on in silence
        outcome = asyncio.run(run_session(job, tools, watcher, stop_file))
    except BaseException as error:
        # The mark is an extra: if the store fails too, the error that came first is the one to tell.
        with suppress(DcnrError):
            _conclude(store, record, "failed" if isinstance(error, Exception) else "interrupted")
        raise
    finally:
        backend.close()
        stop_file.unlink(missing_ok=True)
    _conclude(store, record, "stopped" if outcome.is_stopped else "finished")
    result = _result(shop, store, record, text, cursor, outcome)
    return result if job.generation == 1 else {**result, **_resumed(found)}


def _resumed(found: Found) -> dict[str, Any]:
    """What the result object of a run that is not a session's first says too."""
    return {
        "resumed_from_step": found.start.step,
        "steps_recomputed": len(found.start.recorded),
        "passed_over": [{"checkpoint": item.id, "why": item.why} for item in found.passed_over],
    }


def _tools(
    shop: Workshop, feed: SessionFeed, journal: SessionJournal | None, tokenizer: Tokenizer
) -> SessionTools:
    return SessionTools(
        staff=shop.staff,
        clock=shop.clock,
        feed=feed,
        journal=journal,
        coder=tokenizer,
        orchestrator_pid=shop.pid,
    )


def _journal(shop: Workshop, store: Store, record: SessionRecord, tokenizer: Tokenizer) -> SessionJournal:
    return SessionJournal(
        store,
        record.session,
        shop.clock,
        _checkpoint_writer(shop, store, record, tokenizer),
        lambda: find_start(shop, store, record).start,
    )


def _conclude(store: Store, record: SessionRecord, status: Status) -> None:
    _mark(store, record.session, status=status, step=committed_step(store, record.session))


def _checkpoint_writer(
    shop: Workshop, store: Store, record: SessionRecord, tokenizer: Tokenizer
) -> CheckpointWriter:
    assets = {
        checkpoint_manifest.NETWORK_FILE: network_bytes(store, record.session),
        checkpoint_manifest.TOKENIZER_FILE: _tokenizer_json(shop.home, tokenizer),
    }
    return keeping.checkpoint_writer(shop.home, store, record, shop.clock, shop.files, assets)


def _tokenizer_json(home: Home, tokenizer: Tokenizer) -> bytes:
    path = home.tokenizers / tokenizer.id / TOKENIZER_FILE
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(
            "the tokenizer cannot be read", where=str(path), why=error.strerror or str(error)
        ) from error


def _result(
    shop: Workshop,
    store: Store,
    record: SessionRecord,
    text: Text,
    cursor: BatchCursor,
    outcome: RunOutcome,
) -> dict[str, Any]:
    validation = cursor.validation()
    scores = measure_baselines(text.dataset.train, validation, text.tokenizer.n_vocab)
    factor = bits_per_byte(1.0, scores.n_targets, target_bytes(validation, text.tokenizer))
    has_checkpoint = bool(list_checkpoints(shop.home, record.session))
    return session_result(
        store,
        session=record.session,
        network=record.network,
        dataset=record.dataset,
        vocab=text.tokenizer.n_vocab,
        scores=Scores(
            uniform=scores.uniform, unigram=scores.unigram, bigram=scores.bigram, bits_per_byte_factor=factor
        ),
        outcome=outcome,
        prepare_s=text.prepare_s,
        checkpoint=str(latest_checkpoint(shop.home, record.session).path) if has_checkpoint else "",
    )


def generate(shop: Workshop, checkpoint_path: Path, watcher: Watcher, prompt: str, sampling: Sampling) -> str:
    """Text that a checkpoint's network writes after `prompt`, on one PNode in this process."""
    checkpoint = load_checkpoint(checkpoint_path)
    facts = checkpoint.manifest.facts
    tokenizer = tokenizer_from_file(checkpoint_path / TOKENIZER_FILE)
    network = decode_network(checkpoint.network, shop.registry)
    stored = _settings_in(facts.settings, str(checkpoint_path))
    # One sequence, and nothing left to train: the session is at rest at once.
    settings = msgspec.structs.replace(stored, steps=facts.step, batch=1, microbatches=1)
    job = SessionJob(
        session=SessionId(facts.session),
        generation=1,
        network=network,
        settings=settings,
        context=context_of(network),
        # Nothing is measured either: the checkpoint's own step counts as validated.
        start=StartPoint(
            step=facts.step,
            t=facts.n_applied,
            parts=checkpoint.state,
            validated=frozenset({facts.step}),
        ),
        prompt=prompt,
        sampling=sampling,
    )
    backend = shop.make_backend(1)
    feed = SessionFeed(network, NoBatches(), backend, {"tokenizer": tokenizer})
    tools = _tools(shop, feed, None, tokenizer)
    try:
        return asyncio.run(run_session(job, tools, watcher, None)).sample
    finally:
        backend.close()


def settings_of(record: SessionRecord) -> TrainingSettings:
    """The settings with which the session was created."""
    return _settings_in(record.settings, record.session)


def _settings_in(form: Mapping[str, Any], where: str) -> TrainingSettings:
    try:
        return msgspec.convert(form, TrainingSettings)
    except msgspec.ValidationError as error:
        raise StoreError(
            "the settings of a session cannot be read",
            where=where,
            why=str(error),
            fix="it may be from another version: pip install --upgrade dcnr-app",
        ) from error


def _next_generation(shop: Workshop, store: Store, record: SessionRecord, start: StartPoint) -> int:
    """Fence earlier runs: one event per run, numbered."""
    stream = f"session/{record.session}"
    generation = len(store.read(stream)) + 1
    body = {"generation": generation, "pid": shop.pid, "from_step": start.step}
    append_generation(store, record.session, generation, body)
    return generation


def _mark(store: Store, session: SessionId, **changes: Any) -> None:
    update_session(store, session, lambda record: msgspec.structs.replace(record, **changes))


def _cursor_settings(settings: TrainingSettings, context: int) -> CursorSettings:
    return CursorSettings(
        seed=settings.seed,
        batch=settings.batch,
        microbatches=settings.microbatches,
        context=context,
        validation_sequences=settings.validation_sequences,
    )
