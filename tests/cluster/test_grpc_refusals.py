"""gRPC's words about refused handshakes: what each line means, and that a real process logs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

from dcnr_app.cluster.grpc_refusals import Line, RefusalReader
from dcnr_app.settings import child_environment, quiet_libraries, trace_handshakes

HEAD = "I1201 04:52:26.722970   15403 "
ADDED = HEAD + "handshaker.cc:80] handshake_manager {}: adding handshaker {} [0x7f3f840012c0] at index 0"
FAILED = HEAD + "channel_trace.h:396] handshake manager {}: Failed with error: {}"
TLS = "UNKNOWN: Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: WRONG_VERSION_NUMBER: OK"
SHUT = HEAD + "channel_trace.h:396] handshake manager {}: Shutdown called: UNKNOWN: Handshake timed out"


def refusals(*lines: str) -> list[str]:
    reader = RefusalReader()
    return [found.refusal for line in lines if (found := reader.take(line)).refusal]


def test_failed_handshake_of_a_stranger_is_a_refusal_with_its_reason() -> None:
    found = refusals(ADDED.format("0x1", "endpoint_info"), FAILED.format("0x1", TLS))
    assert found == ["Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: WRONG_VERSION_NUMBER"]


def test_handshake_that_took_too_long_is_told_once() -> None:
    found = refusals(
        ADDED.format("0x1", "endpoint_info"), SHUT.format("0x1"), FAILED.format("0x1", "UNAVAILABLE: closing")
    )
    assert found == ["Handshake timed out"]


def test_own_handshake_that_fails_is_no_refusal() -> None:
    assert refusals(ADDED.format("0x1", "tcp_connect"), FAILED.format("0x1", TLS)) == []
    again = [
        ADDED.format("0x1", "endpoint_info"),
        ADDED.format("0x1", "tcp_connect"),
        FAILED.format("0x1", TLS),
    ]
    assert refusals(*again) == []


@pytest.mark.parametrize("line", ["", "Fatal Python error: Aborted", "OpenBLAS warning", "  indented"])
def test_lines_of_others_are_passed_on(line: str) -> None:
    assert RefusalReader().take(line) == Line(passed_on=line)


def test_what_grpc_writes_below_an_error_is_dropped_with_its_further_lines() -> None:
    reader = RefusalReader()
    for line in (HEAD + "x.cc:1] anything", "=== Source Location Trace: ===", "src/core/util/x.cc:68", ""):
        assert reader.take(line) == Line()
    assert reader.take("now another") == Line(passed_on="now another")
    error = "E1201 04:52:02.289612   15233 hpack_encoder.cc:618] too big"
    assert reader.take(error) == Line(passed_on=error)


def test_memory_of_handshakes_is_bounded() -> None:
    reader = RefusalReader()
    for number in range(20_000):
        reader.take(ADDED.format(hex(number), "endpoint_info"))
    assert len(reader._accepted) == 10_000


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is read on Windows")
def test_c_library_lines_are_read_and_pythons_pass_by_and_all_is_restored() -> None:
    code = textwrap.dedent(
        f"""
        import os, sys
        from dcnr_app.cluster.grpc_refusals import refusals_logged
        with refusals_logged():
            os.write(2, b{ADDED.format("0x1", "endpoint_info")!r} + b"\\n")
            os.write(2, b{FAILED.format("0x1", TLS)!r} + b"\\n")
            os.write(2, b"from C\\n")
            print("from Python", file=sys.stderr)
        os.write(2, b"after\\n")
        print("at the end", file=sys.stderr)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    lines = sorted(done.stderr.splitlines())
    refused = "handshake_refused why=Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: "
    assert lines == sorted(["from C", "from Python", "after", "at the end", refused + "WRONG_VERSION_NUMBER"])


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is read on Windows")
def test_flood_of_refusals_is_a_few_lines_and_a_number() -> None:
    code = textwrap.dedent(
        f"""
        import os
        from dcnr_app.cluster.grpc_refusals import refusals_logged
        with refusals_logged():
            for number in range(100):
                os.write(2, b{ADDED.format("0x1", "endpoint_info")!r} + b"\\n")
                os.write(2, b{FAILED.format("0x1", TLS)!r} + b"\\n")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    n_logged = done.stderr.count("handshake_refused why=")
    n_more = sum(int(n) for n in re.findall(r"handshakes_refused n=(\d+)", done.stderr))
    assert n_logged <= 30
    assert n_logged + n_more == 100


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is read on Windows")
def test_tracing_is_set_over_our_own_quiet_and_taken_back_for_a_process_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    monkeypatch.setenv("GRPC_TRACE", "")
    quiet_libraries()
    assert child_environment()["GRPC_TRACE"] == "handshaker"
    assert trace_handshakes()
    assert (os.environ["GRPC_VERBOSITY"], os.environ["GRPC_TRACE"]) == ("INFO", "handshaker")
    quiet_libraries()
    assert (os.environ["GRPC_VERBOSITY"], os.environ["GRPC_TRACE"]) == ("ERROR", "")


def test_lines_that_somebody_asked_for_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    monkeypatch.setenv("GRPC_TRACE", "http")
    quiet_libraries()
    assert not trace_handshakes()
    assert child_environment()["GRPC_TRACE"] == "http"
