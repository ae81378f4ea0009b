"""Megatron-LM launch scripts and flags: text -> job. Scripts are read as data, never run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from seer.errors import UnreadableError, UsageError
from seer.readers import shipped
from seer.readers.doors.arguments import Arguments, Foreign, unused_note
from seer.readers.doors.megatron import megatron_job
from seer.readers.doors.shell import UNKNOWN, read_script
from seer.readers.files import read_structured
from seer.readers.overrides import edit, parse_overrides

_TELLING = re.compile(
    r"--(num[-_]layers|hidden[-_]size|micro[-_]batch[-_]size|seq[-_]length|global[-_]batch[-_]size"
    r"|tensor[-_]model[-_]parallel[-_]size|num[-_]attention[-_]heads)\b"
)
_LAUNCHER = (
    "nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "rdzv_endpoint",
    "rdzv_backend", "rdzv_id", "max_restarts", "num_nodes", "num_gpus", "hostfile", "jobid",
    "standalone", "tee", "wait", "kill_on_bad_exit", "c", "l", "m", "u", "x",
)  # fmt: skip
_SBATCH = re.compile(r"^#SBATCH\s+(.*?)(?:[ \t]#.*)?$", re.MULTILINE)
_SLURM = {
    "nodes": re.compile(r"(?:--nodes[=\s]\s*|(?<!\S)-N\s*)(\d{1,6})\b"),
    "gpus_per_node": re.compile(
        r"(?:--gpus-per-node[=\s]\s*(?:\w+:)?|--gres[=\s]\s*gpu:(?:[\w-]+:)?)(\d{1,4})\b"
    ),
    "tasks_per_node": re.compile(r"--ntasks-per-node[=\s]\s*(\d{1,4})\b"),
    "tasks": re.compile(r"(?:--ntasks[=\s]\s*|(?<!\S)-n\s*)(\d{1,6})\b"),
    "gpus": re.compile(r"(?:--gpus[=\s]\s*|(?<!\S)-G\s*)(?:\w+:)?(\d{1,6})\b"),
}
"""What a Slurm header asks for."""
_DIRECTIVE = re.compile(r"^#\s*seer:\s*(\S.*?)\s*$", re.MULTILINE)


def is_megatron(text: str) -> bool:
    """Whether a text holds Megatron flags: at least two of the telling ones."""
    return len({found.replace("_", "-") for found in _TELLING.findall(text)}) >= 2


def megatron_from_words(words: Sequence[str], where: str, gpus: int | None = None) -> Foreign:
    """The job of flags typed on a command line."""
    return _foreign("Megatron-LM flags", list(words), where, gpus, [], {})


def megatron_from_text(text: str, where: str, gpus: int | None = None) -> Foreign:
    """The job of a launch script or a file of flags.

    Lines `# seer: path=value` are edits of the job, for what Megatron has no flag for.
    """
    asked = _slurm(text)
    script = read_script(text, where, _slurm_variables(asked))
    words = _command(script.commands, script.variables, where)
    given = parse_overrides(_DIRECTIVE.findall(text))
    kind = "Megatron-LM launch script"
    return _foreign(kind, words, where, gpus, script.notes, given, asked)


def _foreign(
    kind: str,
    words: list[str],
    where: str,
    gpus: int | None,
    told: list[str],
    given: Mapping[str, Any],
    asked: Mapping[str, int] = MappingProxyType({}),
) -> Foreign:
    notes = list(told)
    flags = {name: behind or True for name, behind in flags_of(words, where).items()}
    args = Arguments(flags, where, lambda name: "--" + name.replace("_", "-"))
    world = _world_size(args, asked)
    for name in _LAUNCHER:
        args.get(name)
    directed = given.get("gpus")
    job = megatron_job(args, directed if isinstance(directed, int) else gpus or world, notes)
    note = unused_note(args.unused())
    graphs = job["framework"].get("cuda_graphs")
    for path, value in given.items():
        job = edit(job, path, value)
    if graphs and isinstance(job["framework"], str):  # an edit names the preset, flags its graphs
        preset = read_structured(shipped.resolve("frameworks", job["framework"], where))
        job["framework"] = {**preset, "cuda_graphs": graphs}
    return Foreign(kind, job, (*notes, *([note] if note else [])))


def flags_of(words: Sequence[str], where: str) -> dict[str, list[str]]:
    """Flags and the words behind them; a flag without words has an empty list.

    >>> flags_of(["torchrun", "--nnodes=2", "x.py", "--a-b", "1", "2", "--c"], "")
    {'nnodes': ['2'], 'a_b': ['1', '2'], 'c': []}
    """
    flags: dict[str, list[str]] = {}
    name = ""
    for word in (piece for whole in words for piece in _pieces(whole)):
        if re.match(r"--?[A-Za-z]", word) and word != "--":
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            flags[name] = [value] if equals else []
            name = "" if equals else name
        elif word.endswith(".py"):
            name = ""
        elif name and UNKNOWN not in word:
            flags[name].append(word)
        elif name and UNKNOWN in word:
            if _TELLING.fullmatch("--" + name):
                what = f"the value of --{name.replace('_', '-')} comes from a command"
                why = "nothing in a script is executed"
                raise UsageError(what, where=where, why=why, hint="write the number instead")
            flags[name].append("unknown")
    return flags


def _pieces(word: str) -> list[str]:
    """A quoted `"--flag value"` is two words; other words stay whole."""
    return word.split() if word.startswith("--") else [word]


def _command(
    commands: Sequence[list[str]], variables: Mapping[str, list[str]], where: str
) -> list[str]:
    """The words of the training command: the one with the most telling flags.

    Flags that stand alone (a file of flags) are taken together; options that only a variable
    holds (a command that another tool runs) come from there.
    """
    bare = [word for words in commands if words[0].startswith("-") for word in words]
    texts = [_pieces_of(values, where) for values in variables.values()]
    handed = [_pieces_of(words, where) for words in commands]
    candidates = [bare, *commands, *handed, *texts]
    best = max(candidates, key=lambda words: (_telling(words), len(words)), default=[])
    return best if _telling(best) >= _telling(bare) else bare


def _pieces_of(words: Sequence[str], where: str) -> list[str]:
    """The words of a command line that was handed over as one: `run "torchrun ... 2>&1 | tee x"`.

    It ends where a shell would end it; what no shell could read is parted at its blanks.
    """
    pieces: list[str] = []
    for word in words:
        lines: list[list[str]] = [word.split()]
        if len(lines[0]) > 1 and is_megatron(word):
            with contextlib.suppress(UnreadableError):
                lines = read_script(word, where).commands
        pieces += max(lines, key=_telling, default=[])
    return pieces


def _telling(words: Iterable[str]) -> int:
    return sum(bool(_TELLING.match(word)) for word in words)


_COUNT = re.compile(r"[0-9]{1,9}")


def _world_size(args: Arguments, asked: Mapping[str, int]) -> int | None:
    """GPUs of a torchrun, DeepSpeed, srun or mpirun launcher, or of the Slurm header.

    A launcher that starts the processes of a node itself says how many GPUs a node has.
    """

    def first(*names: str) -> str:
        return next(iter(args.words(*names)), "")

    nodes = first("nnodes", "num_nodes", "nodes").split(":")[-1]
    each = first("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node")
    if _COUNT.fullmatch(each) and (_COUNT.fullmatch(nodes) or not nodes):
        return int(each) * (int(nodes) if nodes else asked.get("nodes", 1))
    ranks = first("ntasks", "np")
    return int(ranks) if _COUNT.fullmatch(ranks) else _slurm_gpus(asked)


def _slurm(text: str) -> dict[str, int]:
    """What the `#SBATCH` lines of a script ask for."""
    header = "\n".join(_SBATCH.findall(text))
    found = {name: pattern.search(header) for name, pattern in _SLURM.items()}
    return {name: int(match[1]) for name, match in found.items() if match}


def _slurm_variables(asked: Mapping[str, int]) -> dict[str, list[str]]:
    """The environment that Slurm makes of it."""
    tasks = asked.get("tasks") or asked.get("nodes", 0) * asked.get("tasks_per_node", 0)
    values = {
        "SLURM_NNODES": asked.get("nodes"),
        "SLURM_JOB_NUM_NODES": asked.get("nodes"),
        "SLURM_NTASKS": tasks,
        "SLURM_NTASKS_PER_NODE": asked.get("tasks_per_node"),
        "SLURM_GPUS_PER_NODE": asked.get("gpus_per_node"),
        "SLURM_GPUS_ON_NODE": asked.get("gpus_per_node"),
    }
    return {name: [str(value)] for name, value in values.items() if value}


def _slurm_gpus(asked: Mapping[str, int]) -> int | None:
    """GPUs of a Slurm job: stated, or of all nodes, or one for each task."""
    each = asked.get("gpus_per_node") or asked.get("tasks_per_node")
    if "gpus" in asked or not ("nodes" in asked and each):
        return asked.get("gpus") or asked.get("tasks")
    return asked["nodes"] * each
