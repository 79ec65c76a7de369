"""What `dcnr-app chaos` does: prepare text, the disturbed run, the undisturbed one, and the comparison."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dcnr_app.app import App
from dcnr_app.chaos.disturbance import run_in_peace
from dcnr_app.chaos.faults import Kind, fault_order, fault_times_s
from dcnr_app.chaos.injection import Experiment, disturb
from dcnr_app.chaos.lines import SessionOrder
from dcnr_app.chaos.record import RunRecord
from dcnr_app.chaos.report_card import Comparison, report_card, rows_of, summary_of
from dcnr_app.cli.auditing import audit_session
from dcnr_app.cli.lookup import reading
from dcnr_app.cli.output import is_quiet as is_progress_unwanted
from dcnr_app.cli.output import pairs, say, table, write_text
from dcnr_app.cli.report import RunReport
from dcnr_app.cli.running import prepare_text
from dcnr_app.cluster.journal import read_validations
from dcnr_app.errors import DcnrError, PeerError, first_error
from dcnr_app.settings import Home, environment_of, find_home, is_home_named
from dcnr_app.store.lock import HomeLock
from dcnr_app.store.sessions import get_session

COLUMNS = ("fault", "PNode", ">process", ">step", ">noticed", ">going on")


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. `folder` empty: DCNR_HOME, or a folder that is removed."""

    duration_s: float
    every_s: float
    kinds: tuple[Kind, ...]
    workers: int
    network: str
    data: tuple[str, ...]
    seed: int
    folder: str


def run_chaos(settings: ChaosSettings, *, is_quiet: bool) -> dict[str, Any]:
    """Both runs; returns the report card. Raises UserError for faults that cannot be, and what ended a run
    that could not go on."""
    draw = random.Random(settings.seed).randrange  # noqa: S311 - not for secrets
    times_s = fault_times_s(settings.duration_s, settings.every_s)
    kinds = fault_order(settings.kinds, len(times_s), draw)
    told: Callable[[str], None] = (lambda text: None) if is_progress_unwanted(as_json=is_quiet) else say
    with _home(settings.folder) as home:
        app = App(home)
        order = _order(app, settings, is_quiet=is_quiet)
        environment = environment_of(home)
        experiment = Experiment(
            order=order,
            environment=environment,
            duration_s=settings.duration_s,
            faults=tuple(zip(times_s, kinds, strict=True)),
        )
        try:
            record, tokens_per_s = asyncio.run(disturb(experiment, app.clock, draw, told))
            told(f"{record.step} steps; now the same undisturbed")
            again = msgspec.structs.replace(order, until_step=record.step)
            peaceful = asyncio.run(run_in_peace(again, environment, app.clock, told))
        except* DcnrError as group:
            raise first_error(group) from None
        if peaceful.failures or not peaceful.session:
            raise PeerError("the undisturbed run failed", why="; ".join(peaceful.failures))
        return {
            **_settings_shown(settings),
            **report_card(record, _compare(app, record, tokens_per_s, peaceful)),
        }


def show_card(card: Mapping[str, Any]) -> None:
    """The report card for people, on stdout."""
    write_text(table(COLUMNS, rows_of(card)))
    write_text("\n" + pairs(summary_of(card)))


@contextmanager
def _home(folder: str) -> Iterator[Home]:
    if folder:
        yield find_home({"DCNR_HOME": folder})
    elif is_home_named():
        yield find_home()
    else:
        with tempfile.TemporaryDirectory(prefix="dcnr-chaos-", ignore_cleanup_errors=True) as made:
            yield Home(Path(made))


def _order(app: App, settings: ChaosSettings, *, is_quiet: bool) -> SessionOrder:
    """What to train; text is prepared, or found prepared."""
    loaded = app.network(settings.network)
    report = RunReport(app.clock, is_quiet=is_progress_unwanted(as_json=is_quiet))
    with HomeLock(app.home, "preparing text for chaos"), report:
        text = prepare_text(app, settings.data, loaded.vocabulary, report)
    path = Path(settings.network)
    return SessionOrder(
        network=str(path.absolute()) if path.is_file() else settings.network,
        dataset=text.dataset.manifest.id,
        workers=settings.workers,
        seed=settings.seed,
    )


def _compare(app: App, record: RunRecord, tokens_per_s: float, peaceful: RunRecord) -> Comparison:
    with reading(app) as store:
        audit = audit_session(app, store, get_session(store, record.session))
        disturbed, undisturbed = dict(store.commits(record.session)), dict(store.commits(peaceful.session))
        validations = [
            {step: loss for step, loss in read_validations(store, name).items() if step <= record.step}
            for name in (record.session, peaceful.session)
        ]
    # Commit rows are canonical: equal bytes are equal bits of loss, norm and learning rate.
    compared = [step for step in disturbed if step in undisturbed]
    return Comparison(
        undisturbed_tokens_per_s=peaceful.tokens_per_s(),
        disturbed_tokens_per_s=tokens_per_s,
        loss_bitwise=bool(compared)
        and all(disturbed[step] == undisturbed[step] for step in compared)
        and validations[0] == validations[1],
        compared_steps=len(compared),
        samples_lost=audit["lost"],
        samples_twice=audit["twice"],
    )


def _settings_shown(settings: ChaosSettings) -> dict[str, Any]:
    return {
        "network": settings.network,
        "workers": settings.workers,
        "seed": settings.seed,
        "minutes": settings.duration_s / 60.0,
        "every_s": settings.every_s,
    }
