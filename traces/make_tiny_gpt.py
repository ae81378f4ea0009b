"""Traces a tiny GPT on the CPU: `python traces/make_tiny_gpt.py FOLDER [--ranks 2]`, needs PyTorch.

Two layers of width 64, sequence 32, batch 2, fp32, AdamW; three steps. With two ranks it trains
data parallel over gloo on this machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule

WIDTH, HEADS, LAYERS, LENGTH, BATCH, WORDS = 64, 4, 2, 32, 2, 256
STEPS = 3
KEPT = (
    "schemaVersion",
    "distributedInfo",
    "deviceProperties",
    "baseTimeNanoseconds",
    "record_shapes",
    "displayTimeUnit",
)


class Layer(nn.Module):
    """Attention and a feed-forward net, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        q, k, v = (
            self.qkv(self.norms[0](x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.feed(self.norms[1](x))


class Model(nn.Module):
    """Embedding, layers, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the next word."""
        return self.head(self.layers(self.embedding(words)))


def train(rank: int, ranks: int, folder: str) -> None:
    """One rank: warm up, then trace three steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model: nn.Module = Model()
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.2)
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(WORDS, (BATCH, LENGTH))
    plan = schedule(wait=2, warmup=2, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda found: save(found, Path(folder) / f"rank{rank}.json.gz"),
    ) as run:
        for _ in range(4 + STEPS):
            optimizer.zero_grad()
            scores = model(words)
            F.cross_entropy(scores.view(-1, WORDS), words.view(-1)).backward()
            optimizer.step()
            run.step()
    if ranks > 1:
        dist.destroy_process_group()


def save(found: profile, path: Path) -> None:
    """Write a trace without what tells of this machine."""
    raw = path.with_suffix(".raw")
    found.export_chrome_trace(str(raw))
    whole = json.loads(raw.read_text())
    raw.unlink()
    kept = {key: whole[key] for key in KEPT if key in whole}
    kept["traceEvents"] = [e for e in whole["traceEvents"] if e.get("ph") == "X"]
    text = json.dumps(kept, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, mtime=0))


def main() -> None:
    """Trace as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=1)
    given = parser.parse_args()
    Path(given.folder).mkdir(parents=True, exist_ok=True)
    if given.ranks == 1:
        train(0, 1, given.folder)
    else:
        processes.spawn(train, (given.ranks, given.folder), given.ranks)


if __name__ == "__main__":
    main()
