"""Where words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

from seer.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from seer.cluster import Cluster
    from seer.forecast import Forecast

WIDTH = 100


@dataclass(frozen=True)
class Output:
    """How one command speaks."""

    quiet: bool = False
    verbose: bool = False

    def console(self) -> Console:
        """The console for results; NO_COLOR, FORCE_COLOR and TERM=dumb are honoured by rich."""
        from rich.console import Console  # costs 0.1 s; `--json` does without

        console = Console(highlight=False, soft_wrap=False)
        if not console.is_terminal:
            console.width = WIDTH
        return console

    def live_console(self) -> Console | None:
        """Where a picture of what is going on can be drawn; None where nobody would see it."""
        if self.quiet or not sys.stderr.isatty():
            return None
        from rich.console import Console

        console = Console(stderr=True)
        return console if console.is_terminal and not console.is_dumb_terminal else None

    def notice(self, text: str) -> None:
        """A line on stderr that is not part of the result."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def warn(self, texts: Iterable[str]) -> None:
        """Warnings on stderr."""
        for text in texts:
            self.notice(f"warning: {text}")

    def warn_of(self, found: Forecast) -> None:
        """What a forecast warns of: assumptions in one line unless --verbose, the rest in full.

        That a plan does not fit memory is said even with --quiet.
        """
        assumed = found.pricing.notes
        self._notes_on(found.job.cluster)
        self.warn(w for w in found.warnings if self.verbose or w not in assumed)
        if self.quiet and not found.fits:
            print(f"warning: {found.warnings[-1]}", file=sys.stderr)
        if assumed and not self.verbose:
            share = 1.0 - found.coverage["measured"] - found.coverage["interpolated"]
            self.notice(
                f"note: {share:.0%} of the busy time rests on extrapolated, derived or assumed "
                f"durations, {len(assumed)} kinds; --verbose lists them"
            )

    def _notes_on(self, cluster: Cluster) -> None:
        """What to know about a cluster's figures, in one line unless --verbose."""
        if self.verbose:
            for note in cluster.notes:
                self.notice(f"note: cluster {cluster.name}: {note}")
        elif cluster.notes:
            several = f"{len(cluster.notes)} note{'s' * (len(cluster.notes) > 1)}"
            self.notice(f"note: {several} on the cluster {cluster.name}; --verbose shows them")

    def progress(self, text: str) -> None:
        """A line that the next one replaces; only on a terminal."""
        if not self.quiet and sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    @contextmanager
    def watching(self) -> Iterator[Callable[[str], None]]:
        """What takes lines of progress; the last one is wiped when the work ends or fails."""
        try:
            yield self.progress
        finally:
            self.progress("")

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """What takes how many of how many are done."""
        with self.watching() as say:
            say(f"{what}: preparing")
            yield lambda done, total: say(f"{what}: {done:,} of {total:,}")


def one_result(json: bool, csv: bool) -> None:
    """Refuse two forms of a result that both want standard output."""
    if json and csv:
        raise UsageError("--json and --csv both want standard output", hint="one of them")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object; a number that is not finite becomes null."""
    plain = not can_write(sys.stdout, "é█")
    print(json.dumps(_finite(value), indent=2, allow_nan=False, ensure_ascii=plain))


def can_write(stream: TextIO, text: str) -> bool:
    """Whether the encoding of a stream has these characters."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def speak_unicode(*streams: TextIO) -> None:
    """Let streams that know no bars or foreign names write UTF-8, as Python does for LANG=C.

    Where PYTHONIOENCODING says another encoding, what it lacks becomes a question mark.
    """
    for stream in streams:
        if isinstance(stream, TextIOWrapper) and not can_write(stream, "é█"):
            if os.environ.get("PYTHONIOENCODING"):
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
