"""How fast a dead worker is noticed and training goes on: by reset (SIGKILL) and by silence (SIGSTOP), each
several times in one run of the real app, worst last. Not a test."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dcnr_app.app import App
from dcnr_app.chaos.faults import Kind
from dcnr_app.chaos.injection import Experiment, disturb
from dcnr_app.chaos.lines import SessionOrder
from dcnr_app.chaos.record import Fault
from dcnr_app.cli.report import RunReport
from dcnr_app.cli.running import prepare_text
from dcnr_app.settings import Home, environment_of
from dcnr_app.store.lock import HomeLock

CAUSES: dict[Kind, str] = {"kill": "reset", "stop": "silence"}


def say(text: str) -> None:
    """Progress, beside the table."""
    print(text, file=sys.stderr)


def measure(kind: Kind, trials: int, every_s: float, workers: int) -> list[Fault]:
    """So many deaths of workers in one session of tiny-gpt, in a home of its own."""
    with tempfile.TemporaryDirectory(prefix="dcnr-death-") as folder:
        app = App(Home(Path(folder)))
        report = RunReport(app.clock, is_quiet=True)
        with HomeLock(app.home, "preparing text"):
            text = prepare_text(app, (), app.network("tiny-gpt").vocabulary, report)
        experiment = Experiment(
            order=SessionOrder(network="tiny-gpt", dataset=text.dataset.manifest.id, workers=workers, seed=1),
            environment=environment_of(app.home),
            duration_s=every_s * (trials + 1),
            faults=tuple((every_s * (number + 1), kind) for number in range(trials)),
        )
        draw = random.Random(1).randrange  # noqa: S311
        record, _ = asyncio.run(disturb(experiment, app.clock, draw, say))
        return record.faults


def main() -> None:
    """Print a row per trial, then the worst of each cause; the same as JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--every", type=float, default=12.0, help="seconds between deaths")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    for kind, cause in CAUSES.items():
        for fault in measure(kind, given.trials, given.every, given.workers):
            noticed, over = fault.noticed_ms, fault.recovered_ms
            found.append(
                {
                    "by": cause,
                    "pnode": fault.pnode,
                    "step": fault.step,
                    "detect_s": None if noticed is None else (noticed - fault.injected_ms) / 1000.0,
                    "recover_s": None if over is None else (over - fault.injected_ms) / 1000.0,
                }
            )
    if given.json:
        print(json.dumps(found))
        return
    for entry in found:
        print(f"{entry['by']:8} {entry['pnode']:9} step {entry['step']:5}  {_times(entry)}")
    for cause in CAUSES.values():
        mine = [entry for entry in found if entry["by"] == cause]
        worst = {
            name: max(math.inf if entry[name] is None else entry[name] for entry in mine)
            for name in ("detect_s", "recover_s")
        }
        print(f"worst of {len(mine)} by {cause}: {_times(worst)}")


def _times(entry: Mapping[str, Any]) -> str:
    detect_s, recover_s = (
        "never" if (value := entry[name]) is None or value == math.inf else f"after {value:.2f} s"
        for name in ("detect_s", "recover_s")
    )
    return f"noticed {detect_s}, first step {recover_s}"


if __name__ == "__main__":
    main()
