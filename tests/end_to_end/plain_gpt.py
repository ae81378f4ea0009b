"""A plain GPT in eager PyTorch, and its training step timed: what the CPU proof forecasts.

Pre-norm, GELU, learned positions, tied embeddings, no biases, cross entropy, AdamW: the operators
of the layer template `transformer` with the framework preset `pytorch-ddp`.
"""

from __future__ import annotations

import contextlib
import glob
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """One training step; `batch` is per rank."""

    name: str
    layers: int = 3
    hidden: int = 384
    sequence: int = 256
    batch: int = 3
    vocab: int = 2048
    head_dim: int = 64
    ranks: int = 1

    @property
    def heads(self) -> int:
        return self.hidden // self.head_dim

    def job(self, cluster: dict[str, Any]) -> dict[str, Any]:
        """The job spec that Seer reads."""
        return {
            "name": self.name,
            "model": {
                "name": self.name,
                "layers": self.layers,
                "hidden": self.hidden,
                "heads": self.heads,
                "ffn_hidden": 4 * self.hidden,
                "vocab": self.vocab,
                "max_positions": self.sequence,
            },
            "cluster": cluster,
            "gpus": self.ranks,
            "framework": "pytorch-ddp",
            "training": {
                "sequence_length": self.sequence,
                "global_batch": self.batch * self.ranks,
                "micro_batch": self.batch,
                "precision": "fp32",
            },
            "parallelism": {"dp": self.ranks},
        }


class Block(nn.Module):
    """One layer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.norm2 = nn.LayerNorm(hidden, bias=False)
        self.fc1 = nn.Linear(hidden, 4 * hidden, bias=False)
        self.fc2 = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        parts = self.qkv(self.norm1(x)).split(hidden, dim=2)
        q, k, v = (p.view(batch, sequence, self.heads, -1).transpose(1, 2) for p in parts)
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(context.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class GPT(nn.Module):
    """The whole model; returns the loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab, config.hidden)
        self.places = nn.Embedding(config.sequence, config.hidden)
        self.blocks = nn.ModuleList(
            Block(config.hidden, config.heads) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.hidden, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.words.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


_READY: dict[Config, Any] = {}


def _step_of(config: Config) -> Any:
    """A function that runs one step; made once per process and configuration."""
    if config not in _READY:
        torch.manual_seed(0)
        model: nn.Module = GPT(config)
        if config.ranks > 1:
            model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        shape = (config.batch, config.sequence)
        tokens, targets = (torch.randint(config.vocab, shape) for _ in range(2))

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            model(tokens, targets).backward()
            optimizer.step()

        for _ in range(3):  # DDP rebuilds its buckets after the first step
            step()
        _READY[config] = step
    return _READY[config]


def timed_steps(config: Config, count: int) -> list[tuple[float, float, float]]:
    """(wall, busy, waited) seconds of `count` steps in this process; one more goes before, untimed.

    `waited` is how long threads of this process were ready to run and had no core.
    """
    step = _step_of(config)
    step()
    found = []
    for _ in range(count):
        wall, busy, waited = time.perf_counter(), time.process_time(), _waited_s()
        step()
        ends = time.perf_counter(), time.process_time(), _waited_s()
        found.append((ends[0] - wall, ends[1] - busy, ends[2] - waited))
    return found


def _waited_s() -> float:
    """Run-queue delay of all threads so far (Linux); 0 where it is not told."""
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError), open(path) as file:
            total += int(file.read().split()[1])
    return total * 1e-9
