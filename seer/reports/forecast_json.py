"""A forecast as one JSON object: the contract `seer.forecast/1`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import PurePath
from typing import Any

import seer
from seer.errors import SeerError
from seer.forecast import Forecast
from seer.readers import shipped
from seer.readers.files import SPEC_LIMIT_BYTES, read_bytes
from seer.readers.job import FORECAST_SCHEMA as SCHEMA
from seer.spec import Job
from seer.workload.launches import host_model


def to_json(forecast: Forecast, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Plain data with the keys of the contract; identical input gives identical bytes.

    Times in seconds, sizes in bytes; `breakdown` adds up to `iteration_time_s`, `coverage` to 1.
    `spec` is the job spec that was asked for, edits applied: with it the object can be asked again
    (`seer explain`).
    """
    job, parallelism = forecast.job, forecast.job.parallelism
    capacity = job.cluster.device.memory_bytes
    return {
        "schema": SCHEMA,
        "job": job.name,
        "iteration_time_s": forecast.iteration_time_s,
        "interval_s": list(forecast.interval_s) if forecast.interval_s else None,
        "tokens_per_s": forecast.tokens_per_s,
        "tokens_per_s_per_gpu": forecast.tokens_per_s / job.gpus,
        "model_flops_utilization": forecast.model_flops_utilization,
        "gpus": job.gpus,
        "parallelism": {
            **asdict(parallelism),
            "layers_per_stage": list(parallelism.layers_per_stage),
            "micro_batches": job.micro_batches,
        },
        "breakdown": asdict(forecast.breakdown),
        "communication": {
            group: {"total_s": total, "exposed_s": exposed}
            for group, (total, exposed) in sorted(forecast.communication.items())
        },
        "memory": {
            "peak_bytes_per_rank": float(forecast.peak_bytes.max()),
            "capacity_bytes": capacity,
            "fits": forecast.fits,
            "heaviest_stage": int(forecast.peak_bytes.argmax()),
            "parts": dict(forecast.memory_parts),
        },
        "coverage": dict(forecast.coverage),
        "operators": forecast.operators,
        "provenance": _provenance(forecast),
        "notes": list(notes_of(job)),
        "warnings": list(forecast.warnings),
        **({"spec": dict(spec)} if spec is not None else {}),
    }


def notes_of(job: Job) -> tuple[str, ...]:
    """What was chosen for a job, and what to know about its cluster."""
    about = (f"cluster {job.cluster.name}: {note}" for note in job.cluster.notes)
    return (*job.notes, *about)


def _provenance(forecast: Forecast) -> dict[str, Any]:
    """What the forecast was made from."""
    job = forecast.job
    return {
        "version": seer.__version__,
        "inputs": {name: _sha256(value) for name, value in _inputs(job).items()},
        "calibration": {
            "name": forecast.calibration.name,
            "device": forecast.calibration.device,
            "date": forecast.calibration.date,
            "burst": forecast.calibration.burst,
            "sha256": forecast.calibration.sha256 or None,
        },
        "layer_template": {
            "name": PurePath(job.layer_template).name,
            "sha256": _template_sha256(job),
        },
        "framework": job.framework.name,
        "host": host_model(job),
        "rank": forecast.rank,
    }


def _template_sha256(job: Job) -> str | None:
    """Hash of the layer template's file; None where it was standard input or is gone."""
    try:
        path = shipped.resolve("layers", job.layer_template)
        return hashlib.sha256(read_bytes(path, SPEC_LIMIT_BYTES)).hexdigest()
    except SeerError:
        return None


def _inputs(job: Job) -> dict[str, Any]:
    return {
        "model": job.model,
        "training": job.training,
        "parallelism": job.parallelism,
        "cluster": job.cluster,
        "framework": job.framework,
    }


def _sha256(value: Any) -> str:
    """Hash of a spec's content, whatever file it came from."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
