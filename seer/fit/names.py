"""Which device a measurement file is named after."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from seer.calibration import Measurements

_FORM = re.compile(r"sxm|pcie")
_GPU = re.compile(r"(gb|gh|mi|a|b|h|l|v)\d{2,4}[a-z]?(?=[_.-]|$)")


def model_of(name: str) -> str:
    """The GPU model that a file or device name begins with ("h200_sxm_train.csv": h200), or ""."""
    found = _GPU.match(os.path.basename(name).lower())
    return found.group() if found else ""


def is_other_board(file: str, device: str) -> bool:
    """Whether a file is of the device's GPU on another board (SXM beside PCIe).

    >>> [is_other_board(file, "a100-pcie") for file in ("a100_sxm_fwd.csv", "a100_pcie.csv")]
    [True, False]
    """
    boards = {*_FORM.findall(stem_of(file)), *_FORM.findall(device.lower())}
    return bool(model_of(file)) and model_of(file) == model_of(device) and len(boards) > 1


def is_same_gpu(one: str, two: str) -> bool:
    """Whether two names begin with one GPU, be it beside a Grace processor or not.

    >>> is_same_gpu("b300_sxm.csv", "gb300"), is_same_gpu("b300_sxm.csv", "b200")
    (True, False)
    """
    gpu = model_of(one).removeprefix("g")
    return bool(gpu) and gpu == model_of(two).removeprefix("g")


def stem_of(file: str) -> str:
    """The name of a file without folder and endings."""
    return os.path.basename(file).removesuffix(".gz").removesuffix(".csv").lower()


def is_relative(table: Measurements, device: str) -> bool:
    """Whether a table is named after another GPU model or board than the device: it lends ratios.

    A PCIe board of the same GPU has another power limit and memory clock.
    """
    if not model_of(device):
        return False
    boards = {*_FORM.findall(stem_of(table.file)), *_FORM.findall(device.lower())}
    return model_of(table.file) not in ("", model_of(device)) or len(boards) > 1


def device_key(name: str, known: Iterable[str]) -> str:
    """The longest known device that a file or device name begins with, or "".

    >>> device_key("h100_sxm_train", {"h100_sxm": 1.0, "h200_sxm": 2.0})
    'h100_sxm'
    """
    plain = name.replace("-", "_")
    return max((key for key in known if plain.startswith(key)), key=len, default="")
