"""Arithmetic in network files: `$name` and `${width // heads}`. Pure; knows no YAML.

A small evaluator over Python's `ast`: numbers, names, + - * / // % **, parentheses, min, max, sqrt. Every
size is capped, so that no expression can take noticeable time or memory.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

from dcnr_app.nodes.graph.spelling import did_you_mean

Number = int | float

MAX_LENGTH = 200
MAX_MAGNITUDE = 10**18
MAX_EXPONENT = 64

_REFERENCE = re.compile(r"\$\{(?P<expression>[^{}]*)\}|\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
# Only these tokens reach Python's parser, which would warn or go far beyond arithmetic on others.
_TOKEN = re.compile(
    r"\s+|[A-Za-z_][A-Za-z0-9_]*|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![A-Za-z0-9_.])|\*\*|//|[-+*/%(),]"
)
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS = ("max", "min", "sqrt")


class ExpressionError(ValueError):
    """An expression that cannot be evaluated; `fix` says what to do, if anything is known."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


def evaluate(expression: str, variables: Mapping[str, Number]) -> Number:
    """The value of an arithmetic expression, a finite number of magnitude at most 1e18.

    Raises ExpressionError.
    """
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(
            f"an expression has at most {MAX_LENGTH} characters, this has {len(expression)}"
        )
    _check_tokens(expression)
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ExpressionError(f"cannot read the expression {expression!r}") from error
    try:
        return _value(tree.body, variables)
    except ZeroDivisionError as error:
        raise ExpressionError(f"{expression!r} divides by zero") from error
    except OverflowError as error:
        raise ExpressionError(f"{expression!r} is too large") from error


def substitute(text: str, variables: Mapping[str, Number]) -> Number | str:
    """`text` with every `$name` and `${...}` replaced; a number if it is one reference and nothing else.

    Raises ExpressionError.
    """
    if "$" not in text:
        return text
    whole = _REFERENCE.fullmatch(text)
    if whole is not None:
        return _match_value(whole, variables)
    rest = _REFERENCE.sub("", text)
    if "$" in rest:
        raise ExpressionError(f"cannot read the `$` in {text[:60]!r}", "write $name or ${expression}")
    return _REFERENCE.sub(lambda match: str(_match_value(match, variables)), text)


def _match_value(match: re.Match[str], variables: Mapping[str, Number]) -> Number:
    name = match["name"]
    return _variable(name, variables) if name is not None else evaluate(match["expression"], variables)


def _variable(name: str, variables: Mapping[str, Number]) -> Number:
    if name not in variables:
        raise ExpressionError(f"unknown variable {name!r}", did_you_mean(name, variables))
    return variables[name]


def _value(node: ast.expr, variables: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return _checked(node.value)
        case ast.Name(id=name):
            return _variable(name, variables)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand, variables))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, variables), _value(right, variables))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _checked(_BINARY[type(op)](_value(left, variables), _value(right, variables)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_value(argument, variables) for argument in args])
        case ast.Call(func=ast.Name(id=name)):
            raise ExpressionError(f"unknown function {name!r}", did_you_mean(name, _FUNCTIONS))
    raise ExpressionError(
        f"an expression cannot hold Python's {type(node).__name__}",
        f"it knows numbers, variables, + - * / // % **, parentheses, {', '.join(_FUNCTIONS)}",
    )


def _check_tokens(expression: str) -> None:
    place = 0
    while place < len(expression):
        token = _TOKEN.match(expression, place)
        if token is None:
            raise ExpressionError(f"cannot read {expression[place:]!r} in the expression {expression!r}")
        place = token.end()


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > MAX_EXPONENT:
        raise ExpressionError(f"the exponent {exponent} is over {MAX_EXPONENT}")
    return _checked(base**exponent)


def _call(name: str, arguments: list[Number]) -> Number:
    if name == "sqrt":
        if len(arguments) != 1 or arguments[0] < 0:
            raise ExpressionError(f"sqrt takes one number that is not negative, got {arguments}")
        return math.sqrt(arguments[0])
    if not arguments:
        raise ExpressionError(f"{name} takes at least one number")
    return max(arguments) if name == "max" else min(arguments)


def _checked(number: object) -> Number:
    if not isinstance(number, int | float) or not math.isfinite(number):
        raise ExpressionError(f"{number} is not a finite real number")
    if abs(number) > MAX_MAGNITUDE:
        raise ExpressionError(f"a number is over {MAX_MAGNITUDE:.0e}")
    return number
