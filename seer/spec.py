"""What is trained, how it is split, and on what software: the nouns of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seer.cluster import Cluster


@dataclass(frozen=True)
class ModelSpec:
    """A dense decoder transformer.

    `activation` is "gelu", "relu", "squared_relu" (plain MLP of two matrices) or "swiglu",
    "geglu" (gated, three matrices). `norm` is "layer_norm" or "rms_norm"; `position` is "rope"
    or "learned". `vocab` is the padded vocabulary that the logits GEMM sees.
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
    source: str = ""

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate (three matrices)."""
        return self.activation in ("swiglu", "geglu")

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, without biases and norms (below 0.1 % of them)."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = (3 if self.gated else 2) * self.hidden * self.ffn_hidden
        return attention + mlp

    @property
    def parameters(self) -> int:
        """Weights of the model, embeddings counted once when tied."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * self.layer_parameters + embeddings


@dataclass(frozen=True)
class TrainingSpec:
    """One step: `global_batch` sequences of `sequence_length`, `micro_batch` at a time.

    `precision` is "bf16" or "fp16"; `recompute` is "none", "selective" (core attention only, as
    Megatron's `--recompute-activations`) or "full"; `optimizer` is "adam".
    """

    sequence_length: int
    global_batch: int
    micro_batch: int
    precision: str = "bf16"
    recompute: str = "none"
    optimizer: str = "adam"


@dataclass(frozen=True)
class ParallelismSpec:
    """How the job is split. `dp` follows from the number of GPUs.

    `schedule` is "gpipe", "1f1b" or "interleaved"; `zero` is 0 (all-reduce of gradients) or 1
    (distributed optimizer: reduce-scatter, then all-gather of parameters). `layers_per_stage`
    gives the layers of each virtual stage in pipeline order (pp * vpp numbers), or is empty for
    an even split. Names and order of the dimensions are Megatron's: ranks run over tp first,
    then dp, then pp.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    layers_per_stage: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True)
class FrameworkSpec:
    """What a software stack does differently, as data with a source (`templates/frameworks/`).

    Attributes
    ----------
    parameters : mapping of str to number
        Switches and byte counts that the layer template reads by name (`fused_attention`, ...).
    variants : mapping of str to str
        Implementation of a memory-bound operator or attention: template name -> curve name.
    recompute : str
        The default when a job does not say.
    p2p : str
        "blocking" (a transfer blocks the sender's compute stream), "overlap" (it does not).
    scatter_gather : bool
        Pipeline messages are cut by tp, then gathered inside the node (Megatron's
        scatter/gather); with sequence parallelism they are cut anyway.
    tp_overlap : str
        "none"; "dgrad" (the input-gradient collective runs beside the weight-gradient GEMM:
        Megatron's async all-reduce); "pipelined" (also, collectives and their GEMM are cut into tp
        chunks that overlap: Transformer Engine user buffers).
    dp_overlap, param_gather_overlap : bool
        Bucketed gradients are reduced during the last backward; parameters are gathered during
        the first forward.
    bucket_parameters, bucket_parameters_per_dp : int
        Parameters per gradient bucket: the larger of the first and of dp times the second;
        0 = one bucket.
    grad_bytes, param_bytes, optimizer_bytes : mapping of precision to bytes per parameter
        Held in memory.
    grad_reduce_bytes : mapping of precision to bytes per parameter on the wire
    grad_accumulate_bytes : mapping of precision to float
        Memory traffic per parameter and micro-batch of a gradient accumulation that is its own
        kernel (0 = the weight-gradient GEMM accumulates).
    optimizer_traffic_bytes : float
        Memory traffic of the optimizer step per local parameter.
    step_overhead_s : float
        Fixed time per step on the host (0 when nothing is known).
    source : str
    software : tuple of str
        How published runs name this stack (the text, or its beginning).
    """

    name: str
    source: str
    software: tuple[str, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    recompute: str = "none"
    p2p: str = "blocking"
    scatter_gather: bool = False
    tp_overlap: str = "none"
    dp_overlap: bool = False
    param_gather_overlap: bool = False
    bucket_parameters: int = 0
    bucket_parameters_per_dp: int = 0
    param_bytes: Mapping[str, float] = field(default_factory=dict)
    grad_bytes: Mapping[str, float] = field(default_factory=dict)
    optimizer_bytes: Mapping[str, float] = field(default_factory=dict)
    grad_reduce_bytes: Mapping[str, float] = field(default_factory=dict)
    grad_accumulate_bytes: Mapping[str, float] = field(default_factory=dict)
    optimizer_traffic_bytes: float = 0.0
    step_overhead_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """Everything that `seer forecast` needs, resolved: no names left to look up."""

    name: str
    model: ModelSpec
    training: TrainingSpec
    parallelism: ParallelismSpec
    cluster: Cluster
    framework: FrameworkSpec
    calibration: str
    layer_template: str = "transformer"
    notes: tuple[str, ...] = ()
    """What was chosen for the user (a default preset, a parallelism), to be shown in the output."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.parallelism.gpus

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step and data-parallel replica."""
        return self.training.global_batch // (self.training.micro_batch * self.parallelism.dp)
