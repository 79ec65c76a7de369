"""Which builds may work together, and what a person is told when they may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dcnr_app import __version__
from dcnr_app.cluster.builds import Build, difference_note, refuse_mismatch, this_build
from dcnr_app.cluster.messages import PROTOCOL_VERSION
from dcnr_app.errors import RefusedError

HERE = this_build("abc")


def with_(**fields: Any) -> Build:
    return msgspec.structs.replace(HERE, **fields)


def test_this_build_fits_itself_and_says_what_it_is() -> None:
    refuse_mismatch(HERE, HERE)
    assert (HERE.version, HERE.protocol_max) == (__version__, PROTOCOL_VERSION)
    assert "float32" in HERE.dtypes


def test_overlapping_protocols_and_other_versions_alone_are_no_reason() -> None:
    refuse_mismatch(with_(version="9", protocol_min=1, protocol_max=5), HERE)
    refuse_mismatch(with_(device_class="other", dtypes=("float32", "bfloat16")), HERE)


@pytest.mark.parametrize(
    ("joining", "wanted"),
    [
        ({"protocol_min": 3, "protocol_max": 4}, "different protocols (3 to 4 and 2)"),
        ({"protocol_min": 0, "protocol_max": 0}, "different protocols (0 and 2)"),
        ({"messages": "other"}, "different messages"),
        ({"numerics": 99}, "compute by different rules (numerics 99 and 1)"),
    ],
)
def test_mismatch_names_the_reason_and_the_exact_command(joining: dict[str, Any], wanted: str) -> None:
    with pytest.raises(RefusedError, match=r"dcnr-app 8\.1 cannot join") as told:
        refuse_mismatch(with_(version="8.1", **joining), HERE)
    assert wanted in told.value.why
    assert told.value.fix == f"on the machine that joins: python -m pip install 'dcnr-app=={__version__}'"


def test_machine_without_a_needed_dtype_is_refused() -> None:
    with pytest.raises(RefusedError, match="cannot compute in float32"):
        refuse_mismatch(with_(dtypes=("bfloat16",)), HERE)


def test_another_device_class_is_noted_and_an_unknown_one_is_not() -> None:
    assert "not bit for bit" in difference_note(with_(device_class="other"), HERE)
    assert difference_note(HERE, HERE) == difference_note(with_(device_class=""), HERE) == ""


def test_version_of_a_stranger_is_shown_without_control_characters() -> None:
    with pytest.raises(RefusedError) as told:
        refuse_mismatch(with_(version="1\x1b[2J" + "9" * 99, messages="other"), HERE)
    assert "\x1b" not in str(told.value)
    assert len(told.value.what) < 120
