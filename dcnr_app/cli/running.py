"""Running a session from the command line: lock, report, Ctrl-C, result."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from dcnr_app import sessions
from dcnr_app.app import App
from dcnr_app.cli.output import is_quiet, path_text, write_json, write_text
from dcnr_app.cli.report import RunReport, loss_curve
from dcnr_app.data.dataset import SplitSettings
from dcnr_app.data.documents import Document, standard_library_documents, utf8
from dcnr_app.data.prepare import prepare, splittable_corpus
from dcnr_app.data.tokenizer_training import TokenizerSettings
from dcnr_app.errors import StoreError, UserError
from dcnr_app.nodes.graph.load import LoadedNetwork
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.store.lock import HomeLock
from dcnr_app.store.sessions import SessionRecord
from dcnr_app.store.store import Store

HUNG_UP = 129
_ENDED = (
    128  # a shell's exit code for the end by signal n is 128 + n: 129 hung up, 130 Ctrl-C, 143 terminated
)


def prepare_text(app: App, data: tuple[str, ...], vocabulary: int, report: RunReport) -> sessions.Text:
    """The dataset of `data` (files, folders, globs), or of Python's standard library; cached by content."""
    started_ms = app.clock.monotonic_ms()
    split = SplitSettings()
    documents: Iterable[Document] = splittable_corpus(data, split) if data else standard_library_documents()
    settings = TokenizerSettings(vocab_size=vocabulary)
    tokenizer, dataset = prepare(app.home.root, documents, settings, split, report.prepared)
    manifest = dataset.manifest
    report.say(
        f"dataset {manifest.id}: {manifest.train.n_tokens:,} training and {manifest.validation.n_tokens:,} "
        f"validation tokens, vocabulary {tokenizer.n_vocab}"
    )
    return sessions.Text(dataset, tokenizer, (app.clock.monotonic_ms() - started_ms) / 1000.0)


def check_prompt(prompt: str) -> None:
    """Raise UserError for a prompt that no text can follow, before anything is begun."""
    utf8(prompt, "--prompt")
    if not prompt:
        raise UserError(
            "the prompt is empty", where="--prompt", fix="give at least one character: --prompt 'def '"
        )


def start_session(
    app: App,
    loaded: LoadedNetwork,
    settings: TrainingSettings,
    find_text: Callable[[RunReport], sessions.Text],
    *,
    n_workers: int,
    as_json: bool,
    prompt: str,
) -> int:
    """Create a session and run it; returns the exit code. Raises UserError for an impossible prompt."""
    check_prompt(prompt)

    def work(store: Store, report: RunReport) -> dict[str, Any]:
        text = find_text(report)
        shop = app.workshop(n_workers)
        record = sessions.create(shop, store, loaded, settings, text)
        report.say(f"session {record.session}")
        return _train(shop, store, record, text, report, prompt)

    return _hold_and_run(app, f"training {loaded.network.name}", settings.steps, work, as_json=as_json)


def run_session_command(
    app: App, record: SessionRecord, *, n_workers: int | None, as_json: bool, prompt: str
) -> int:
    """Go on with a recorded session; returns the exit code. `n_workers` None: as many as it had."""
    check_prompt(prompt)
    workers = len([p for p in record.workers if p != "local"]) if n_workers is None else n_workers

    def work(store: Store, report: RunReport) -> dict[str, Any]:
        dataset, tokenizer = app.dataset_of(record)
        return _train(app.workshop(workers), store, record, sessions.Text(dataset, tokenizer), report, prompt)

    doing = f"resuming session {record.session}"
    return _hold_and_run(app, doing, int(record.settings["steps"]), work, as_json=as_json)


def _hold_and_run(
    app: App,
    doing: str,
    n_steps: int,
    work: Callable[[Store, RunReport], dict[str, Any]],
    *,
    as_json: bool,
) -> int:
    """`work` under the home's lock, with signals and a report; its result is shown. Returns the exit code."""
    report = RunReport(app.clock, n_steps=n_steps, is_quiet=is_quiet(as_json=as_json))
    with _signals(report) as received:
        try:
            with HomeLock(app.home, doing), closing(app.writer()) as store, report:
                result = work(store, report)
        except KeyboardInterrupt:
            return _exit_code(received)
    if result["checkpoint"]:
        result["checkpoint"] = path_text(Path(result["checkpoint"]))
    try:
        if as_json:
            write_json(result)
        else:
            _summarise(result, report)
    except StoreError:
        if _exit_code(received) != HUNG_UP:  # then stdout is gone with the terminal, as was to be expected
            raise
    return _exit_code(received) if result["status"] == "stopped" else 0


def _train(
    shop: sessions.Workshop,
    store: Store,
    record: SessionRecord,
    text: sessions.Text,
    report: RunReport,
    prompt: str,
) -> dict[str, Any]:
    found = sessions.find_start(shop, store, record)
    for item in found.passed_over:
        report.say(f"checkpoint {item.id} is passed over: {item.why}")
    if found.start.step:
        report.say(
            f"going on from the checkpoint of step {found.start.step}, "
            f"{len(found.start.recorded)} steps to replay"
        )
    return sessions.run(shop, store, record, text, found, report, prompt)


def _exit_code(received: list[int]) -> int:
    """129, 130 or 143 by the first signal; 0 without one: another process asked for the stop."""
    return _ENDED + received[0] if received else 0


def _stop_signals() -> list[signal.Signals]:
    """Ctrl-C, a request to terminate, and a closed terminal: unless that is ignored already, as by nohup."""
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is None or signal.getsignal(hang_up) == signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hang_up]


@contextmanager
def _signals(report: RunReport) -> Iterator[list[int]]:
    """First Ctrl-C (or SIGTERM, SIGHUP): training stops at the next step with a checkpoint; what comes before
    training is given up. Second: end at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if received and number == getattr(signal, "SIGHUP", None):
            return  # a closing terminal tells it several times
        received.append(number)
        if len(received) > 1:
            report.restore_terminal()
            os._exit(_exit_code(received))  # the workers end with their pipes
        if report.stop is None:
            raise KeyboardInterrupt
        report.stop()

    before = {number: signal.signal(number, handle) for number in _stop_signals()}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _summarise(result: dict[str, Any], report: RunReport) -> None:
    """The end of a run, for a person: stdout has the facts, as data."""
    skipped = report.skipped
    losses = [None if step in skipped else loss for step, loss in enumerate(result["losses"], start=1)]
    curve = loss_curve(losses)
    lines = [curve] if curve else []
    validation, baselines = result["validation"], result["baselines"]
    if validation:
        loss = validation[-1][1]
        lines += [
            f"validation loss {loss:.4f} nats per token "
            f"({result['validation_bits_per_byte']:.3f} bits per byte)",
            f"for comparison: bigram table {baselines['bigram']:.4f}, unigram {baselines['unigram']:.4f}, "
            f"uniform {baselines['uniform']:.4f}",
        ]
    lines.append(f"{result['tokens_per_s']:,.0f} tokens/s, {result['train_s']:.1f} s of training")
    if result["sample"]:
        lines += ["sample:", *(f"  {line}" for line in result["sample"].splitlines())]
    if result["checkpoint"]:
        lines.append(f"checkpoint {result['checkpoint']}")
    session = result["session"]
    if result["status"] == "stopped":
        lines.append(f"stopped after step {len(result['losses'])}; go on with:")
        lines.append(f"  dcnr-app session resume {session}")
    else:
        lines += [
            "next:",
            '  dcnr-app generate latest --prompt "def "',
            f"  dcnr-app session show {session}",
            "  dcnr-app network show tiny-gpt        and write a network of your own (README)",
        ]
    write_text("\n".join(lines))
