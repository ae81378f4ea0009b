"""Launch scripts read as data: assignments, arrays and plain conditions; nothing is executed.

Loops and functions are passed over (said in the notes), files do not exist, and the environment is
not looked at: a variable that the script does not set is empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from seer.readers.doors.shell_words import UNKNOWN, Expander, Token, tokens_of

MAX_COMMANDS = 20_000
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PREFIXES = ("export", "local", "declare", "readonly", "typeset")
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}
_BLOCKS = {"for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}


@dataclass
class Script:
    """What a script says: its commands as words, and its variables at the end."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_script(text: str, where: str) -> Script:
    """Walk through a script; raises UnreadableError when it is damaged or expands without end."""
    reader = _Reader(tokens_of(text, where), where)
    reader.run()
    return reader.script


class _Reader:
    """Walks over statements; `_taken` says for each open condition whether its branch runs."""

    def __init__(self, tokens: list[Token], where: str) -> None:
        self._tokens, self._at = tokens, 0
        self.script = Script()
        self._expand = Expander(self.script.variables, where)
        self._branches: list[list[bool]] = []  # [runs now, has run already]
        self._case: list[str] = []

    def run(self) -> None:
        while self._at < len(self._tokens):
            statement = self._statement()
            if statement:
                self._do(statement)

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
        elif word == "then":
            self._rest(rest)
        elif word in ("fi", "esac"):
            if self._branches:
                self._branches.pop()
        elif word == "case":
            self._start_case(rest)
        elif word in _BLOCKS or word == "function" or self._is_function():
            self._pass_over(word, statement[0].line)
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
        line = tokens[0].line if tokens else 0
        self.script.notes.append(f"the condition in line {line} is not understood: taken as false")
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

    def _pass_over(self, word: str, line: int) -> None:
        """Skip a loop or a function body."""
        self.script.notes.append(f"the loop or function in line {line} is not followed")
        start, end = ("{", "}") if word not in _BLOCKS else (word, _BLOCKS[word])
        starts = [k for k, v in _BLOCKS.items() if v == end]
        depth = 1 if word in _BLOCKS else 0
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token.kind != "word":
                continue
            if token.text in starts or token.text == start:
                depth += 1
            elif token.text == end:
                depth -= 1
                if depth <= 0:
                    return

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
            if words:
                self.script.commands.append(words)


__all__ = ["UNKNOWN", "Script", "read_script"]
