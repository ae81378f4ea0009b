"""Launch scripts are read as data: words come out as a shell would make them, nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from seer.errors import UnreadableError
from seer.readers.doors.shell import UNKNOWN, Script, read_script


def script(text: str) -> Script:
    return read_script(text, "script")


def words(text: str) -> list[str]:
    """The words of the last command."""
    return script(text).commands[-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --a 1 '--b c' \"d e\"", ["run", "--a", "1", "--b c", "d e"]),
        ("A=3\nrun $A ${A} x$A.y", ["run", "3", "3", "x3.y"]),
        ('A="1 2"\nrun $A "$A"', ["run", "1", "2", "1 2"]),
        ("run ${A:-7} ${B:-} ${C-x y} end", ["run", "7", "x", "y", "end"]),
        ("A=1\nrun ${A:+yes} ${B:+no}", ["run", "yes"]),
        ("A=(1 2 '3 4')\nrun ${A[@]} \"${A[@]}\"", ["run", "1", "2", "3", "4", "1", "2", "3 4"]),
        ('A=(x)\nA+=("--f g" h)\nrun ${A[*]}', ["run", "x", "--f", "g", "h"]),
        ("A=(\n  --x 1 # a comment\n  # --y 2\n  --z\n)\nrun ${A[@]}", ["run", "--x", "1", "--z"]),
        ('A="--x 1 \\\n --y"\nrun $A', ["run", "--x", "1", "--y"]),
        ("N=4\nG=8\nrun $((N * $G)) $(($N*G/3))", ["run", "32", "10"]),
        ("run a \\\n  b \\\r\n c", ["run", "a", "b", "c"]),
        ("run a 2>&1 > out.txt | tee log", ["tee", "log"]),
        ("cat <<EOF\nrun --in here\nEOF\nrun x", ["run", "x"]),
        ("A=1 run x", ["run", "x"]),
        ("export A=1 B=2; run $A $B", ["run", "1", "2"]),
        ("run $UNSET \"\" '' end", ["run", "", "", "end"]),
        ("run $(hostname) `date`", ["run", UNKNOWN, UNKNOWN]),
        ("run #no\nrun a#b", ["run", "a#b"]),
        ("A=2\nrun $(( ($A > 1) ? 4 : 1 )) $(($A == 3 ? 4 : 1))", ["run", "4", "1"]),
        ("A=2\nrun $(expr $A \\* 4) `expr 8 / $A` $[A+1]", ["run", "8", "4", "3"]),
        ("let A=2*3 'B = A + 1'\nrun $A $B", ["run", "6", "7"]),
        (
            'set -- a "b c" 3\nrun $1 ${2} $# "$@" ${10}',
            ["run", "a", "b", "c", "3", "a", "b c", "3"],
        ),
        ("f() {\n run --tp $1 $@\n}\nf 4 x\n", ["run", "--tp", "4", "4", "x"]),
        ("function f { A=$1; }\nset -- 7\nf 4\nrun $A $1", ["run", "4", "7"]),
        ("for t in 2 4; do\n for p in 1; do run $t $p; done\ndone", ["run", "2", "1"]),
        ("for t in 2 4\ndo A=$t; done; run $A", ["run", "2"]),
        ("[ -d x ] || { A=1; }\nmkdir x || { B=2; }\nrun x$A$B", ["run", "x1"]),
        ("T=1\n[ $T = 2 ] && T=4\n[ $T = 1 ] && S=3 || S=5\nrun $T $S", ["run", "1", "3"]),
        ('[ -z "$S" ] && S=8 && B=2; run $S $B', ["run", "8", "2"]),
    ],
)
def test_words_are_split_and_filled_as_a_shell_does(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('[ "$A" = "x" ]', True),
        ('[[ "$A" == "y" ]]', False),
        ("[ -n $A ]", True),
        ('[ -z "$UNSET" ]', True),
        ("[ $N -gt 3 ]", True),
        ("[ $N -le 3 ] || [ $A = x ]", True),
        ("[ $N -ge 4 ] && [ $A != x ]", False),
        ("! [ $A = x ]", False),
        ("[ -f /etc/passwd ]", False),
    ],
)
def test_plain_conditions_choose_their_branch(condition: str, holds: bool) -> None:
    text = f"A=x\nN=4\nif {condition}; then\n  B=yes\nelse\n  B=no\nfi\nrun $B"
    assert words(text) == ["run", "yes" if holds else "no"]


def test_only_the_first_branch_that_holds_is_taken() -> None:
    text = (
        "A=2\nif [ $A = 1 ]; then B=1\nelif [ $A = 2 ]; then B=2\nelif [ $A = 2 ]; then B=3\nfi\n"
    )
    assert words(text + "run $B") == ["run", "2"]


def test_inner_conditions_of_a_branch_that_is_not_taken_are_not_looked_at() -> None:
    text = "if [ a = b ]; then\n if [ a = a ]; then A=1; fi\n A=2\nfi\nrun x$A"
    assert words(text) == ["run", "x"]


def test_cases_choose_by_pattern() -> None:
    text = 'case $S in\n "7b"|7B) L=32;;\n 70b)\n  L=80\n ;;\n *) L=1;;\nesac\nrun $L'
    assert [words(f"S={size}\n{text}")[1] for size in ("7B", "70b", "x")] == ["32", "80", "1"]


def test_loops_are_named_and_functions_read_where_they_are_called() -> None:
    found = script(
        "for i in 1 2; do\n A=$i\ndone\nf() {\n B=3\n}\nwhile true; do\n C=4\ndone\n"
        "for ((i = 1; i < 8; i++)); do D=5; done\nrun $A x$B$C$D"
    )
    assert found.commands[-1] == ["run", "1", "x"]
    assert found.notes == [
        "of the loop in line 1 the first turn is read",
        "the loop in line 7 is not followed",
        "the loop in line 10 is not followed",
    ]


def test_a_function_that_calls_itself_comes_to_an_end() -> None:
    assert script("f() { f; f; run x; }\nf\nrun y").commands[-1] == ["run", "y"]


def test_a_condition_that_is_not_understood_is_false_and_said() -> None:
    found = script('A=0\nif [[ "$X" =~ ^a ]]; then A=1; fi\nrun $A')
    assert found.commands[-1] == ["run", "0"]
    assert "condition in line 2" in found.notes[0]


def test_nothing_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "made"
    text = f"touch {target}\nA=$(touch {target})\n`touch {target}`\necho x > {target}\n. {target}"
    script(text)
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run 'open", "a quotation is not closed"),
        ('A="open\nrun', "a quotation is not closed"),
        ("A=(1 2", "an array is not closed"),
        ("A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 9, "expands to too much"),
        ("run ${A:-" * 30 + "x" + "}" * 30, "nests expansions too deeply"),
    ],
)
def test_a_hostile_or_damaged_script_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        script(text)


@pytest.mark.parametrize(
    "text", ["fi", "then", "esac", "case", "if", "done }", ")", "((", "${", "$"]
)
def test_a_script_without_sense_says_nothing(text: str) -> None:
    assert all(word for words in script(text).commands for word in words)
