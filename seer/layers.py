"""The kinds of layer that a model is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): ranks and head sizes."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class LayerKind:
    """What distinguishes a layer from its neighbours."""

    moe: bool = False
    window: int = 0
    """Sliding attention window in tokens; 0 = full."""
