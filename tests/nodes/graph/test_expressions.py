"""Arithmetic in network files, compared with Python's own on generated expressions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.nodes.graph.expressions import MAX_MAGNITUDE, ExpressionError, evaluate, substitute

VARIABLES = {"width": 128, "heads": 4, "std": 0.02}


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    )
    functions = st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
        lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
    )
    return binary | functions | inner.map(lambda text: f"(-{text})")


_LEAVES = st.integers(0, 10**6).map(str) | st.floats(0, 1e6).map(repr) | st.sampled_from([*VARIABLES])
EXPRESSIONS = st.recursive(_LEAVES, _combine, max_leaves=6).filter(lambda text: len(text) <= 200)


@settings(deadline=None)
@given(EXPRESSIONS)
def test_values_equal_pythons(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}, "min": min, "max": max}, dict(VARIABLES))  # noqa: S307
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="divides by zero"):
            evaluate(text, VARIABLES)
        return
    try:
        found = evaluate(text, VARIABLES)
    except ExpressionError as error:
        assert "over" in str(error)
    else:
        assert found == expected
        assert type(found) is type(expected)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_gives_a_capped_number_or_a_refusal(text: str) -> None:
    try:
        found = evaluate(text, VARIABLES)
    except ExpressionError:
        return
    assert math.isfinite(found)
    assert abs(found) <= MAX_MAGNITUDE


@settings(deadline=None)
@given(st.text(alphabet="$(){}*-/+19eEij.,w ", max_size=60))
def test_any_scalar_is_substituted_or_refused(text: str) -> None:
    try:
        found = substitute(text, {"i": 1, "w": 2.5})
    except ExpressionError:
        return
    assert not isinstance(found, str) or "$" not in found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 ** 10", 1024),
        ("-2 ** 2", -4),
        ("7 // 2 + 7 % 2", 4),
        ("std / sqrt(2 * 8)", 0.005),
        ("max(1, heads, 3)", 4),
        ("(1 + 2) * width", 384),
        ("1e-3", 0.001),
    ],
)
def test_known_values(text: str, value: float) -> None:
    assert evaluate(text, VARIABLES) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9**9**9", "the exponent 387420489 is over 64"),
        ("10**18 * 10**18", "a number is over"),
        ("1 // 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("(-8) ** 0.5", "not a finite real number"),
        ("sqrt(-1)", "not negative"),
        ("wdith", "unknown variable 'wdith'"),
        ("exec(1)", "unknown function 'exec'"),
        ("width.real", "cannot read '.real'"),
        ("'a'", "cannot read"),
        ("[1]", "cannot read"),
        ("1 if 1 else 2", "cannot hold Python's IfExp"),
        ("True", "cannot hold Python's Constant"),
        ("(lambda)", "cannot read the expression"),
        ("1 +", "cannot read the expression"),
        ("", "cannot read the expression"),
        ("min()", "min takes at least one number"),
        ("1" * 201, "at most 200 characters"),
        ("(" * 100 + "1" + ")" * 99, "cannot read the expression"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, VARIABLES)
    assert message in str(caught.value)


def test_a_misspelt_variable_gets_a_suggestion() -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate("2 * wdith", VARIABLES)
    assert caught.value.fix == "did you mean 'width'?"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$heads", 4),
        ("${width // heads}", 32),
        ("broadcast:${heads - 1}", "broadcast:3"),
        ("broadcast:$heads", "broadcast:4"),
        ("$heads/$width", "4/128"),
        ("plain", "plain"),
    ],
)
def test_references_in_scalars(text: str, value: float | str) -> None:
    assert substitute(text, VARIABLES) == value


@pytest.mark.parametrize("text", ["$", "a$", "${width", "$1", "$$heads"])
def test_a_lone_dollar_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="cannot read the `\\$`"):
        substitute(text, VARIABLES)
