"""Lists of numbers and words behind an option."""

from __future__ import annotations

from collections.abc import Sequence

from seer.errors import UsageError, nearest


def numbers_of(text: str, option: str, least: float) -> list[float]:
    """Numbers between commas, none below `least`.

    >>> numbers_of("1,8,32", "--ratios", 1.0)
    [1.0, 8.0, 32.0]
    """
    found = []
    for word in text.split(","):
        try:
            number = float(word.strip().removesuffix(":1"))
        except ValueError:
            number = float("nan")
        if not least <= number <= 1e9:
            hint = f"numbers from {least:g} on, between commas: 1,8,32"
            raise UsageError(f"'{word.strip()[:40]}' is not accepted", where=option, hint=hint)
        found.append(number)
    return found


def counts_of(text: str, option: str, what: str, example: str) -> list[int]:
    """Whole numbers from 1 on between commas; one that is given twice counts once.

    >>> counts_of("8,16,8", "--domains", "size of a domain", "8,72")
    [8, 16]
    """
    found = []
    for word in map(str.strip, text.split(",")):
        plain = word.isascii() and word.isdigit() and len(word) < 10
        if not plain or int(word) < 1:
            raise UsageError(
                f"'{word[:40]}' is no {what}", where=option, hint=f"{option} {example}"
            )
        found.append(int(word))
    return list(dict.fromkeys(found))


def words_of(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Words between commas, each one of `known`."""
    found = [word.strip() for word in text.split(",")]
    for word in found:
        if word not in known:
            what = f"'{word[:40]}' is not one of {', '.join(known)}"
            raise UsageError(what, where=option, hint=nearest(word, known))
    return found
