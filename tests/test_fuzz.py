"""A sample of the fuzzing of all readers; `tests/fuzz/fuzz_readers.py` runs it at length."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from seer.errors import UnreadableError
from seer.readers.files import BOMB_BYTES, parse_yaml, read_bytes

SCRIPT = Path(__file__).parent / "fuzz" / "fuzz_readers.py"
SAMPLE = 600


def test_broken_files_of_every_kind_are_read_or_refused() -> None:
    arguments = [sys.executable, str(SCRIPT), "--inputs", str(SAMPLE), "--start", "9000"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    total = int(done.stdout.splitlines()[-1].split()[0].replace(",", ""))
    assert total >= SAMPLE


def test_a_gzip_bomb_is_refused_long_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(BOMB_BYTES + 2**20), compresslevel=9))
    with pytest.raises(UnreadableError, match="bomb"):
        read_bytes(path)


def test_yaml_that_would_take_minutes_is_refused_at_once() -> None:
    with pytest.raises(UnreadableError, match="too large"):
        parse_yaml("a: 1\n" * 200_000, "x.yaml")
    with pytest.raises(UnreadableError, match="nested"):
        parse_yaml("[" * 300, "x.yaml")
