"""Handles stand for arrays exactly as long as they are in the table."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from dcnr_app.errors import InvariantError
from dcnr_app.runtime.tables import HandleTable


def test_get_keeps_and_take_and_release_remove() -> None:
    table = HandleTable()
    first, second = np.zeros(2), np.ones(2)
    a, b = table.put(first), table.put(second)
    assert table.get(a) is first
    assert len(table) == 2
    assert table.take(a) is first
    table.release(b)
    assert len(table) == 0


def test_a_handle_is_never_used_twice() -> None:
    table = HandleTable()
    handles = []
    for _ in range(5):
        handles.append(table.put(np.zeros(1)))
        table.release(handles[-1])
    assert len(set(handles)) == 5


def test_one_array_may_have_two_handles() -> None:
    table = HandleTable()
    array = np.zeros(1)
    a, b = table.put(array), table.put(array)
    table.release(a)
    assert table.get(b) is array


@pytest.mark.parametrize("operation", ["get", "take", "release"])
def test_a_handle_that_is_gone_or_was_never_given_is_refused(operation: str) -> None:
    table = HandleTable()
    handle = table.put(np.zeros(1))
    table.release(handle)
    with pytest.raises(InvariantError, match="taken or released before"):
        getattr(table, operation)(handle)
    with pytest.raises(InvariantError, match="never given"):
        getattr(table, operation)(handle + 5)


@pytest.mark.parametrize("line", range(1, 4))
def test_a_put_between_the_lines_of_another_gets_its_own_handle(line: int) -> None:
    table = HandleTable()
    lines, between = [], []

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is HandleTable.put.__code__ and event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == line:  # as another thread might, at the worst moment
                sys.settrace(None)
                between.append(table.put("inner"))
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        outer = table.put("outer")
    finally:
        sys.settrace(before)
    (inner,) = between
    assert table.get(outer) == "outer"
    assert table.get(inner) == "inner"
