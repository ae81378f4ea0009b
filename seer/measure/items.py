"""What to measure: the distinct operators of a job, or a grid when no job is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from seer.graph import COLLECTIVES, DType, OperatorKind, Pass, WorkTable
from seer.spec import Job
from seer.workload import Plan

COLLECTIVE_NAMES = frozenset(kind.name for kind in COLLECTIVES)

SMALLEST_MESSAGE_BYTES = 2**14
"""The ladder of message sizes below a job's own ends here: below, latency is all there is."""

Shape = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Item:
    """One operator at one shape: an entry of a measurement file without its times.

    Attributes
    ----------
    kind : str
        "gemm", "attention", "memory", "optimizer", or a collective ("all_reduce", ...).
    shape : tuple of (name, number), in the order of the file
        gemm: m, n, k, batch of the product itself (as in `WorkTable`: the input gradient of
        C[m, n] = A[m, k] B[k, n] is [m, k], the weight gradient [n, k]). attention: batch, seq_q,
        seq_kv, heads, kv_heads, head_dim, causal. memory: rows, cols, hbm_bytes (ideal traffic);
        embedding also vocab and tied. optimizer: parameters, tensors, hbm_bytes. collectives:
        message_bytes (as in nccl-tests), ranks.
    dtype : str
        "fp32", "bf16", "fp16".
    train_pass : str
        "forward", "dgrad", "wgrad", "backward"; "" where there is no pass.
    variant : str
        Which implementation, as the work table calls it ("layer_norm", "flash", "adam").
    """

    kind: str
    shape: Shape
    dtype: str
    train_pass: str = ""
    variant: str = ""

    @property
    def size(self) -> dict[str, float]:
        """The shape as a mapping."""
        return dict(self.shape)

    def to_json(self) -> dict[str, object]:
        """The entry of a measurement file, without times."""
        return {
            "kind": self.kind,
            "shape": self.size,
            "dtype": self.dtype,
            "train_pass": self.train_pass,
            "variant": self.variant,
        }

    def __str__(self) -> str:
        words = [self.kind, self.variant, self.train_pass, self.dtype]
        sizes = [f"{n} {v:g}" for n, v in self.shape if n != "hbm_bytes"]
        return " ".join([*(w for w in words if w), *sizes])


def item_from_json(entry: Mapping[str, object]) -> Item:
    """The inverse of `Item.to_json`; raises KeyError, TypeError or ValueError on other data."""
    shape = entry["shape"]
    if not isinstance(shape, Mapping):
        raise TypeError("shape is not a mapping")
    return Item(
        kind=str(entry["kind"]),
        shape=tuple((str(name), _number(value)) for name, value in shape.items()),
        dtype=str(entry.get("dtype", "")),
        train_pass=str(entry.get("train_pass", "")),
        variant=str(entry.get("variant", "")),
    )


def _number(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    return int(number) if number.is_integer() else number


# ---- of a job -------------------------------------------------------------------------------


def items_for_job(plan: Plan) -> list[Item]:
    """The distinct operators that a plan runs, in the order of its work table.

    Left out: durations that are given, pipeline transfers, and collectives among one rank.
    """
    found: dict[Item, None] = {}
    for i in range(len(plan.work)):
        item = _item_of_row(plan.work, i, plan.job)
        if item is not None:
            found[item] = None
    return list(found)


def _item_of_row(work: WorkTable, i: int, job: Job) -> Item | None:
    row = work.row(i)
    kind = OperatorKind(row["kind"])
    if row["measured_s"] == row["measured_s"]:  # not NaN: it is given
        return None
    dtype = DType(row["dtype"]).name if row["dtype"] else job.training.precision
    train_pass = Pass(row["train_pass"]).name.replace("none", "")
    if kind in COLLECTIVES:
        if row["group_ranks"] < 2:
            return None
        shape = {"message_bytes": int(row["message_bytes"]), "ranks": int(row["group_ranks"])}
        return Item(kind.name, _shape(shape), dtype)
    if kind == OperatorKind.gemm:
        shape = {name: int(row[name]) for name in ("m", "n", "k", "batch")}
    elif kind == OperatorKind.attention:
        shape = {
            "batch": int(row["batch"]),
            "seq_q": int(row["m"]),
            "seq_kv": int(row["n"]),
            "heads": int(row["heads"]),
            "kv_heads": int(row["kv_heads"]),
            "head_dim": int(row["k"]),
            "causal": int(row["causal"]),
        }
    elif kind == OperatorKind.memory:
        shape = {"rows": int(row["m"]), "cols": max(1, int(row["n"]))}
        if row["variant"] == "embedding":
            shape |= {
                "vocab": job.model.vocab // job.parallelism.tp,
                "tied": int(job.model.tied_embeddings and job.parallelism.pp == 1),
            }
        return Item(
            kind.name,
            _shape({**shape, "hbm_bytes": row["hbm_bytes"]}),
            dtype,
            train_pass or "forward",
            row["variant"],
        )
    elif kind == OperatorKind.optimizer:
        layers = job.model.layers // job.parallelism.pp
        shape = {
            "parameters": int(row["m"]),
            "tensors": 4 * layers + 1,  # qkv, output, two of the MLP; the embedding
            "hbm_bytes": row["hbm_bytes"],
        }
        return Item(kind.name, _shape(shape), dtype, "", row["variant"])
    else:
        return None
    return Item(kind.name, _shape(shape), dtype, train_pass, row["variant"])


def _shape(values: Mapping[str, float]) -> Shape:
    return tuple((name, _number(value)) for name, value in values.items())


# ---- sizes around them ----------------------------------------------------------------------

_GROWS: Mapping[str, tuple[str, ...]] = {
    "attention": ("seq_q", "seq_kv"),
    "memory": ("rows", "hbm_bytes"),
    "optimizer": ("parameters", "hbm_bytes"),
}
"""Sizes of a kind that grow with the tokens of a micro-batch (or with the model's depth)."""


def around(items: Iterable[Item], factors: Sequence[float] = (0.5, 2.0)) -> list[Item]:
    """The items, then each again with its tokens (or parameters) times each factor.

    A curve needs three points and a forecast of another batch needs neighbours. Collectives get a
    ladder of smaller messages in steps of four instead, and one of twice the size.
    """
    found = dict.fromkeys(items)
    for item in list(found):
        if item.kind in COLLECTIVE_NAMES:
            found |= dict.fromkeys(_ladder(item))
            continue
        for factor in factors:
            scaled = _scaled(item, factor)
            if scaled is not None:
                found[scaled] = None
    return list(found)


def _ladder(item: Item) -> list[Item]:
    size = int(item.size["message_bytes"])
    sizes = [2 * size]
    while size // 4 >= SMALLEST_MESSAGE_BYTES:
        size //= 4
        sizes.append(size // 4 * 4)
    return [_with(item, {"message_bytes": s}) for s in sizes]


def _scaled(item: Item, factor: float) -> Item | None:
    """None where the size would not be whole."""
    grows = _GROWS.get(item.kind, ())
    if item.kind == "gemm":
        grows = ("k",) if item.train_pass == "wgrad" else ("m",)
        if item.size.get("batch", 1) > 1:
            grows = ("batch",)
    new = {name: item.size[name] * factor for name in grows}
    if any(value < 1 or value != int(value) for name, value in new.items() if name != "hbm_bytes"):
        return None
    return _with(item, new)


def _with(item: Item, new: Mapping[str, float]) -> Item:
    return replace(item, shape=_shape({**item.size, **new}))


# ---- without a job --------------------------------------------------------------------------

CPU_GRID = ((256, 512, 1024), (512, 2048), 64, 8192, 256)
GPU_GRID = ((1024, 2048, 4096, 8192), (2048, 8192), 128, 32768, 2048)
"""Hidden sizes, tokens, head size, vocabulary and sequence length of the grid without a job."""


def default_items(device: str, dtype: str, processes: int = 1) -> list[Item]:
    """A grid of GPT layers: hidden sizes by tokens; collectives where there are two processes."""
    hiddens, tokens, head_dim, vocab, sequence = CPU_GRID if device == "cpu" else GPU_GRID
    found: dict[Item, None] = {}
    for hidden in hiddens:
        for m in tokens:
            layer = _layer(hidden, m, head_dim, vocab, sequence, dtype)
            found |= dict.fromkeys(layer)
        for layers in (1, 4, 16):
            found[_adam(12 * layers * hidden**2, 4 * layers, dtype)] = None
    if processes > 1:
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            for power in range(14, 29, 2):
                shape = {"message_bytes": 2**power, "ranks": processes}
                found[Item(kind, _shape(shape), dtype)] = None
    return list(found)


def _layer(
    hidden: int, tokens: int, head_dim: int, vocab: int, sequence: int, dtype: str
) -> list[Item]:
    found: list[Item] = []
    pairs = ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden))
    for n, k in (*pairs, (vocab, hidden)):
        shapes = (("forward", tokens, n, k), ("dgrad", tokens, k, n), ("wgrad", n, k, tokens))
        for train_pass, *mnk in shapes:
            shape = dict(zip(("m", "n", "k"), mnk, strict=True)) | {"batch": 1}
            found.append(Item("gemm", _shape(shape), dtype, train_pass))
    heads = hidden // head_dim
    for train_pass in ("forward", "backward"):
        shape = {
            "batch": tokens // sequence,
            "seq_q": sequence,
            "seq_kv": sequence,
            "heads": heads,
            "kv_heads": heads,
            "head_dim": head_dim,
            "causal": 1,
        }
        if tokens >= sequence:
            found.append(Item("attention", _shape(shape), dtype, train_pass, "flash"))
        found += _memory_bound(hidden, tokens, vocab, dtype, train_pass)
    return found


_TRAFFIC: Mapping[str, Callable[[int], tuple[int, float, float]]] = {
    # variant: hidden -> columns, ideal traffic per element in multiples of its size (fwd, bwd)
    "layer_norm": lambda hidden: (hidden, 2, 3),
    "rms_norm": lambda hidden: (hidden, 2, 3),
    "residual_add": lambda hidden: (hidden, 3, 3),
    "add": lambda hidden: (hidden, 3, 2),
    "gelu": lambda hidden: (4 * hidden, 2, 3),
    "swiglu": lambda hidden: (4 * hidden, 3, 5),
}


def _memory_bound(
    hidden: int, tokens: int, vocab: int, dtype: str, train_pass: str
) -> Iterable[Item]:
    element = DType[dtype].size_bytes
    backward = train_pass == "backward"
    for variant, of in _TRAFFIC.items():
        cols, forward_bytes, backward_bytes = of(hidden)
        per_element = backward_bytes if backward else forward_bytes
        shape = {"rows": tokens, "cols": cols, "hbm_bytes": tokens * cols * element * per_element}
        yield Item("memory", _shape(shape), dtype, train_pass, variant)
    traffic = tokens * hidden * element * (3 if backward else 2)
    shape = {"rows": tokens, "cols": hidden, "vocab": vocab, "tied": 0, "hbm_bytes": traffic}
    yield Item("memory", _shape(shape), dtype, train_pass, "embedding")
    traffic = tokens * vocab * element * (3 if backward else 2)
    shape = {"rows": tokens, "cols": vocab, "hbm_bytes": traffic}
    yield Item("memory", _shape(shape), dtype, train_pass, "cross_entropy")


def _adam(parameters: int, tensors: int, dtype: str) -> Item:
    shape = {"parameters": parameters, "tensors": tensors, "hbm_bytes": 28 * parameters}
    return Item("optimizer", _shape(shape), dtype, "", "adam")
