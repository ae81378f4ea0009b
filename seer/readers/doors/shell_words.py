"""Shell scripts as tokens, and words with their variables put in. Nothing is ever executed.

What only a shell could know (command substitutions, patterns in expansions) becomes `UNKNOWN`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from seer.errors import SeerError, UnreadableError
from seer.graph.formula import compile_formula

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Stands for text that a shell would have had to run something for."""
MAX_CHARACTERS = 1_000_000
"""Of a script, and of one word that comes out of it."""
MAX_EXPANDED = 20_000_000
"""Characters of all words of a script together."""
MAX_DEPTH = 20
_SEPARATORS = (";;", "&&", "||", ";", "|", "&")
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_EXPANSION = re.compile(r"([A-Za-z_]\w*|\d+|[@*#])(\[[@*]\])?(?:(:?[-=+])(.*))?", re.DOTALL)

Variables = Mapping[str, list[str]]


@dataclass(frozen=True)
class Token:
    """A word as written, a separator, or an array assignment (`name`, `items`)."""

    kind: str
    text: str
    items: tuple[str, ...] = ()
    line: int = 0


def tokens_of(text: str, where: str) -> list[Token]:
    """The tokens of a script; comments and here-documents are dropped."""
    return _Scanner(text, where).tokens()


class _Scanner:
    def __init__(self, text: str, where: str) -> None:
        if len(text) > MAX_CHARACTERS:
            why = f"a launch script of more than {MAX_CHARACTERS:,} characters is not read"
            raise UnreadableError("the script is too large", where=where, why=why)
        self._text, self._where, self._at = text.replace("\\\r\n", "\\\n"), where, 0
        self._heredocs: list[str] = []
        self._counted, self._lines = 0, 1

    def _line(self) -> int:
        """Number of the present line, counted on from the last time."""
        self._lines += self._text.count("\n", self._counted, max(self._counted, self._at))
        self._counted = max(self._counted, max(self._counted, self._at))
        return self._lines

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while (char := self._skip_blanks()) != "":
            line = self._line()
            if char == "\n":
                self._at += 1
                self._skip_heredocs()
                found.append(Token("end", "\n", line=line))
            elif separator := self._one_of(_SEPARATORS):
                found.append(Token("end", separator, line=line))
            elif char in "()":
                self._at += 1
                found.append(Token("end", char, line=line))
            elif char in "<>":
                if self._at and self._text[self._at - 1].isdigit() and found[-1].text.isdigit():
                    found.pop()  # the number of a stream: 2>&1
                self._redirect()
            else:
                found.append(self._word_or_array(line))
        return found

    def _skip_blanks(self) -> str:
        """Skip blanks, continued lines and comments; the next character, or nothing at the end."""
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in " \t\r":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            else:
                return char
        return ""

    def _one_of(self, choices: tuple[str, ...]) -> str:
        found = next((c for c in choices if self._text.startswith(c, self._at)), "")
        self._at += len(found)
        return found

    def _redirect(self) -> None:
        here = self._text.startswith("<<", self._at) and not self._text.startswith("<<<", self._at)
        while self._at < len(self._text) and self._text[self._at] in "<>&-":
            self._at += 1
        if self._skip_blanks() not in ("", "\n", ";", "|", "(", ")", "&", "<", ">"):
            target = self._word()
            if here:
                self._heredocs.append(target.strip("'\"\\"))

    def _skip_heredocs(self) -> None:
        for end in self._heredocs:
            match = re.compile(rf"^\s*{re.escape(end)}\s*$", re.MULTILINE).search(
                self._text, self._at
            )
            self._at = match.end() if match else len(self._text)
        self._heredocs = []

    def _word_or_array(self, line: int) -> Token:
        word = self._word()
        if word.endswith("=") and self._text.startswith("(", self._at):
            self._at += 1
            items = []
            while (char := self._skip_blanks()) not in (")", ""):
                if char == "\n" or char in ";|&<>(":
                    self._at += 1
                else:
                    items.append(self._word())
            if not char:
                raise self._truncated(line, "an array is not closed")
            self._at += 1
            return Token("array", word[:-1], tuple(items), line)
        return Token("word", word, line=line)

    def _word(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\r\n;|&<>()":
            self._step()
        return self._text[start : self._at].replace("\\\n", "")

    def _step(self) -> None:
        """One character, or a whole quotation or expansion."""
        text = self._text
        char = text[self._at]
        if char == "\\":
            self._at += 2
        elif char == "'":
            end = text.find("'", self._at + 1)
            if end < 0:
                raise self._truncated(self._line(), "a quotation is not closed")
            self._at = end + 1
        elif char == '"':
            self._at += 1
            while self._at < len(text) and text[self._at] != '"':
                self._step_in_quotes()
            if self._at >= len(text):
                raise self._truncated(self._line(), "a quotation is not closed")
            self._at += 1
        elif char in "$`":
            self._step_in_quotes()
        else:
            self._at += 1

    def _step_in_quotes(self) -> None:
        text = self._text
        if text[self._at] == "\\":
            self._at += 2
        elif text[self._at] == "`":
            end = text.find("`", self._at + 1)
            self._at = len(text) if end < 0 else end + 1
        elif text[self._at : self._at + 2] in ("$(", "${"):
            self._at = closing(text, self._at + 1)
        else:
            self._at += 1

    def _truncated(self, line: int, what: str) -> UnreadableError:
        return UnreadableError(
            f"the script is damaged: {what}", where=f"{self._where}, line {line}"
        )


def closing(text: str, opening: int) -> int:
    """The place behind the bracket that closes the one at `opening`; quotations are skipped."""
    pair = {"(": ")", "{": "}"}[text[opening]]
    depth, at, quote = 0, opening, ""
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == text[opening]:
            depth += 1
        elif char == pair:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return len(text)


class Expander:
    """Puts variables into words, splitting them as a shell does."""

    def __init__(self, variables: Variables, where: str) -> None:
        self._variables, self._where = variables, where
        self._left = MAX_EXPANDED

    def fields(self, word: str, depth: int = 0) -> list[str]:
        """The words that one written word becomes: none, one, or the items of an array."""
        done: list[str] = []
        current: str | None = None
        left = MAX_CHARACTERS
        for values, quoted in self._parts(word, depth):
            for index, value in enumerate(values):
                if index and current is not None:  # items of an array are words of their own
                    done.append(current)
                    current = None
                for piece in [value] if quoted else re.findall(r"\s+|\S+", value):
                    left = self._spend(len(piece) + 1, left)
                    if quoted or not piece.isspace():
                        current = (current or "") + piece
                    elif current is not None:
                        done.append(current)
                        current = None
        return done if current is None else [*done, current]

    def text(self, word: str, depth: int = 0) -> str:
        """A word as one text, as in an assignment."""
        whole, left = "", MAX_CHARACTERS
        for values, _ in self._parts(word, depth):
            left = self._spend(sum(map(len, values)) + len(values), left)
            whole += " ".join(values)
        return whole

    def _spend(self, characters: int, left: int) -> int:
        """Count what has come out; raises UnreadableError when it is too much."""
        self._left -= characters
        if characters > left or self._left < 0:
            raise UnreadableError("the script expands to too much", where=self._where)
        return left - characters

    def _parts(self, word: str, depth: int) -> list[tuple[list[str], bool]]:
        """The pieces of a word: their values, and whether they are kept whole."""
        if depth > MAX_DEPTH:
            raise UnreadableError("the script nests expansions too deeply", where=self._where)
        parts: list[tuple[list[str], bool]] = []
        at, in_quotes = 0, False
        while at < len(word):
            char = word[at]
            if char == "'" and not in_quotes:
                end = word.find("'", at + 1)
                end = len(word) if end < 0 else end  # cut off inside an expansion
                parts.append(([word[at + 1 : end]], True))
                at = end + 1
            elif char == '"':
                in_quotes = not in_quotes
                parts.append(([""], True))
                at += 1
            elif char == "\\" and at + 1 < len(word):
                parts.append(([word[at + 1]], True))
                at += 2
            elif char == "`":
                end = word.find("`", at + 1)
                end = len(word) if end < 0 else end
                parts.append(([self._command(word[at + 1 : end], depth)], True))
                at = end + 1
            elif char == "$":
                values, at = self._expansion(word, at, depth)
                parts.append((values, in_quotes))
            else:
                parts.append(([char], True))
                at += 1
        return parts

    def _expansion(self, word: str, at: int, depth: int) -> tuple[list[str], int]:
        if word.startswith("$((", at):
            end = closing(word, at + 1)
            return [self._arithmetic(word[at + 3 : end - 2], depth)], end
        if word.startswith("$[", at) and "]" in word[at:]:
            end = word.index("]", at) + 1
            return [self._arithmetic(word[at + 2 : end - 1], depth)], end
        if word.startswith("$(", at):
            end = closing(word, at + 1)
            return [self._command(word[at + 2 : end - 1], depth)], end
        if word.startswith("${", at):
            end = closing(word, at + 1)
            return self._braces(word[at + 2 : end - 1], depth), end
        name = _NAME.match(word, at + 1)
        if not name:
            return ["$"], at + 1
        values = self._variables.get(name[0], [])
        return list(values if name[0] in "@*" else values[:1]), name.end()

    def _braces(self, inside: str, depth: int) -> list[str]:
        found = _EXPANSION.fullmatch(inside)
        if not found:
            return [UNKNOWN]
        name, whole, operator, other = found.groups()
        values = self._variables.get(name, [])
        values = values if whole or name in "@*" else values[:1]
        if operator is None:
            return list(values)
        empty = not values or (operator[0] == ":" and values == [""])
        if operator[-1] == "+":
            return [] if empty else [self.text(other, depth + 1)]
        if not empty:
            return list(values)
        return [self.text(other, depth + 1)]

    def _command(self, inside: str, depth: int) -> str:
        """What a command prints, of the only one that is known: `expr 8 \\* 4`."""
        found = re.fullmatch(r"\s*expr\s(.*)", inside, re.DOTALL)
        return self._arithmetic(found[1].replace("\\", ""), depth) if found else UNKNOWN

    def _arithmetic(self, inside: str, depth: int) -> str:
        """A whole-number formula; names count as variables with or without a dollar."""
        text = self.text(inside, depth + 1)
        text = re.sub(
            r"[A-Za-z_]\w*", lambda m: (self._variables.get(m[0]) or ["0"])[0] or "0", text
        )
        text = text.replace("&&", " and ").replace("||", " or ")
        choice = re.fullmatch(r"([^?:]+)\?([^?:]+):([^?:]+)", text)
        if choice:
            text = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
        try:
            formula = compile_formula(text.replace("/", "//").strip(), self._where)
            return str(int(formula.evaluate({})))
        except (SeerError, ValueError, OverflowError):
            return UNKNOWN
