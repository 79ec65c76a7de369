"""What a person sees of a run, on terminals and in files."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dcnr_app.cli.report import RunReport, loss_curve
from dcnr_app.clock import SystemClock
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.ids import PNodeId, SessionId


def decision(step: int, *, skip: bool = False) -> Decision:
    return Decision(
        step=step, loss=0.0 if skip else 4.5, gradient_norm=1.0, skip=skip, clip_coefficient=1.0,
        learning_rate=1e-3, t=step, loss_scale=1.0, target_count=4096,
    )  # fmt: skip


def reports() -> dict[PNodeId, GradientsReady]:
    ready = GradientsReady(
        session=SessionId("s"), generation=1, step=1, norms={}, loss_sums={}, max_in_flight=2, compute_ms=1.0
    )
    return {PNodeId("worker-1"): ready, PNodeId("worker-2"): ready}


def many_reports() -> dict[PNodeId, GradientsReady]:
    """Of more workers than a line can name."""
    ready = reports()[PNodeId("worker-1")]
    return {PNodeId(f"worker-{number}"): ready for number in range(1, 17)}


@pytest.mark.parametrize("width", [80, 110, 160])
def test_live_line_shows_steps_and_time_left_at_every_width(width: int) -> None:
    report = RunReport(SystemClock(), n_steps=300)
    screen = io.StringIO()
    report.console = Console(file=screen, width=width, force_terminal=True, highlight=False)
    report._is_live = True
    with report:
        report.prepared("train tokenizer", 2_000_000, 2_000_000)
        for step in (1, 2, 3):
            report.stepped(decision(step), many_reports(), is_replay=True)
    last = screen.getvalue().splitlines()[-2]
    assert "3/300" in last
    assert "0:0" in last
    assert "loss 4.5000" in last


def test_a_skipped_step_has_no_loss_and_is_not_in_the_curve() -> None:
    report = RunReport(SystemClock(), n_steps=3)
    report.stepped(decision(1), reports(), is_replay=False)
    report.stepped(decision(2, skip=True), reports(), is_replay=False)
    assert report.losses == [4.5]
    assert report.skipped == {2}


def test_the_curve_leaves_a_gap_where_a_step_has_no_loss() -> None:
    lines = loss_curve([4.0, None, 3.0, 2.0], height=2).splitlines()
    assert lines[0] == "  4.000 │█   "
    assert lines[1] == "  2.000 │█ █▁"
    assert lines[2].endswith("step 4")
    assert "nan" not in loss_curve([None, None, None])


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def isatty(self) -> bool:
        return True


def test_a_closed_terminal_does_not_end_what_it_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Gone())
    report = RunReport(SystemClock(), n_steps=3)
    with report:
        report.say("text")
        report.stepped(decision(1), reports(), is_replay=False)
    assert report.losses == [4.5]


def test_lines_of_a_file_are_not_wrapped(capfd: pytest.CaptureFixture[str]) -> None:
    RunReport(SystemClock()).say("x" * 400)
    assert "x" * 400 in capfd.readouterr().err
