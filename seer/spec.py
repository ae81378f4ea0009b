"""What is trained, how it is split, and on what software: the nouns of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seer.cluster import Cluster
from seer.model import ModelSpec
from seer.placement import PACKED, Placement


@dataclass(frozen=True)
class TrainingSpec:
    """One step: `global_batch` sequences of `sequence_length`, `micro_batch` at a time.

    Attributes
    ----------
    precision : str
        "bf16", "fp16", "fp32"; "fp8" (per tensor), "fp8-block", "mxfp8", "nvfp4": GEMMs of the
        layers in that type, the rest in bf16.
    recompute : str
        "none", "selective" (core attention, Megatron's `--recompute-activations`) or "full".
    recompute_modules : tuple of str
        With "selective": modules as Megatron names them ("core_attn", "mlp", "moe", "moe_act",
        "layernorm", "mla_up_proj", "shared_experts"); empty = core_attn.
    offload : tuple of str
        "optimizer", "activations", "parameters" (with zero 3): held in host memory.
    offload_fraction : float
        With "optimizer": share of the parameters that the host updates.
    offload_overlap : bool
        With "optimizer": copies out, updates on the host and copies back overlap, in pieces.
    offload_layers : int
        With "activations": of this many leading layers of each model chunk; 0 = of all.
    offload_modules : tuple of str
        With "activations": only inputs of these parts of a layer, as Megatron names them; () = all.
    routing_imbalance : float
        Largest load of an expert-parallel rank over the mean (1 = balanced).
    expert_loads : tuple of float
        Tokens of each expert in any unit, instead of `routing_imbalance`: experts are held by the
        ranks in order, and the fullest rank counts.
    lora_rank : int
        Rank of LoRA adapters on the layers' dense GEMMs, whose weights are then frozen; 0 = all
        weights are trained.
    optimizer : str
    """

    sequence_length: int
    global_batch: int
    micro_batch: int
    precision: str = "bf16"
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    offload_fraction: float = 1.0
    offload_overlap: bool = False
    offload_layers: int = 0
    offload_modules: tuple[str, ...] = ()
    routing_imbalance: float = 1.0
    expert_loads: tuple[float, ...] = ()
    lora_rank: int = 0
    optimizer: str = "adam"

    @property
    def storage(self) -> str:
        """The 16- or 32-bit type of activations and weights beside 8- and 4-bit GEMMs."""
        return self.precision if self.precision in ("fp16", "fp32") else "bf16"


@dataclass(frozen=True)
class ParallelismSpec:
    """How the job is split. `dp` follows from the number of GPUs.

    Names and order of the dimensions are Megatron's: ranks run over tp first, then cp, then dp,
    then pp. Experts are spread over the same tp x cp x dp ranks of a stage: etp first, then ep, the
    rest replicates them.

    Attributes
    ----------
    tp, cp, pp, vpp, dp, ep : int
    etp : int
        Tensor parallelism inside an expert; 0 = the same as tp (Megatron's default).
    cp_comm : str
        "p2p" (ring), "all_gather", "a2a" (Ulysses).
    zero : int
        0 all-reduce of gradients; 1 distributed optimizer (reduce-scatter, all-gather); 2 gradients
        sharded too; 3 parameters too (FSDP): gathered and reduced by layer in every micro-batch
        (but see `Job.reduces_once`).
    shard_group : int
        Ranks that parameters are sharded over with zero 3; 0 = all of dp x cp, less = HSDP.
    reshard_after_forward : bool
        With zero 3, whether backward gathers the parameters again.
    schedule : str
        "gpipe", "1f1b", "interleaved", ...
    dispatcher : str
        How tokens reach their experts: "alltoall" (every copy sent by an all-to-all), "deepep"
        or "hybridep" (kernels that send a token once to each rank: DeepSeek's DeepEP, NVIDIA's
        HybridEP); "" = the preset's choice.
    flush_every : int
        Micro-batches after which the pipeline drains; 0 = at the end of the step alone.
    layers_per_stage : tuple of int
        Layers of each virtual stage in pipeline order (pp * vpp numbers); empty = an even split.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    zero: int = 0
    sequence_parallel: bool = False
    cp_comm: str = "p2p"
    shard_group: int = 0
    reshard_after_forward: bool = True
    schedule: str = "1f1b"
    dispatcher: str = ""
    flush_every: int = 0
    layers_per_stage: tuple[int, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions that a placement orders."""
        return {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def gpus(self) -> int:
        """Ranks of the job."""
        return self.stage_ranks * self.pp

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism inside an expert."""
        return self.etp or self.tp

    @property
    def expert_dp(self) -> int:
        """Replicas of each expert inside a stage."""
        return self.stage_ranks // (self.expert_tp * self.ep)


WHOLE_ITERATION = "full_iteration"
"""The scope of CUDA graphs that leaves the host one launch in a step."""


@dataclass(frozen=True)
class FrameworkSpec:
    """What a software stack does differently, as data with a source (`templates/frameworks/`).

    Attributes
    ----------
    parameters : mapping of str to number
        Switches and byte counts that the layer template reads by name (`fused_attention`, ...).
    variants : mapping of str to str
        Implementation of a memory-bound operator or attention: template name -> curve name.
    recompute, recompute_modules : str, tuple of str
        The default when a job does not say.
    p2p : str
        "blocking" (a transfer blocks the sender's compute stream), "in_turn" (it does, and a stage
        sends and receives one after another), "overlap" (it does not).
    transfer_overhead_s : float
        What a transfer between stages takes beyond its bytes: the host prepares it, and waits for
        the device where it blocks (0 when nothing is known).
    scatter_gather : bool
        Pipeline messages are cut by tp, then gathered inside the node (Megatron's scatter/gather);
        with sequence parallelism they are cut anyway.
    tp_overlap : str
        "none"; "dgrad" (the input-gradient collective runs beside the weight-gradient GEMM:
        Megatron's async all-reduce); "pipelined" (also, collectives and their GEMM are cut into tp
        chunks that overlap: Transformer Engine user buffers); "fused" (only those chunks: the async
        tensor parallelism of torch.compile).
    overlap_multiprocessors : mapping of recipe to (mapping of GEMM and pass to int)
        With "pipelined", how many multiprocessors the collective beside a GEMM holds ("qkv_dgrad",
        "qkv_wgrad", "fc1_dgrad", "fc1_wgrad", "proj_forward", "fc2_forward"). A recipe is named
        "hidden x tp" ("8192x4", quantised "8192x4-fp8"); "default" answers for all others.
    shard_buffers : bool
        With sharded parameters, collectives have buffers of their own, parameter by parameter:
        gathered parameters are copied out and gradients in, in every micro-batch (FSDP2).
    dp_overlap, param_gather_overlap : bool
        Gradient buckets are reduced in the last backward; parameters gathered in the first forward.
    bucket_parameters, bucket_parameters_per_dp : int
        Parameters per gradient bucket: the larger of the first and of dp times the second;
        0 = one bucket.
    backward_prefetch : str
        When FSDP issues the gather of the next block in backward: "pre" (before this block's
        gradients, beside which it then runs) or "post" (behind their reduction, for which it then
        waits: PyTorch's BackwardPrefetch).
    dispatchers : mapping of NVLink-domain size to dispatcher
        The entry of the largest size up to the domain of the cluster holds; none = "deepep".
    ep_overlap : str
        "never"; "between_nodes" (dispatch and combine run beside the other pass of another
        micro-batch where experts are spread over nodes: the schedule is then combined-1f1b).
    grad_bytes, param_bytes, optimizer_bytes : mapping of precision to bytes per parameter
        Held in memory.
    grad_reduce_bytes : mapping of precision to bytes per parameter on the wire
    grad_accumulate_bytes : mapping of precision to float
        Memory traffic per parameter and micro-batch of a gradient accumulation that is its own
        kernel (0 = the weight-gradient GEMM accumulates).
    optimizer_traffic_bytes : float
        Memory traffic of the optimizer step per local parameter.
    offload_gradient_bytes, offload_parameter_bytes : mapping of precision to bytes per parameter
        Over the host link, out and back; empty = a gradient as held, a parameter as computed with.
    offload_with_reduction : bool
        Gradients leave for the host bucket by bucket, as they are reduced.
    step_overhead_s : float
        Fixed time per step on the host (0 when nothing is known).
    host_calls : mapping of operator to (mapping of call to formula)
        What the host thread does to launch an operator: how many calls of each kind that
        `Processor.calls_s` times. An operator is named with its pass ("expert fc1 forward"),
        without it, or as the kind that it is ("gemm wgrad", "gemm"); the first that is there
        answers, and "graph" says what launches a captured scope.
        Formulas read what a layer template may name. Empty = nobody has counted.
    host_waits : mapping of operator to formula
        The host launches its forward only when the compute operator so many places before it has
        ended (a count of tokens that is copied to the host).
    host_waits_for_transfers : bool
        Without virtual stages the host waits for the device after every transfer of the pipeline.
    graph_scopes : mapping of scope to operators
        What each scope of CUDA graphs holds, from the first operator of its forward to the last.
    cuda_graphs : tuple of str
        Scopes that are launched as one graph each; "full_iteration" leaves nothing to launch.
    host_issue : str
        "calls" (as counted above), "off" (operators launch themselves), or the time that the host
        takes for each operator ("12 us").
    post_validated : tuple of str
        Schedules under which no stage waits for the others before its optimizer (Qi et al. 2024,
        section 4: updates are validated afterwards): a stage begins the next step while others
        still finish this one.
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
    recompute_modules: tuple[str, ...] = ()
    p2p: str = "blocking"
    transfer_overhead_s: float = 0.0
    scatter_gather: bool = False
    tp_overlap: str = "none"
    overlap_multiprocessors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    shard_buffers: bool = False
    dp_overlap: bool = False
    param_gather_overlap: bool = False
    backward_prefetch: str = "pre"
    dispatchers: Mapping[str, str] = field(default_factory=dict)
    ep_overlap: str = "never"
    bucket_parameters: int = 0
    bucket_parameters_per_dp: int = 0
    param_bytes: Mapping[str, float] = field(default_factory=dict)
    grad_bytes: Mapping[str, float] = field(default_factory=dict)
    optimizer_bytes: Mapping[str, float] = field(default_factory=dict)
    grad_reduce_bytes: Mapping[str, float] = field(default_factory=dict)
    grad_accumulate_bytes: Mapping[str, float] = field(default_factory=dict)
    optimizer_traffic_bytes: float = 0.0
    offload_gradient_bytes: Mapping[str, float] = field(default_factory=dict)
    offload_parameter_bytes: Mapping[str, float] = field(default_factory=dict)
    offload_with_reduction: bool = False
    step_overhead_s: float = 0.0
    host_calls: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    host_waits: Mapping[str, str] = field(default_factory=dict)
    host_waits_for_transfers: bool = False
    graph_scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cuda_graphs: tuple[str, ...] = ()
    host_issue: str = "calls"
    post_validated: tuple[str, ...] = ()


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
    placement: Placement = PACKED
    notes: tuple[str, ...] = ()
    """What was chosen for the user (a preset, a parallelism), to be shown in the output."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.parallelism.gpus

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step and data-parallel replica."""
        return self.training.global_batch // (self.training.micro_batch * self.parallelism.dp)

    @property
    def stages_wait(self) -> bool:
        """Whether all stages wait for each other between two steps, as for a global norm."""
        return self.parallelism.schedule not in self.framework.post_validated

    @property
    def transfers_block(self) -> bool:
        """Whether the sender's next pass waits for a transfer.

        The runtime of schedules that are validated afterwards posts transfers and waits where they
        are used (sail-sg/zero-bubble-pipeline-parallelism, zb_schedules.py: handles of
        batch_isend_irecv).
        """
        return self.framework.p2p != "overlap" and self.stages_wait

    @property
    def reduces_once(self) -> bool:
        """Whether FSDP reduces gradients once a step, behind the last backward of a stage.

        So does FSDP2 (`shard_buffers`) under a pipeline: micro-batches add up unsharded gradients,
        and the collectives are called by hand after the last one
        (torch/distributed/pipelining/stage.py, `backward_maybe_with_nosync`). Shards in host memory
        are played as fetched and returned in every micro-batch.
        """
        plan, in_host = self.parallelism, "parameters" in self.training.offload
        return plan.zero >= 3 and plan.pp > 1 and self.framework.shard_buffers and not in_host

    @property
    def gathers_once(self) -> bool:
        """Whether FSDP gathers parameters once a step: under a pipeline, unless it reshards."""
        return self.reduces_once and not self.parallelism.reshard_after_forward
