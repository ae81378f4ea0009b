"""Open a door: a configuration of another tool, recognised by what is in it, becomes a job.

Megatron-LM launch scripts and flags, Megatron-Bridge `run_config.yaml`, NeMo 1.x and AutoModel
YAML, TorchTitan JSON and TOML, DeepSpeed JSON. What a tool does not say (the cluster, often the
GPUs or the model) comes from the command line. Settings without effect are named in the notes.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seer.errors import UnreadableError, UsageError
from seer.readers.doors.arguments import Foreign
from seer.readers.doors.automodel import automodel_job, is_automodel
from seer.readers.doors.deepspeed import deepspeed_job, is_deepspeed
from seer.readers.doors.megatron_bridge import is_megatron_bridge, megatron_bridge_job
from seer.readers.doors.megatron_flags import is_megatron, megatron_from_text
from seer.readers.doors.nemo import is_nemo, nemo_job
from seer.readers.doors.strangers import refuse_stranger
from seer.readers.doors.torchtitan import is_torchtitan, torchtitan_job
from seer.readers.files import parse_json, parse_yaml, read_text

Translate = Callable[[Mapping[str, Any], str, int | None], Foreign]
_MAPPINGS: tuple[tuple[Callable[[Any], bool], Translate], ...] = (
    (is_deepspeed, deepspeed_job),
    (is_torchtitan, torchtitan_job),
    (is_nemo, nemo_job),
    (is_automodel, automodel_job),
    (is_megatron_bridge, megatron_bridge_job),
)
_YAML = re.compile(r"^(\s+(tensor|pipeline)_model_parallel_size|step_scheduler)\s*:", re.MULTILINE)
_TOML = re.compile(r"^\s*\[[\w.]+\]\s*(#.*)?$", re.MULTILINE)


def open_door(path: str | os.PathLike[str], given: Mapping[str, Any]) -> Foreign | None:
    """The job of a file of another tool, or None when the file is none of those.

    `given` are the edits of the user by path: a tool that leaves the number of GPUs open takes it
    from there. Raises UsageError when what the tool does not say was not given either.
    """
    where = os.fspath(path)
    text = read_text(path)
    value = given.get("gpus")
    gpus = value if isinstance(value, int) and not isinstance(value, bool) else None
    foreign = _foreign(text, where, gpus)
    if foreign is None:
        refuse_stranger(text, where)
    else:
        require(foreign, given, where)
        if isinstance(foreign.job.get("model"), dict):
            foreign.job["model"].setdefault("name", Path(where.removesuffix(".gz")).stem)
    return foreign


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a configuration of another tool that can be opened.

    Raises UsageError for one of a tool that is known, and not read.
    """
    text = read_text(path)
    if _mapping(text, os.fspath(path)) is not None or _is_script(text):
        return True
    refuse_stranger(text, os.fspath(path))
    return False


def require(foreign: Foreign, given: Mapping[str, Any], where: str) -> None:
    """Raise UsageError when a job lacks what neither the tool nor the user has said."""
    place = where if where == foreign.kind else f"{where}: {foreign.kind}"
    wanted = {
        "model": ("what is trained", "--model llama3-8b"),
        "gpus": ("the number of GPUs", "--gpus 64"),
        "cluster": ("what it runs on", "--cluster dgx-h100"),
    }
    for key, (what, hint) in wanted.items():
        if key not in foreign.job and key not in given:
            if key == "model" and foreign.unshipped:
                what, why = (
                    f"the model {foreign.unshipped} is not shipped",
                    "its sizes are not known",
                )
                hint = "--model with the config.json of that model, or a name of `seer list models`"
                raise UsageError(what, where=place, why=why, hint=hint)
            raise UsageError(
                f"{what} is not in it", where=place, hint=f"{hint} (`seer list` shows names)"
            )
    model = foreign.job.get("model")
    if isinstance(model, dict) and "vocab" not in model and not {"model", "model.vocab"} & {*given}:
        what = "the size of the vocabulary is not in it"
        why = "it would come from the tokenizer, which is not read"
        raise UsageError(what, where=place, why=why, hint="--set model.vocab=128256")


def _foreign(text: str, where: str, gpus: int | None) -> Foreign | None:
    found = _mapping(text, where)
    if found is not None:
        translate, value = found
        return translate(value, where, gpus)
    return megatron_from_text(text, where, gpus) if _is_script(text) else None


def _is_script(text: str) -> bool:
    return text.lstrip()[:1] not in ("{", "[") and is_megatron(text)


def _mapping(text: str, where: str) -> tuple[Translate, Mapping[str, Any]] | None:
    """The mapping in a file and the door that fits it."""
    value: Any = None
    if text.lstrip()[:1] == "{":
        value = parse_json(text, where)
    elif _YAML.search(text) and not is_megatron(text):
        value = parse_yaml(text, where)
    elif _TOML.search(text) and not is_megatron(text):
        try:
            value = tomllib.loads(text)
        except (ValueError, RecursionError) as fault:  # TOMLDecodeError, and numbers too long
            if not where.endswith(".toml"):
                return None
            why = str(fault)[:120]
            raise UnreadableError("this is not TOML", where=where, why=why) from None
    return next((((door, value)) for is_it, door in _MAPPINGS if is_it(value)), None)
