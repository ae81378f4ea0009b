"""Host lists as SLURM writes them: `node[001-018,020],gpu-[1-2]`."""

from __future__ import annotations

import re

from seer.errors import UsageError

MOST_HOSTS = 200_000
"""No cluster has more hosts; a longer list is a mistake."""

_PART = re.compile(r"[^,\[\]\s]*(?:\[[^\]]*\][^,\[\]\s]*)*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_hosts(text: str, where: str) -> list[str]:
    """The hosts of a list, in order.

    >>> expand_hosts("node[08-10,12],login", "")
    ['node08', 'node09', 'node10', 'node12', 'login']

    Raises UsageError for a list that is none, and for more than `MOST_HOSTS` hosts.
    """
    found: list[str] = []
    position = 0
    while position < len(text):
        if text[position] in ", \t\n":
            position += 1
            continue
        part = _PART.match(text, position)
        if part is None or not part.group():
            raise UsageError(f"'{text[position : position + 40]}' is no host list", where=where)
        found += _one(part.group(), where, MOST_HOSTS - len(found))
        position = part.end()
    return found


def _one(part: str, where: str, most: int) -> list[str]:
    """The hosts of one part; brackets are multiplied out from the left."""
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    numbers: list[str] = []
    for word in inside.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"'[{inside[:40]}]' is no range of hosts", where=where)
        first, last = match.group(1), match.group(2) or match.group(1)
        count = int(last) - int(first) + 1
        if count < 1 or len(numbers) + count > most:
            what = f"'[{inside[:40]}]' has no hosts" if count < 1 else f"more than {most:,} hosts"
            raise UsageError(what, where=where)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    tails = _one(tail, where, most) if tail else [""]
    if len(numbers) * len(tails) > most:
        raise UsageError(f"more than {most:,} hosts", where=where)
    return [head + number + end for number in numbers for end in tails]
