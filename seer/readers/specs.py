"""Models, clusters and frameworks: a shipped name, a path or an inline mapping to a noun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, Field, create_model
from pydantic_core import PydanticCustomError

from seer.cluster import Cluster, Device, HostLink, Processor, Tier
from seer.errors import SeerError, UsageError, nearest
from seer.layers import LatentAttention
from seer.model import ModelSpec
from seer.readers import shipped
from seer.readers.files import named, read_structured
from seer.readers.huggingface import is_huggingface, model_from_huggingface
from seer.readers.schema import (
    Bytes,
    BytesPerSecond,
    Count,
    FlopPerSecond,
    Seconds,
    Spec,
    validate,
)
from seer.spec import WHOLE_ITERATION, FrameworkSpec
from seer.units import parse_seconds

Source = str | os.PathLike[str] | Mapping[str, Any]
Recompute = Literal["none", "selective", "full"]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
Size = Annotated[int, Field(ge=0, le=10**9)]
"""A count that may be zero: the feature is absent."""


class _LatentAttention(Spec):
    q_lora_rank: Annotated[int, Field(ge=0, le=10**6)] = 0
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Annotated[int, Field(ge=0, le=10**6)]
    v_head_dim: Count


class _Model(Spec):
    name: str = ""
    layers: Annotated[int, Field(ge=1, le=100_000)]
    hidden: Count
    heads: Count
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn_hidden: Count
    vocab: Count
    activation: Literal["gelu", "relu", "squared_relu", "swiglu", "geglu", "clamped_swiglu"] = (
        "gelu"
    )
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    position: Literal["rope", "learned", "none"] = "learned"
    tied_embeddings: bool = True
    max_positions: Size = 0
    experts: Size = 0
    top_k: Size = 0
    expert_ffn_hidden: Size = 0
    shared_ffn_hidden: Size = 0
    dense_layers: Size = 0
    moe_period: Count = 1
    mla: _LatentAttention | None = None
    window: Size = 0
    window_period: Count = 1
    full_attention_period: Size = 0
    mtp_layers: Annotated[int, Field(ge=0, le=64)] = 0
    expert_bias: bool = False
    qk_norm: bool = False
    rope_concentration: Annotated[float, Field(ge=1.0, le=100.0)] = 1.0
    source: str = ""


class _Device(Spec):
    name: str
    memory_bytes: Bytes
    hbm_bytes_per_s: BytesPerSecond
    peak_flop_per_s: dict[Literal["fp32", "fp16", "bf16", "fp8", "fp4"], FlopPerSecond]
    source: str = ""
    multiprocessors: Size = 0


class _Tier(Spec):
    name: str
    size: Annotated[int, Field(ge=0)] = 0
    bandwidth_bytes_per_s: BytesPerSecond
    latency_s: Seconds
    oversubscription: Annotated[float, Field(ge=1.0)] = 1.0
    fabric: str = ""
    pooling: Literal["pinned", "pooled"] = "pinned"
    background: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    efficiency: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    distance_km: Annotated[float, Field(ge=0.0, le=4e5)] = 0.0
    latency_s_per_km: Seconds = 5e-6
    window_bytes: Bytes = 0.0
    ports: Annotated[int, Field(ge=1, le=64)] = 1
    wiring: Literal["all", "rail"] = "all"
    in_network_reduction: bool = False
    algorithm: Literal["flat", "two-level"] = "flat"


class _HostLink(Spec):
    link_bytes_per_s: BytesPerSecond
    to_host_bytes_per_s: BytesPerSecond = 0.0
    from_host_bytes_per_s: BytesPerSecond = 0.0
    adam_parameters_per_s: Annotated[float, Field(ge=0.0, le=1e15)] = 0.0
    source: str = ""


class _Processor(Spec):
    name: str
    calls_s: Annotated[dict[str, Seconds], Field(default_factory=dict)]
    source: str = ""


_CALIBRATION_HINT = (
    "name curves (`seer list calibrations`); those of another device go in the ratio of peaks and "
    "memory bandwidths"
)


class _Cluster(Spec):
    name: str = ""
    device: _Device
    devices_per_node: Count
    tiers: Annotated[list[_Tier], Field(min_length=1)]
    calibration: Annotated[str, Field(description=_CALIBRATION_HINT)]
    source: str = ""
    notes: Annotated[list[str], Field(default_factory=list)]
    pxn: bool = True
    host_gpus: Size = 0
    built_domain: Size = 0
    host_link: _HostLink | None = None
    processor: _Processor | str | None = None


def _issue(value: str) -> str:
    """`framework.host_issue`: "calls", "off" or a time."""
    if value not in ("calls", "off"):
        try:
            parse_seconds(value)
        except SeerError as fault:
            why = f'"calls", "off" or a time for each operator such as "12 us"; {fault.why}'
            context = {"what": fault.what, "why": why.rstrip("; "), "hint": fault.hint}
            raise PydanticCustomError("seer", "{what}", context) from None
    return value


_FRAMEWORK_CHOICES: dict[str, Any] = {
    "p2p": Literal["blocking", "in_turn", "overlap"],
    "tp_overlap": Literal["none", "dgrad", "pipelined", "fused"],
    "recompute": Recompute,
    "overlap_multiprocessors": dict[str, dict[str, Annotated[int, Field(ge=0, le=4096)]]],
    "dispatchers": dict[Annotated[str, Field(pattern=r"^[0-9]{1,6}$")], Dispatcher],
    "ep_overlap": Literal["never", "between_nodes"],
    "backward_prefetch": Literal["pre", "post"],
    "bucket_parameters": Annotated[int, Field(ge=0)],
    "optimizer_traffic_bytes": Annotated[float, Field(ge=0)],
    "step_overhead_s": Seconds,
    "transfer_overhead_s": Seconds,
    "software": list[str],
    "recompute_modules": list[str],
    "host_calls": dict[str, dict[str, str]],
    "graph_scopes": dict[str, list[str]],
    "cuda_graphs": list[str],
    "post_validated": list[str],
    "host_issue": Annotated[str, AfterValidator(_issue)],
}
"""Fields of FrameworkSpec that take less than their type says."""


def _framework_schema() -> type[Spec]:
    """The schema of a framework preset, made from the noun so that the two cannot drift apart."""
    hints = get_type_hints(FrameworkSpec)
    schema: dict[str, Any] = {}
    for field in fields(FrameworkSpec):
        default = {} if field.default_factory is not MISSING else field.default
        default = list(default) if isinstance(default, tuple) else default
        kind = _FRAMEWORK_CHOICES.get(field.name, hints[field.name])
        required = default is MISSING and field.name != "name"
        schema[field.name] = (kind, ... if required else "" if default is MISSING else default)
    return create_model("Framework", __base__=Spec, **schema)


_Framework = _framework_schema()


def load(kind: str, source: Any, where: str = "") -> tuple[dict[str, Any], str]:
    """The mapping behind a name, a path or a mapping, and the place to name in errors.

    `kind` is the plural ("models", "clusters", "frameworks", "jobs"). A mapping without `name`
    is named after its file; standard input (`-`) has no name.
    """
    if isinstance(source, Mapping):
        place = where or kind.removesuffix("s")
        given = dict(source)
        based = kind == "clusters" and "base" in given
        return _on_base(given, None, place) if based else given, place
    if not isinstance(source, (str, os.PathLike)):
        what = f"a name, a path or a mapping is expected, not {source!r}"
        raise UsageError(what, where=where)
    noun = kind.removesuffix("s")
    path = shipped.resolve(kind, source, where)
    shipped_one = path.parent == shipped.folder(kind)
    place = f"{noun} {source}" if shipped_one else named(path)
    value = read_structured(path)
    if not isinstance(value, dict):
        raise UsageError(f"a {noun} spec is a mapping of keys", where=place)
    if kind == "clusters" and "base" in value:
        value = _on_base(value, path.parent, place)
    if not is_huggingface(value) and str(source) != "-":
        value.setdefault("name", Path(path.name.removesuffix(".gz")).stem)
    return value, place


INHERITED = (
    "device",
    "devices_per_node",
    "host_gpus",
    "built_domain",
    "host_link",
    "processor",
)
"""What a cluster takes from its base as it is; of tiers and calibration, what it does not say."""


def _on_base(value: dict[str, Any], folder: Path | None, place: str) -> dict[str, Any]:
    """A cluster that takes what it does not say from another: a shipped name, or a file beside."""
    base = value.pop("base")
    beside = folder / base if folder and isinstance(base, str) else None
    source = str(beside) if beside and os.path.isfile(beside) else base
    found = read_structured(shipped.resolve("clusters", source, f"{place}: base"))
    if not isinstance(found, dict) or "base" in found:
        what = "the base of a cluster is a cluster spec without a base of its own"
        raise UsageError(what, where=f"{place}: base")
    inherited = {key: part for key, part in found.items() if key in INHERITED}
    inherited |= {key: found[key] for key in ("calibration", "tiers") if key in found}
    return inherited | value


def read_model(source: Source, where: str = "") -> ModelSpec:
    """A model from a shipped name, a spec file, a Hugging Face `config.json`, or a mapping."""
    mapping, place = load("models", source, where)
    if is_huggingface(mapping):
        name = "" if isinstance(source, Mapping) else _named_by(Path(place))
        return model_from_huggingface(mapping, place, name)
    return _model(validate(_Model, mapping, place), place)


def _named_by(path: Path) -> str:
    """What a `config.json` is called: its folder's name, or its own where it has one."""
    own = path.name.removesuffix(".gz").removesuffix(".json")
    return path.resolve().parent.name if own in ("config", "-") else own


def _model(spec: _Model, place: str) -> ModelSpec:
    """The noun of a checked mapping; what must agree within it is checked here."""
    if spec.head_dim is None and spec.mla is None and spec.hidden % spec.heads:
        what = f"hidden {spec.hidden} is not a multiple of heads {spec.heads}"
        raise UsageError(what, where=place, hint="state head_dim")
    kv_heads = spec.kv_heads or spec.heads
    if spec.heads % kv_heads:
        what = f"heads {spec.heads} is not a multiple of kv_heads {kv_heads}"
        raise UsageError(what, where=place)
    _experts(spec, place)
    values = spec.model_dump()
    values["kv_heads"] = kv_heads
    latent = spec.mla
    values["mla"] = LatentAttention(**latent.model_dump()) if latent else None
    wide = latent.qk_nope_head_dim + latent.qk_rope_head_dim if latent else 0
    values["head_dim"] = spec.head_dim or wide or spec.hidden // spec.heads
    values["name"] = spec.name or "model"
    return ModelSpec(**values)


def _experts(spec: _Model, place: str) -> None:
    """Raise UsageError when the keys of a mixture of experts do not belong together."""
    if not spec.experts:
        for key in ("top_k", "expert_ffn_hidden", "shared_ffn_hidden", "dense_layers"):
            if getattr(spec, key):
                what = f"{key} {getattr(spec, key)} belongs to a mixture of experts"
                raise UsageError(what, where=place, hint="state experts as well")
        return
    for key in ("top_k", "expert_ffn_hidden"):
        if not getattr(spec, key):
            what = f"the key '{key}' is missing"
            why = f"experts is {spec.experts}"
            raise UsageError(what, where=place, why=why)
    if spec.top_k > spec.experts:
        what = f"top_k {spec.top_k} is more than the {spec.experts} experts there are"
        raise UsageError(what, where=place)
    if spec.dense_layers > spec.layers:
        what = f"dense_layers {spec.dense_layers} is more than the {spec.layers} layers there are"
        raise UsageError(what, where=place)


def _check_tiers(spec: _Cluster, place: str) -> None:
    """A domain of a tier is made of whole nodes, and of whole domains of the tier below."""
    if spec.host_gpus and spec.devices_per_node % spec.host_gpus:
        what = f"a node of {spec.devices_per_node} GPUs is not made of hosts of {spec.host_gpus}"
        raise UsageError(what, where=f"{place}: host_gpus")
    last = len(spec.tiers) - 1
    below = spec.devices_per_node
    for i, tier in enumerate(spec.tiers):
        where = f"{place}: tiers[{i}].size"
        if tier.size % spec.devices_per_node:
            raise UsageError(
                f"a tier of {tier.size} GPUs is not made of whole nodes of {spec.devices_per_node}",
                where=where,
                hint="a multiple of devices_per_node, or 0 for all",
            )
        if i == 0:
            continue
        if tier.size == 0 and i < last:
            what = f"only the last tier joins all GPUs, and '{tier.name}' is not the last"
            raise UsageError(what, where=where, hint="say how many GPUs one domain joins")
        if tier.size and tier.size % below:
            what = f"a tier of {tier.size} GPUs is not made of whole domains of {below}"
            raise UsageError(what, where=where, hint=f"a multiple of {below}, or 0 for all")
        below = tier.size or below


def read_cluster(source: Source, where: str = "") -> Cluster:
    """A cluster from a shipped name, a spec file or a mapping."""
    mapping, place = load("clusters", source, where)
    spec = validate(_Cluster, mapping, place)
    _check_tiers(spec, place)
    device = spec.device.model_dump()
    device["peak_flop_per_s"] = {str(k): v for k, v in device["peak_flop_per_s"].items()}
    return Cluster(
        name=spec.name or "cluster",
        device=Device(**device),
        devices_per_node=spec.devices_per_node,
        tiers=tuple(Tier(**tier.model_dump()) for tier in spec.tiers),
        calibration=spec.calibration,
        source=spec.source,
        notes=tuple(spec.notes),
        pxn=spec.pxn,
        host_gpus=spec.host_gpus,
        built_domain=spec.built_domain,
        host_link=HostLink(**spec.host_link.model_dump()) if spec.host_link else None,
        processor=_processor(spec.processor, place),
    )


def _processor(given: _Processor | str | None, place: str) -> Processor | None:
    """A processor that a cluster states, or a shipped one that it names."""
    if given is None:
        return None
    if isinstance(given, str):
        path = shipped.find("processors", given, f"{place}: processor")
        given = validate(_Processor, read_structured(path), f"processor {given}")
    return Processor(given.name, dict(given.calls_s), given.source)


def read_framework(source: Source, where: str = "") -> FrameworkSpec:
    """A framework preset from a shipped name, a spec file or a mapping."""
    mapping, place = load("frameworks", source, where)
    values = validate(_Framework, mapping, place).model_dump()
    lists = {key: tuple(values[key]) for key in ("software", "recompute_modules", "cuda_graphs")}
    scopes = {name: tuple(operators) for name, operators in values["graph_scopes"].items()}
    known = (*scopes, WHOLE_ITERATION)
    unknown = [scope for scope in lists["cuda_graphs"] if scope not in known]
    if unknown:
        what = f"'{unknown[0]}' is no scope of CUDA graphs of this framework"
        raise UsageError(what, where=f"{place}: cuda_graphs", hint=nearest(unknown[0], known))
    return FrameworkSpec(
        **{**values, **lists, "graph_scopes": scopes, "name": values["name"] or "framework"}
    )
