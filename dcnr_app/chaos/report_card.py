"""The report card of a run under chaos: figures for `--json`, and as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dcnr_app.chaos.faults import FORGIVEN, SILENT
from dcnr_app.chaos.record import Fault, RunRecord


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside the record: the undisturbed run of the same steps, and the ledger's audit."""

    undisturbed_tokens_per_s: float
    disturbed_tokens_per_s: float
    loss_bitwise: bool
    compared_steps: int
    samples_lost: int
    samples_twice: int


def report_card(record: RunRecord, comparison: Comparison) -> dict[str, Any]:
    """The object that `chaos --json` prints. Times in seconds; null: it was not noticed, or never got over.

    `detect_s` is from the fault to the app's notice, `recover_s` to the first step after it. A pause that
    is forgiven is never noticed; its `recover_s` has the pause in it.
    """
    kept = comparison.undisturbed_tokens_per_s
    return {
        "session": record.session,
        "steps": record.step,
        "faults": [_entry(fault) for fault in record.faults],
        "hangs": record.hangs,
        "failures": list(record.failures),
        "recoveries": list(record.recoveries),
        "samples_lost": comparison.samples_lost,
        "samples_twice": comparison.samples_twice,
        "throughput_kept": comparison.disturbed_tokens_per_s / kept if kept else 0.0,
        "tokens_per_s": comparison.disturbed_tokens_per_s,
        "undisturbed_tokens_per_s": comparison.undisturbed_tokens_per_s,
        "stalled_s": record.stalled_ms() / 1000.0,
        "loss_bitwise": comparison.loss_bitwise,
        "compared_steps": comparison.compared_steps,
        "checkpoint_every": record.checkpoint_every,
    }


def is_passed(card: Mapping[str, Any]) -> bool:
    """Whether nothing hung, failed, was lost or counted twice, and every fault was got over as it should
    be, bit for bit."""
    return (
        not (card["hangs"] or card["failures"] or card["samples_lost"] or card["samples_twice"])
        and card["loss_bitwise"]
        and card["compared_steps"] == card["steps"]
        and all(fault["recover_s"] is not None and fault["as_meant"] for fault in card["faults"])
    )


def rows_of(card: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per fault, under the columns fault, PNode, pid, step, noticed, going on."""
    return [
        (
            fault["kind"],
            fault["pnode"],
            str(fault["pid"]),
            str(fault["step"]),
            _noticed(fault),
            "never" if fault["recover_s"] is None else f"after {fault['recover_s']:.2f} s",
        )
        for fault in card["faults"]
    ]


def summary_of(card: Mapping[str, Any]) -> dict[str, str]:
    """The figures below the table, by what they are called."""
    faults = card["faults"]
    loud = [f["detect_s"] for f in faults if f["kind"] not in (SILENT, *FORGIVEN)]
    silent = [f["detect_s"] for f in faults if f["kind"] == SILENT]
    equal = "bit for bit that of the undisturbed run" if card["loss_bitwise"] else "NOT THE UNDISTURBED ONE"
    return {
        "loss series": f"{equal} ({card['compared_steps']} of {card['steps']} steps compared)",
        "samples": f"{card['samples_lost']} lost, {card['samples_twice']} counted twice",
        "hangs": str(card["hangs"]),
        "failures": "; ".join(" ".join(text.split()) for text in card["failures"]) or "none",
        "throughput kept": f"{100.0 * card['throughput_kept']:.1f} %: {card['tokens_per_s']:,.0f} of "
        f"{card['undisturbed_tokens_per_s']:,.0f} tokens/s, replayed steps not counted",
        "without new steps": f"{card['stalled_s']:.1f} s in all, because of faults",
        "noticed, worst": f"{_worst(loud)} on a death, {_worst(silent)} on silence",
        "going on, worst": _worst([f["recover_s"] for f in faults]),
        "snapshot every": f"{card['checkpoint_every']} steps",
    }


def _entry(fault: Fault) -> dict[str, Any]:
    is_forgiven = fault.kind in FORGIVEN and fault.noticed_ms is None
    return {
        "kind": fault.kind,
        "pnode": fault.pnode,
        "pid": fault.pid,
        "step": fault.step,
        "detect_s": _since(fault, fault.noticed_ms),
        "recover_s": _since(fault, fault.recovered_ms),
        "as_meant": is_forgiven if fault.kind in FORGIVEN else fault.noticed_ms is not None,
    }


def _since(fault: Fault, at_ms: float | None) -> float | None:
    return None if at_ms is None else (at_ms - fault.injected_ms) / 1000.0


def _noticed(fault: Mapping[str, Any]) -> str:
    if fault["detect_s"] is not None:
        return f"after {fault['detect_s']:.2f} s"
    return "forgiven" if fault["kind"] in FORGIVEN else "never"


def _worst(values: Sequence[float | None]) -> str:
    if not values:
        return "none was tried"
    if None in values:
        return "never"
    return f"{max(value for value in values if value is not None):.2f} s"
