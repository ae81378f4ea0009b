"""Arithmetic written by a user: parsed into closures, never handed to `eval`.

The language is Python's expression syntax cut down to numbers, names, `+ - * / // % **`, unary
minus, comparisons, `and`, `or`, `not`, `a if c else b`, and the functions in `FUNCTIONS`. All
values are float64; true is 1 and false is 0.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seer.errors import UsageError, nearest

MAX_TEXT = 1_000
MAX_DEPTH = 100
MAX_EXPONENT = 100.0
MAX_MAGNITUDE = 1e30
"""Larger than any count of FLOP or bytes in training; a bigger value is a mistake."""

Values = Mapping[str, float]
_Run = Callable[[Values], float]

FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {
    # name: (function, fewest arguments, most arguments)
    "min": (min, 2, 64),
    "max": (max, 2, 64),
    "ceil": (math.ceil, 1, 1),
    "floor": (math.floor, 1, 1),
    "round": (round, 1, 1),
    "abs": (abs, 1, 1),
    "log2": (math.log2, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
}


class _RefusedError(Exception):
    """Why a formula cannot be meant, without its place."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > MAX_EXPONENT:
        raise _RefusedError(f"the exponent {exponent:g} is above {MAX_EXPONENT:g}")
    result: Any = base**exponent
    if isinstance(result, complex):
        raise _RefusedError("a negative number has no fractional power")
    return float(result)


_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True)
class Formula:
    """A compiled formula.

    Attributes
    ----------
    text : str
        As it was written.
    where : str
        The file and JSON path it stands at, for errors.
    names : frozenset of str
        The parameters it reads.
    """

    text: str
    where: str
    names: frozenset[str]
    _run: _Run = field(repr=False, compare=False)

    def evaluate(self, values: Values) -> float:
        """The value over `values`; raises UsageError on an unknown name or a non-finite result.

        >>> compile_formula("2 * tokens * hidden ** 2", "m").evaluate({"tokens": 3, "hidden": 4})
        96.0
        """
        try:
            return _bounded(float(self._run(values)))
        except _RefusedError as refused:
            raise self._error(refused.why, refused.hint) from None
        except KeyError as missing:
            name = str(missing.args[0])
            raise self._error(f"'{name}' is not a parameter", nearest(name, values)) from None
        except (ArithmeticError, ValueError, TypeError) as fault:
            raise self._error(str(fault)) from None

    def _error(self, why: str, hint: str = "") -> UsageError:
        what = f"the formula '{self.text[:80]}' has no value"
        return UsageError(what, where=self.where, why=why, hint=hint)


def compile_formula(text: str | int | float, where: str) -> Formula:
    """Compile a formula (a plain number is one, too); raises UsageError with `where`.

    >>> compile_formula("max(m, 8) if causal else m", "op").evaluate({"m": 3, "causal": 1})
    8.0
    >>> sorted(compile_formula("tokens / tp", "op").names)
    ['tokens', 'tp']
    """
    shown = str(text) if not isinstance(text, int) or abs(text) < 10**40 else "a huge number"
    names: set[str] = set()
    try:
        if isinstance(text, (int, float)):
            return Formula(shown, where, frozenset(), _constant(text))
        run = _compile(_parse(text), names, 0)
        return Formula(text, where, frozenset(names), run)
    except _RefusedError as refused:
        what = f"the formula '{shown[:80]}' is not accepted"
        raise UsageError(what, where=where, why=refused.why, hint=refused.hint) from None


def _parse(text: Any) -> ast.expr:
    if not isinstance(text, str):
        raise _RefusedError("it is neither a number nor text")
    if len(text) > MAX_TEXT:
        raise _RefusedError(f"it has {len(text)} characters; at most {MAX_TEXT} are allowed")
    try:
        with warnings.catch_warnings():  # Python warns about "1if x" and the like
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as fault:
        raise _RefusedError(f"{fault.msg} (column {fault.offset or 1})") from None
    except (ValueError, RecursionError, MemoryError):
        raise _RefusedError("it cannot be read as arithmetic") from None


def _compile(node: ast.expr, names: set[str], depth: int) -> _Run:
    if depth > MAX_DEPTH:
        raise _RefusedError(f"it is nested more than {MAX_DEPTH} levels deep")

    def part(child: ast.expr) -> _Run:
        return _compile(child, names, depth + 1)

    match node:
        case ast.Constant(value=int() | float() as value):
            return _constant(value)
        case ast.Name(id=name):
            names.add(name)
            return lambda values: _bounded(float(values[name]))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(_BINARY[type(op)], part(left), part(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _unary(_UNARY[type(op)], part(operand))
        case ast.BoolOp(op=op, values=operands):
            return _boolean(isinstance(op, ast.And), [part(operand) for operand in operands])
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison(ops, [part(operand) for operand in (left, *others)])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _choice(part(test), part(body), part(orelse))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, arguments, part)
    raise _RefusedError(
        f"'{ast.unparse(node)[:40]}' is not arithmetic",
        "numbers, names, + - * / // % **, comparisons, 'a if c else b' and " + ", ".join(FUNCTIONS),
    )


def _bounded(value: float) -> float:
    if -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE:
        return value
    raise _RefusedError(f"a value of {value:g} is not a finite number below {MAX_MAGNITUDE:g}")


def _constant(value: int | float) -> _Run:
    try:
        number = _bounded(float(value))
    except OverflowError:
        raise _RefusedError("the number is too large") from None
    return lambda values: number


def _binary(operation: Callable[[float, float], float], left: _Run, right: _Run) -> _Run:
    return lambda values: _bounded(operation(left(values), right(values)))


def _unary(operation: Callable[[float], float], operand: _Run) -> _Run:
    return lambda values: float(operation(operand(values)))


def _boolean(is_and: bool, operands: list[_Run]) -> _Run:
    def run(values: Values) -> float:
        result = 0.0
        for operand in operands:
            result = operand(values)
            if bool(result) != is_and:
                break
        return result

    return run


def _comparison(ops: list[ast.cmpop], operands: list[_Run]) -> _Run:
    unknown = [op for op in ops if type(op) not in _COMPARE]
    if unknown:
        raise _RefusedError(f"the comparison '{type(unknown[0]).__name__}' is not arithmetic")
    compare = [_COMPARE[type(op)] for op in ops]

    def run(values: Values) -> float:
        numbers = [operand(values) for operand in operands]
        pairs = zip(compare, numbers, numbers[1:], strict=False)
        return float(all(holds(a, b) for holds, a, b in pairs))

    return run


def _choice(test: _Run, body: _Run, orelse: _Run) -> _Run:
    return lambda values: body(values) if test(values) else orelse(values)


def _call(name: str, arguments: list[ast.expr], part: Callable[[ast.expr], _Run]) -> _Run:
    if name not in FUNCTIONS:
        raise _RefusedError(f"'{name}' is not a function", nearest(name, FUNCTIONS))
    function, fewest, most = FUNCTIONS[name]
    if not fewest <= len(arguments) <= most:
        raise _RefusedError(f"{name}() takes {fewest} to {most} values, not {len(arguments)}")
    operands = [part(argument) for argument in arguments]
    return lambda values: _bounded(float(function(*(operand(values) for operand in operands))))
