"""The operators themselves, as eager PyTorch runs them in a training step.

Backward operators are what autograd runs: the gradient of one call, asked for by
`torch.autograd.grad`. A gradient GEMM asks for one of its two gradients only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from seer.measure.items import Item
from seer.measure.run import NotMeasurable

Call = Callable[[], Any]
Make = Callable[[], Call]

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

MOST_COPIES = 64


def calls_of(item: Item, device: str, rotation_bytes: float) -> list[Call]:
    """Copies of one operator with operands of their own; call them in turn.

    There are as many as it takes for their operands to fill `rotation_bytes` (2 to 64), so that no
    call finds its operands in the innermost caches, as in a step where other operators ran between.

    Raises NotMeasurable for an operator that has no kernel here.
    """
    import torch

    make = maker_of(item, device)
    copies = 1
    if item.kind != "optimizer":
        copies = min(MOST_COPIES, max(2, math.ceil(rotation_bytes / operand_bytes(item))))
    try:
        return [make() for _ in range(copies)]
    except (RuntimeError, NotImplementedError, torch.OutOfMemoryError) as fault:
        raise NotMeasurable(str(fault).splitlines()[0]) from None


def operand_bytes(item: Item) -> float:
    """About how many bytes one call reads and writes."""
    size, element = item.size, 4.0 if item.dtype == "fp32" else 2.0
    if item.kind == "gemm":
        m, n, k = size["m"], size["n"], size["k"]
        return element * size.get("batch", 1) * (m * n + n * k + m * k)
    if item.kind == "attention":
        heads = 2 * size["heads"] + 2 * size["kv_heads"]
        return element * size["batch"] * size["seq_q"] * heads * size["head_dim"]
    return max(1.0, size.get("hbm_bytes", 1.0))


def maker_of(item: Item, device: str) -> Make:
    """A function that makes one call with fresh operands; raises NotMeasurable."""
    maker = _MAKERS.get(item.kind)
    if maker is None:
        raise NotMeasurable(f"operators of kind {item.kind} are not measured")
    return maker(item, device)


# ---- matrix products ------------------------------------------------------------------------


def _gemm(item: Item, device: str) -> Make:
    import torch
    from torch.nn import functional

    m, n, k = (int(item.size[name]) for name in ("m", "n", "k"))
    batch = int(item.size.get("batch", 1))
    if batch > 1 or item.variant in ("qk_bmm", "pv_bmm"):
        return _batched(item, device)
    # back to the forward product C[m, n] = X[m, k] W[n, k]^T of the layer
    if item.train_pass == "dgrad":
        n, k = k, n
    elif item.train_pass == "wgrad":
        m, n, k = k, m, n
    new = _tensors(item, device)

    def make() -> Call:
        x = new(m, k).requires_grad_(item.train_pass != "wgrad")
        w = new(n, k).requires_grad_(item.train_pass != "dgrad")
        if item.train_pass == "forward":
            return lambda: functional.linear(x, w)
        y, gradient = functional.linear(x, w), new(m, n)
        if item.train_pass == "backward":
            return lambda: torch.autograd.grad(y, (x, w), gradient, retain_graph=True)
        wanted = x if item.train_pass == "dgrad" else w
        return lambda: torch.autograd.grad(y, wanted, gradient, retain_graph=True)

    return make


def _batched(item: Item, device: str) -> Make:
    import torch

    m, n, k, batch = (int(item.size[name]) for name in ("m", "n", "k", "batch"))
    new = _tensors(item, device)

    def make() -> Call:
        a, b = new(batch, m, k).requires_grad_(), new(batch, k, n).requires_grad_()
        if item.train_pass == "forward":
            return lambda: torch.bmm(a, b)
        c, gradient = torch.bmm(a, b), new(batch, m, n)
        return lambda: torch.autograd.grad(c, (a, b), gradient, retain_graph=True)

    return make


# ---- attention ------------------------------------------------------------------------------


def packed_attention(qkv: Any, heads: int, kv_heads: int, head_dim: int, causal: bool) -> Any:
    """Fused attention on the packed output [batch, sequence, width] of the qkv layer.

    As a plain GPT calls it: split, view, transpose, `scaled_dot_product_attention`, and back. The
    backward pass therefore includes packing the three gradients.
    """
    from torch.nn import functional

    batch, sequence, _ = qkv.shape
    widths = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    parts = qkv.split(widths, dim=2)
    q, k, v = (p.view(batch, sequence, -1, head_dim).transpose(1, 2) for p in parts)
    grouped = {"enable_gqa": True} if kv_heads != heads else {}
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)
    return out.transpose(1, 2).reshape(batch, sequence, heads * head_dim)


def _attention(item: Item, device: str) -> Make:
    import torch

    names = ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim", "causal")
    batch, seq_q, seq_kv, heads, kv_heads, head_dim, causal = (int(item.size[n]) for n in names)
    if seq_q != seq_kv:
        raise NotMeasurable("attention is measured with as many keys as queries")
    new = _tensors(item, device)

    def make() -> Call:
        qkv = new(batch, seq_q, (heads + 2 * kv_heads) * head_dim).requires_grad_()

        def forward() -> Any:
            return packed_attention(qkv, heads, kv_heads, head_dim, bool(causal))

        if item.train_pass == "forward":
            return forward
        out, gradient = forward(), new(batch, seq_q, heads * head_dim)
        return lambda: torch.autograd.grad(out, qkv, gradient, retain_graph=True)

    return make


# ---- memory-bound operators -----------------------------------------------------------------


def _memory(item: Item, device: str) -> Make:
    import torch

    build = _VARIANTS.get(item.variant)
    if build is None:
        raise NotMeasurable(f"the operator '{item.variant}' has no kernel here")
    backward = item.train_pass == "backward"

    def make() -> Call:
        inputs, function, instead = build(item, device)
        if not backward:
            return lambda: function(*inputs)
        if instead is not None:
            return instead
        out = function(*inputs)
        gradient = torch.ones_like(out) if out.dim() == 0 else out.detach().clone()
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        return lambda: torch.autograd.grad(out, wanted, gradient, retain_graph=True)

    return make


Built = tuple[list[Any], Callable[..., Any], Call | None]
"""Inputs, the forward function of them, and what the backward pass runs where that is not its
gradient."""


def _norm(item: Item, device: str) -> Built:
    from torch.nn import functional

    new, (rows, cols) = _tensors(item, device), _rows_cols(item)
    inputs = [new(rows, cols).requires_grad_(), new(cols).requires_grad_()]
    if item.variant == "rms_norm":
        return inputs, lambda x, w: functional.rms_norm(x, (cols,), w), None
    return inputs, lambda x, w: functional.layer_norm(x, (cols,), w), None


def _activation(item: Item, device: str) -> Built:
    from torch.nn import functional

    new, (rows, cols) = _tensors(item, device), _rows_cols(item)
    if item.variant in ("swiglu", "geglu"):
        gate = functional.silu if item.variant == "swiglu" else functional.gelu

        def gated(x: Any) -> Any:
            left, right = x.chunk(2, dim=-1)
            return gate(left) * right

        return [new(rows, 2 * cols).requires_grad_()], gated, None
    plain = {
        "gelu": functional.gelu,
        "relu": functional.relu,
        "squared_relu": lambda x: functional.relu(x).square(),
    }
    return [new(rows, cols).requires_grad_()], plain[item.variant], None


def _sum_of_two(item: Item, device: str) -> Built:
    """Residual addition; backward, autograd adds up the gradients of the two branches in place."""
    new, (rows, cols) = _tensors(item, device), _rows_cols(item)
    x, y = new(rows, cols), new(rows, cols)
    inputs = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    if item.variant == "bias_dropout_add":
        from torch.nn import functional

        inputs.append(new(cols).requires_grad_())
        return inputs, lambda a, b, c: a + functional.dropout(b + c, 0.1), None
    if item.variant == "add":  # a broadcast addition: backward sums over the rows that shared it
        return inputs, lambda a, b: a + b, lambda: x.view(-1, cols).sum(0)
    return inputs, lambda a, b: a + b, lambda: x.add_(y)


def _one_input(item: Item, device: str) -> Built:
    import torch
    from torch.nn import functional

    new, (rows, cols) = _tensors(item, device), _rows_cols(item)
    x = new(rows, cols).requires_grad_()
    if item.variant == "dropout":
        return [x], lambda t: functional.dropout(t, 0.1), None
    if item.variant == "softmax":
        return [x], lambda t: torch.softmax(t, -1), None
    if item.variant == "causal_softmax":
        mask = torch.arange(cols, device=device)[None] > torch.arange(rows, device=device)[:, None]
        scale = cols**-0.5
        return [x], lambda t: torch.softmax((t * scale).masked_fill(mask, -math.inf), -1), None
    if item.variant == "rope":
        cosine, sine = new(rows, cols), new(rows, cols)

        def rotate(t: Any) -> Any:
            left, right = t.chunk(2, dim=-1)
            return t * cosine + torch.cat((-right, left), dim=-1) * sine

        return [x], rotate, None
    return [x], lambda t: t.clone(), None


def _embedding(item: Item, device: str) -> Built:
    """Rows of a table; backward fills a dense gradient of it, added to the head's when tied."""
    import torch
    from torch.nn import functional

    new, (rows, cols) = _tensors(item, device), _rows_cols(item)
    vocab = int(item.size.get("vocab", 32768))
    table = new(vocab, cols).requires_grad_()
    index = torch.randint(vocab, (rows,), device=device)
    out, gradient, other = functional.embedding(index, table), new(rows, cols), new(vocab, cols)

    def backward() -> None:
        (found,) = torch.autograd.grad(out, table, gradient, retain_graph=True)
        if item.size.get("tied"):
            other.add_(found)

    return [table], lambda w: functional.embedding(index, w), backward


def _cross_entropy(item: Item, device: str) -> Built:
    import torch
    from torch.nn import functional

    new, (rows, cols) = _tensors(item, device), _rows_cols(item)
    target = torch.randint(cols, (rows,), device=device)
    x = new(rows, cols).requires_grad_()
    return [x], lambda logits: functional.cross_entropy(logits.float(), target), None


_VARIANTS: Mapping[str, Callable[[Item, str], Built]] = {
    "layer_norm": _norm,
    "rms_norm": _norm,
    "gelu": _activation,
    "relu": _activation,
    "squared_relu": _activation,
    "swiglu": _activation,
    "geglu": _activation,
    "residual_add": _sum_of_two,
    "bias_dropout_add": _sum_of_two,
    "add": _sum_of_two,
    "dropout": _one_input,
    "softmax": _one_input,
    "causal_softmax": _one_input,
    "rope": _one_input,
    "copy": _one_input,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "cross_entropy_fused": _cross_entropy,
}


# ---- optimizer ------------------------------------------------------------------------------


def _optimizer(item: Item, device: str) -> Make:
    import torch

    if item.variant != "adam":
        raise NotMeasurable(f"the optimizer '{item.variant}' has no kernel here")
    count = max(1, int(item.size.get("tensors", 1)))
    each = max(1, int(item.size["parameters"]) // count)

    def make() -> Call:
        # fp32 weights and moments, as in a plain step and in mixed precision with master weights
        new = _tensors(replace(item, dtype="fp32"), device)
        weights = [new(each).requires_grad_() for _ in range(count)]
        for weight in weights:
            weight.grad = new(each)
        optimizer = torch.optim.AdamW(weights, foreach=True)
        return lambda: optimizer.step()

    return make


# ---- helpers --------------------------------------------------------------------------------


def _rows_cols(item: Item) -> tuple[int, int]:
    return int(item.size["rows"]), int(item.size["cols"])


_POOL_ELEMENTS = 2**24


@cache
def _pool(device: str) -> Any:
    """Random numbers to copy from: drawing them anew for every operand takes longer than to time
    it."""
    import torch

    return torch.randn(_POOL_ELEMENTS, device=device)


def _tensors(item: Item, device: str) -> Callable[..., Any]:
    """Random normal tensors: zeros would spare a GPU its power."""
    import torch

    dtype, pool = getattr(torch, DTYPES[item.dtype]), _pool(device)

    def new(*shape: int) -> Any:
        out = torch.empty(math.prod(shape), device=device, dtype=dtype)
        for start in range(0, len(out), _POOL_ELEMENTS):
            part = out[start : start + _POOL_ELEMENTS]
            part.copy_(pool[: len(part)])
        return out.view(shape)

    return new


_MAKERS: Mapping[str, Callable[[Item, str], Make]] = {
    "gemm": _gemm,
    "attention": _attention,
    "memory": _memory,
    "optimizer": _optimizer,
}
