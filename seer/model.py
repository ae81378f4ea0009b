"""The model that is trained: its shape, and the weights that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from seer.layers import LatentAttention, LayerKind


@dataclass(frozen=True)
class ModelSpec:
    """A decoder transformer, dense or mixture of experts.

    Attributes
    ----------
    layers, hidden, heads, kv_heads, head_dim, ffn_hidden, vocab : int
        `ffn_hidden` is that of the dense MLP; `vocab` the padded vocabulary of the logits GEMM.
    activation : str
        "gelu", "relu", "squared_relu" (plain MLP of two matrices), "swiglu", "geglu",
        "clamped_swiglu" (gated; the last limits both halves first, as gpt-oss does).
    norm, position : str
        "layer_norm" or "rms_norm"; "rope", "learned" or "none" (ALiBi: a bias of the scores).
    experts, top_k, expert_ffn_hidden, shared_ffn_hidden : int
        Routed experts of a mixture-of-experts layer, how many a token visits, the width of one,
        and the total width of the shared experts (0 = none).
    dense_layers : int
        Leading layers that keep a dense MLP in a mixture-of-experts model.
    moe_period : int
        Behind those, every `moe_period`-th layer has experts, beginning with the first.
    mla : LatentAttention or None
    window, window_period : int
        Sliding window of every `window_period`-th layer, counted from the first; 0 = no window.
    full_attention_period : int
        With a window, every n-th layer, counted from the n-th, attends to all tokens; 0 = none.
    mtp_layers : int
        Multi-token-prediction layers behind the last (DeepSeek-V3, section 2.2).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    activation: str = "gelu"
    norm: str = "layer_norm"
    position: str = "learned"
    tied_embeddings: bool = True
    max_positions: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn_hidden: int = 0
    shared_ffn_hidden: int = 0
    dense_layers: int = 0
    moe_period: int = 1
    mla: LatentAttention | None = None
    window: int = 0
    window_period: int = 1
    full_attention_period: int = 0
    mtp_layers: int = 0
    expert_bias: bool = False
    qk_norm: bool = False
    rope_concentration: float = 1.0
    source: str = ""

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate (three matrices)."""
        return self.activation in ("swiglu", "geglu", "clamped_swiglu")

    def layer_kind(self, layer: int) -> LayerKind:
        """What layer number `layer` (from 0) is."""
        every, behind = self.full_attention_period, layer - self.dense_layers
        windowed = self.window > 0 and layer % self.window_period == 0
        windowed = windowed and not (every and (layer + 1) % every == 0)
        return LayerKind(
            moe=self.experts > 0 and behind >= 0 and behind % self.moe_period == 0,
            window=self.window if windowed else 0,
        )

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """What every layer is, in order; equal kinds are one object."""
        one: dict[LayerKind, LayerKind] = {}
        kinds = (self.layer_kind(i) for i in range(self.layers))
        return tuple(one.setdefault(kind, kind) for kind in kinds)

    @cached_property
    def distinct_kinds(self) -> tuple[LayerKind, ...]:
        """What layers are there, each once, in order."""
        return tuple(dict.fromkeys(self.layer_kinds))

    @cached_property
    def layer_codes(self) -> bytes:
        """One byte for each layer, its place in `distinct_kinds`: a short key for a run of them."""
        return bytes(map(self.distinct_kinds.index, self.layer_kinds))

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention."""
        if self.mla is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mla = self.mla
        qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        query = (
            self.hidden * mla.q_lora_rank + mla.q_lora_rank * self.heads * qk
            if mla.q_lora_rank
            else self.hidden * self.heads * qk
        )
        down = self.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        up = mla.kv_lora_rank * self.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return query + down + up + self.heads * mla.v_head_dim * self.hidden

    @property
    def mlp_parameters(self) -> int:
        """Weights of one dense MLP."""
        return (3 if self.gated else 2) * self.hidden * self.ffn_hidden

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert."""
        return (3 if self.gated else 2) * self.hidden * self.expert_ffn_hidden

    @property
    def shared_parameters(self) -> int:
        """Weights of a mixture-of-experts layer outside the routed experts: shared, router."""
        shared = (3 if self.gated else 2) * self.hidden * self.shared_ffn_hidden
        return shared + self.hidden * self.experts

    def layer_parameters(self, kind: LayerKind) -> int:
        """Weights of a layer, without biases and norms (below 0.1 % of them)."""
        if not kind.moe:
            return self.attention_parameters + self.mlp_parameters
        experts = self.experts * self.expert_parameters
        return self.attention_parameters + self.shared_parameters + experts

    @property
    def parameters(self) -> int:
        """Weights of the model, embeddings counted once when tied."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        layers = sum(self.layer_parameters(self.layer_kind(i)) for i in range(self.layers))
        return layers + embeddings

    @property
    def active_parameters(self) -> int:
        """Weights a token passes, without the input embedding: what 6 N flop counts."""
        idle = (self.experts - self.top_k) * self.expert_parameters
        moe = sum(self.layer_kind(i).moe for i in range(self.layers))
        inputs = 0 if self.tied_embeddings else self.vocab * self.hidden
        return self.parameters - inputs - moe * idle
