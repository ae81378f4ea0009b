"""Launch scripts read as data: assignments, arrays and plain conditions; nothing is executed.

Functions are read where they are called, of a `for` the first turn alone; other loops are passed
over (both said in the notes). Files do not exist, and the environment is not looked at: a variable
that the script does not set is empty. Its arguments may be written into it: `set -- 1 8 bf16`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from seer.errors import UnreadableError
from seer.readers.doors.shell_words import UNKNOWN, Expander, Token, tokens_of

MAX_COMMANDS = 20_000
MAX_CALLS = 1_000
"""Calls of functions in a script."""
MAX_NESTED = 20
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PREFIXES = ("export", "local", "declare", "readonly", "typeset")
_TESTS = ("[", "[[", "test", "!")
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_SHELL = re.compile(r"(\S*/)?(ba|z|da)?sh -[a-z]*c")
"""A shell and the option behind which a text of commands follows."""
_BLOCKS = {"for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}


@dataclass
class Script:
    """What a script says: its commands as words, and its variables at the end."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_script(text: str, where: str, variables: Mapping[str, list[str]] | None = None) -> Script:
    """Walk through a script; raises UnreadableError when it is damaged or expands without end.

    `variables` are set before its first line.
    """
    reader = _Reader(tokens_of(text, where), where)
    reader.script.variables.update(variables or {})
    reader.run()
    return reader.script


def _is_name(name: str) -> bool:
    """Whether a variable has a name of its own; arguments have numbers."""
    return name[:1].isalpha() or name[:1] == "_"


class _Reader:
    """Walks over statements; `_taken` says for each open condition whether its branch runs."""

    def __init__(self, tokens: list[Token], where: str) -> None:
        self._tokens, self._at, self._where = tokens, 0, where
        self.script = Script()
        self._expand = Expander(self.script.variables, where)
        self._branches: list[list[bool]] = []  # [runs now, has run already]
        self._functions: dict[str, list[Token]] = {}
        self._calls, self._depth = 0, 0

    def run(self) -> None:
        skips, holds = False, True
        while self._at < len(self._tokens):
            statement = self._statement()
            joint = self._tokens[self._at - 1].text if self._at <= len(self._tokens) else ""
            if skips:
                if statement and statement[0].text == "{":
                    self._body("{")
            elif statement:
                is_test = joint in ("&&", "||") and statement[0].text in _TESTS
                holds = self._test(statement) if is_test else True  # a command succeeds
                self._do(statement)
                joint = self._tokens[self._at - 1].text if self._at <= len(self._tokens) else ""
            skips = (joint == "&&" and not holds) or (joint == "||" and holds)

    def _statement(self) -> list[Token]:
        """The tokens up to the next separator."""
        start = self._at
        while self._at < len(self._tokens) and self._tokens[self._at].kind != "end":
            self._at += 1
        statement = self._tokens[start : self._at]
        self._at += 1
        return statement

    @property
    def _running(self) -> bool:
        return all(runs for runs, _ in self._branches)

    def _do(self, statement: list[Token]) -> None:
        word = statement[0].text if statement[0].kind == "word" else ""
        rest = statement[1:]
        if word == "if":
            self._branches.append([False, False])
            self._condition(rest)
        elif word in ("elif", "else") and self._branches:
            branch = self._branches[-1]
            branch[0] = False
            if word == "elif":
                self._condition(rest)
            else:
                branch[0] = not branch[1]
                self._rest(rest)
        elif word in ("then", "do"):
            self._rest(rest)
        elif word in ("fi", "esac"):
            if self._branches:
                self._branches.pop()
        elif word == "case":
            self._start_case(rest)
        elif word == "function" or self._is_function():
            self._define(rest if word == "function" else statement)
        elif word == "{":  # a group of commands
            self._rest(rest)
        elif word == "for" and [t.text for t in rest[1:2]] == ["in"]:
            self._first_turn(rest, statement[0].line)
        elif word in _BLOCKS:
            self.script.notes.append(f"the loop in line {statement[0].line} is not followed")
            self._body(word)
        elif self._running:
            self._simple(statement)

    def _rest(self, rest: list[Token]) -> None:
        if rest:
            self._do(rest)

    def _condition(self, words: list[Token]) -> None:
        """Evaluate the tests up to `then`."""
        result = self._test(words)
        while self._at < len(self._tokens):
            joint = self._tokens[self._at - 1].text
            if joint not in ("&&", "||"):
                break
            following = self._test(self._statement())
            result = result and following if joint == "&&" else result or following
        branch = self._branches[-1]
        branch[0] = result and not branch[1]
        branch[1] = branch[1] or result

    def _test(self, tokens: list[Token]) -> bool:
        words = [self._expand.text(t.text) for t in tokens]
        outer = words[:1] == ["!"]
        words = words[1:] if outer else words
        if words and words[0] in ("[", "[[", "test"):
            words = words[1:]
            if words and words[-1] in ("]", "]]"):
                words = words[:-1]
        negated = words[:1] == ["!"]
        words = words[1:] if negated else words
        return self._holds(words, tokens) != (negated != outer)

    def _holds(self, words: list[str], tokens: list[Token]) -> bool:
        if len(words) == 1:
            return words[0] not in ("", "false")
        if len(words) == 2 and words[0] in ("-z", "-n"):
            return (words[1] == "") == (words[0] == "-z")
        if len(words) == 2 and words[0] in ("-f", "-d", "-e", "-s", "-x", "-r"):
            return False  # no file is looked at
        if len(words) == 3:
            left, operator, right = words
            if operator in ("=", "==", "!="):
                return (left == right) == (operator != "!=")
            if operator in _NUMBERS and re.fullmatch(r"-?\d{1,18} -?\d{1,18}", f"{left} {right}"):
                a, b = int(left), int(right)
                return {
                    "==": a == b, "!=": a != b, ">": a > b, ">=": a >= b, "<": a < b, "<=": a <= b,
                }[_NUMBERS[operator]]  # fmt: skip
        if tokens:  # none in front of a bracket
            what = f"the condition in line {tokens[0].line} is not understood: taken as false"
            self.script.notes.append(what)
        return False

    def _start_case(self, words: list[Token]) -> None:
        """`case WORD in`: patterns are tried as their statements come up."""
        value = self._expand.text(words[0].text) if words else ""
        self._branches.append([False, False])
        depth = len(self._branches)
        while self._at < len(self._tokens) and len(self._branches) >= depth:
            patterns: list[str] = []
            while self._at < len(self._tokens):  # the pattern list ends with a bracket
                token = self._tokens[self._at]
                self._at += 1
                if token.text == ")":
                    break
                if token.text == "esac":
                    self._branches.pop()
                    return
                if token.kind == "word" and token.text != "in":
                    patterns.append(self._expand.text(token.text))
            branch = self._branches[-1]
            branch[0] = not branch[1] and (value in patterns or "*" in patterns)
            branch[1] = branch[1] or branch[0]
            self._until_next_pattern(depth)

    def _until_next_pattern(self, depth: int) -> None:
        while self._at < len(self._tokens):
            statement = self._statement()
            if statement:
                self._do(statement)
            if len(self._branches) < depth or self._tokens[self._at - 1].text == ";;":
                return

    def _is_function(self) -> bool:
        """Whether `name ( )` was read: the statement ended at an opening bracket."""
        ends = [t.text for t in self._tokens[self._at - 1 : self._at + 1]]
        return ends == ["(", ")"]

    def _define(self, statement: list[Token]) -> None:
        """`function f { ...` or `f() { ...`: keep the body under its name."""
        opened = [t.text for t in statement[1:2]] == ["{"]
        inline = [*statement[2:], Token("end", ";")] if opened else []
        if statement:
            self._functions[statement[0].text] = [*inline, *self._body("{", depth=int(opened))]

    def _body(self, word: str, depth: int = 1) -> list[Token]:
        """The tokens of a loop or a function up to its end, which are passed over."""
        end = _BLOCKS[word]
        starts = [k for k, v in _BLOCKS.items() if v == end]
        first = self._at
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token.kind != "word":
                continue
            if token.text in starts:
                depth += 1
            elif token.text == end:
                depth -= 1
                if depth <= 0:
                    return self._tokens[first : self._at - 1]
        return self._tokens[first:]

    def _first_turn(self, rest: list[Token], line: int) -> None:
        """Read the body of `for name in ...` once, with the first of its values."""
        values = [piece for token in rest[2:] for piece in self._expand.fields(token.text)]
        body = self._body("for")
        if not (self._running and values):
            return
        if len(values) > 1:
            self.script.notes.append(f"of the loop in line {line} the first turn is read")
        self.script.variables[rest[0].text] = values[:1]
        self._read(body)

    def _read(self, tokens: list[Token]) -> None:
        """Walk through the tokens of a body."""
        if self._depth >= MAX_NESTED or self._calls >= MAX_CALLS:
            return
        self._depth, self._calls = self._depth + 1, self._calls + 1
        away = self._tokens, self._at, self._branches
        self._tokens, self._at, self._branches = tokens, 0, []
        self.run()
        self._tokens, self._at, self._branches = away
        self._depth -= 1

    def _simple(self, statement: list[Token]) -> None:
        """An assignment, or a command."""
        variables = self.script.variables
        tokens = list(statement)
        if tokens[0].kind == "word" and tokens[0].text in _PREFIXES:
            tokens = [t for t in tokens[1:] if t.kind == "array" or not t.text.startswith("-")]
        while tokens:
            token = tokens[0]
            found = _ASSIGNMENT.fullmatch(token.text) if token.kind == "word" else None
            if token.kind == "array":
                name = token.text.removesuffix("+")
                items = [piece for item in token.items for piece in self._expand.fields(item)]
                before = variables.get(name, []) if token.text.endswith("+") else []
                variables[name] = [*before, *items]
            elif found:
                name, more, value = found.groups()
                before_text = (variables.get(name) or [""])[0] if more else ""
                variables[name] = [before_text + self._expand.text(value)]
            else:
                break
            tokens = tokens[1:]
        if tokens and len(self.script.commands) < MAX_COMMANDS:
            words = [piece for token in tokens for piece in self._expand.fields(token.text)]
            if words[:2] == ["set", "--"]:
                self._arguments(words[2:])
            elif words[:1] == ["let"]:
                self._let(words[1:])
            elif words and words[0] in self._functions:
                mine = {k: v for k, v in variables.items() if not _is_name(k)}
                self._arguments(words[1:])
                self._read(self._functions[words[0]])
                variables.update(mine)
            elif words and not self._handed_over(words):
                self.script.commands.append(words)

    def _handed_over(self, words: list[str]) -> bool:
        """Read the text that `eval` or `bash -c` is given, and say whether there was one.

        Its commands keep the words before the shell: `srun --nodes 4 bash -c "torchrun ..."`.
        """
        if words[0] == "eval":
            before, text = 0, " ".join(words[1:])
        else:
            calls = (
                k for k, pair in enumerate(pairwise(words)) if _SHELL.fullmatch(" ".join(pair))
            )
            before = next(calls, len(words))
            text = next(iter(words[before + 2 :]), "")
        if not text:
            return False
        try:
            tokens = tokens_of(text, self._where)
        except UnreadableError:
            return False  # quotations that went with an expansion: the words as they are
        first = len(self.script.commands)
        self._read(tokens)
        for command in self.script.commands[first:]:
            command[:0] = words[:before]
        return True

    def _arguments(self, values: list[str]) -> None:
        """`set -- a b`: what $1, $2, $# and $@ stand for."""
        variables = self.script.variables
        variables |= {str(n): [value] for n, value in enumerate(values, 1)}
        variables |= {"#": [str(len(values))], "@": values, "*": values}

    def _let(self, words: list[str]) -> None:
        """`let A=2*3 "B = A + 1"`."""
        for word in words:
            found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=(.*)", word, re.DOTALL)
            if found:
                self.script.variables[found[1]] = [self._expand.text(f"$(({found[2]}))")]


__all__ = ["UNKNOWN", "Script", "read_script"]
