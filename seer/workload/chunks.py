"""Model chunks: which layers, which pass, what is kept and what is run again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from seer.graph import FROM_HOST, TO_HOST, DType, OperatorKind, Pass
from seer.graph.template import LayerTemplate
from seer.layers import LayerKind
from seer.spec import Job
from seer.workload.launches import Launches
from seer.workload.memory import dense_and_expert, embedding_parameters, parameter_bytes, shards
from seer.workload.offload import away_bytes, gradient_bytes, link_row, on_host, runs_of, spans
from seer.workload.passes import GroupColumns, Operators, PassWriter, active_operators
from seer.workload.program import Program, Rows
from seer.workload.recompute import kept_by_operator
from seer.workload.scales import scales_of, write_scales
from seer.workload.schedules import Slot
from seer.workload.segments import Part, Segment, write_segment
from seer.workload.values import scale_history, template_values

_NAMES = {
    Slot.forward: "forward",
    Slot.backward: "backward",
    Slot.input_grad: "input gradient",
    Slot.weight_grad: "weight gradient",
}


class ChunkWriter:
    """Writes forward and backward segments of model chunks for one job."""

    def __init__(self, job: Job, template: LayerTemplate, rows: Rows, groups: GroupColumns) -> None:
        self._job, self._rows, self._template = job, rows, template
        self._given = template_values(job)
        self._values = template.values(self._given)
        self._launches = Launches(job, self._values)
        self._writer = PassWriter(job, rows, groups, self._launches)
        self._recompute = job.training.recompute
        modules = job.training.recompute_modules or ("core_attn",)
        self._again = modules if self._recompute == "selective" else ()
        self._layers: dict[LayerKind, Operators] = {}
        self._sections: dict[str, Operators] = {}
        self._programs: dict[Hashable, Program] = {}
        self._kept: dict[LayerKind, float] = {}

    def write(self, slot: Slot, kinds: Sequence[LayerKind], first: bool, last: bool) -> Segment:
        """One pass of a chunk without its bytes; `first` has the embedding, `last` the head."""
        extras = [n for n, present in (("embedding", first), ("head", last)) if present]
        count = f"{len(kinds)} layer{'' if len(kinds) == 1 else 's'}"
        name = ", ".join([f"{_NAMES[slot]} of {count}", *extras])
        if slot == Slot.forward:
            parts = [self._arrival(first), *self._forward_parts(kinds, first, last)]
            return write_segment(name, self._rows, parts + self._scales(kinds, Pass.forward))
        if slot == Slot.weight_grad:
            return write_segment(name, self._rows, self._weight_parts(kinds))
        written = self._backward_parts(kinds, first, last, weights=slot == Slot.backward)
        parts = [self._arrival(last), *written, *self._scales(kinds, Pass.backward)]
        prefetch = self._job.framework.backward_prefetch == "pre"
        return write_segment(name, self._rows, parts, prefetch)

    def held_bytes(
        self, slot: Slot, kinds: Sequence[LayerKind], first: bool, last: bool
    ) -> tuple[float, float]:
        """Activations that become live with the start of a pass, and that die with its end."""
        saved = self.saved_bytes(kinds, first, last)
        if slot == Slot.forward:
            return saved, 0.0
        inputs = sum(run * self.layer(kind).weight_input_bytes for kind, run in runs_of(kinds))
        held = min(saved, inputs)
        if slot == Slot.weight_grad:
            return 0.0, held
        working = self._working_bytes(kinds)
        return working, saved + working - (0.0 if slot == Slot.backward else held)

    def layer(self, kind: LayerKind) -> Operators:
        """The operators of one kind of layer."""
        if kind not in self._layers:
            given = {**self._given, "window": kind.window}
            values = self._template.values(given)
            attention = "latent_attention" if self._job.model.mla else "attention"
            names = (attention, "moe" if kind.moe else "mlp")
            sections = [active_operators(self._template.sections[n], values) for n in names]
            self._layers[kind] = Operators(tuple(i for s in sections for i in s.items))
        return self._layers[kind]

    def section(self, name: str) -> Operators:
        """The operators of a section outside the layers."""
        if name not in self._sections:
            self._sections[name] = active_operators(self._template.sections[name], self._values)
        return self._sections[name]

    def _once(
        self, passes: str, kind: LayerKind, write: Callable[[Program, LayerKind], None]
    ) -> Program:
        """The program of one pass of a kind of layer, written at first use."""
        return self._written((passes, kind), lambda program: write(program, kind))

    def _over_link(
        self, passes: str, kind: LayerKind, away: bool, write: Callable[..., None]
    ) -> Program:
        """`_once`, for a pass of layers whose activations go to the host, or stay."""
        return self._written((passes, kind, away), lambda program: write(program, kind, away))

    def _written(self, key: Hashable, write: Callable[[Program], None]) -> Program:
        if key not in self._programs:
            program = Program()
            write(program)
            self._programs[key] = program
        return self._programs[key]

    def _forward(self, program: Program, kind: LayerKind, away: bool = False) -> None:
        self._gather(program, self._layer_weights(kind))
        copies = self._copies(kind, TO_HOST) if away else {}
        self._writer.forward(program, self.layer(kind), away=copies)

    def _weights(self, program: Program, kind: LayerKind) -> None:
        self._writer.weight_gradients(program, self.layer(kind))
        self._accumulate(program, kind)
        self._reduce(program, self._layer_weights(kind))

    def _input_gradients(self, program: Program, kind: LayerKind, away: bool = False) -> None:
        self._backward(program, kind, away, weights=False)

    def _backward(
        self, program: Program, kind: LayerKind, away: bool = False, weights: bool = True
    ) -> None:
        if self._job.parallelism.reshard_after_forward:
            self._gather(program, self._layer_weights(kind))
        operators = self.layer(kind)
        copies = self._copies(kind, FROM_HOST) if away else {}
        if self._recompute == "full":
            for row in copies.values():
                program.wait_for(program.copy_in(row))
            copies = {}
            self._writer.forward(program, operators)
        self._writer.backward(program, operators, self._again, weights=weights, away=copies)
        if weights:
            self._accumulate(program, kind)
            self._reduce(program, self._layer_weights(kind))

    def _forward_parts(self, kinds: Sequence[LayerKind], first: bool, last: bool) -> list[Part]:
        parts = [self._outside("embedding", backward=False)] if first else []
        number = 0
        for kind, away, run in spans(self._job, kinds):
            program = self._over_link("forward", kind, away, self._forward)
            parts.append(Part(program, run, number))
            number += run
        if last:
            parts += self._predictions(backward=False)
            parts.append(self._outside("head", backward=False, beside_embedding=first))
        return parts

    def _weight_parts(self, kinds: Sequence[LayerKind]) -> list[Part]:
        """Weight gradients that were put off; the head's stay with its input gradient."""
        parts: list[Part] = []
        number = len(kinds)
        for kind, run in reversed(runs_of(kinds)):
            parts.append(Part(self._once("weights", kind, self._weights), run, number - 1, -1))
            number -= run
        return parts

    def _backward_parts(
        self, kinds: Sequence[LayerKind], first: bool, last: bool, weights: bool
    ) -> list[Part]:
        parts = [self._outside("head", backward=True, beside_embedding=first)] if last else []
        parts += self._predictions(backward=True) if last else []
        number = len(kinds)
        name = "backward" if weights else "input"
        write = self._backward if weights else self._input_gradients
        for kind, away, run in reversed(spans(self._job, kinds)):
            program = self._over_link(name, kind, away, write)
            parts.append(Part(program, run, number - 1, -1))
            number -= run
        parts += [self._outside("embedding", backward=True)] if first else []
        return parts

    def _outside(self, name: str, backward: bool, beside_embedding: bool = False) -> Part:
        """Embedding or head. Tied, a head beside the embedding has no weights of its own."""
        model = self._job.model
        of_embedding, of_head = embedding_parameters(model)
        if beside_embedding and model.tied_embeddings:
            of_head = 0
        count = of_embedding if name == "embedding" else of_head
        weights = (count / self._job.parallelism.tp, 0.0)

        def write(program: Program) -> None:
            operators = self.section(name)
            if backward:
                self._writer.backward(program, operators)
                self._reduce(program, weights)
            else:
                self._gather(program, weights)
                self._writer.forward(program, operators)

        return Part(self._written((name, backward, count), write))

    def _predictions(self, backward: bool) -> list[Part]:
        """Multi-token prediction: a projection, a layer of the last kind and a head each."""
        model, parallelism = self._job.model, self._job.parallelism
        kind = model.layer_kind(model.layers - 1)
        dense, expert = self._layer_weights(kind)
        weights = (dense + 2 * model.hidden**2 / parallelism.tp, expert)

        def write(program: Program) -> None:
            if not backward or parallelism.reshard_after_forward:
                self._gather(program, weights)
            layer, head = self._prediction(kind), self.section("head")
            if backward:
                self._writer.backward(program, head)
                if self._recompute == "full":
                    self._writer.forward(program, layer)
                self._writer.backward(program, layer, self._again)
                self._reduce(program, weights)
            else:
                self._writer.forward(program, layer)
                self._writer.forward(program, head)

        count = model.mtp_layers
        return [Part(self._written(("prediction", backward), write)) for _ in range(count)]

    def _prediction(self, kind: LayerKind) -> Operators:
        """What comes before the head in a multi-token prediction."""
        return Operators((*self.section("prediction").items, *self.layer(kind).items))

    def saved_bytes(self, kinds: Sequence[LayerKind], first: bool, last: bool) -> float:
        """Activations that the forward of a chunk keeps for its backward."""
        saved = 0.0
        for kind, away, run in spans(self._job, kinds):
            gone = sum(self._away(kind).values()) if away else 0.0  # in host memory until backward
            saved += run * (self._kept_of(kind) - gone)
        extras = [n for n, present in (("embedding", first), ("head", last)) if present]
        saved += sum(self.section(n).saved_bytes for n in extras)
        model = self._job.model
        if last and model.mtp_layers:
            prediction = self._prediction(model.layer_kind(model.layers - 1))
            each = self._kept_bytes(prediction) + self.section("head").saved_bytes
            saved += model.mtp_layers * each
        return saved

    def _kept_of(self, kind: LayerKind) -> float:
        """`_kept_bytes` of a kind, reckoned at first use."""
        if kind not in self._kept:
            self._kept[kind] = self._kept_bytes(self.layer(kind))
        return self._kept[kind]

    def _kept_by_operator(self, layer: Operators) -> list[float]:
        """Bytes that the backward of each operator finds kept, without full recomputation."""
        element_bytes = DType[self._job.training.storage].size_bytes
        return kept_by_operator(layer.items, self._again, element_bytes)

    def _kept_bytes(self, layer: Operators) -> float:
        if self._recompute != "full":
            return sum(self._kept_by_operator(layer))
        split = self._job.parallelism.tp if self._job.parallelism.sequence_parallel else 1
        return self._values["full_message"] / split  # the input, whole on every tp rank

    def _away(self, kind: LayerKind) -> dict[int, float]:
        """Bytes that a layer of this kind keeps on the host, by operator."""
        layer = self.layer(kind)
        if self._recompute == "full":
            return {0: self._kept_of(kind)}
        return away_bytes(self._job, layer.items, self._kept_by_operator(layer))

    def _copies(self, kind: LayerKind, group: str) -> dict[int, int]:
        """Work rows of the copies of a layer's activations over the host link, by operator."""
        if self._job.cluster.host_link is None:
            return {}
        items, way = self.layer(kind).items, "to host" if group == TO_HOST else "from host"
        return {
            at: self._rows.id_of(link_row(self._job, f"{items[at][0].name} {way}", group, size))
            for at, size in self._away(kind).items()
        }

    def _working_bytes(self, kinds: Sequence[LayerKind]) -> float:
        """What a backward holds beside what was saved: a recomputed layer, gathered weights."""
        distinct = set(kinds)
        rerun = max((self._rerun_bytes(self.layer(k)) for k in distinct), default=0.0)
        if self._job.parallelism.zero < 3 or self._job.gathers_once:
            return rerun
        weights = max((sum(self._layer_weights(k)) for k in distinct), default=0.0)
        return rerun + 2 * parameter_bytes(self._job) * weights  # and those of the prefetched one

    def _rerun_bytes(self, layer: Operators) -> float:
        kept = 0.0 if self._recompute == "full" else sum(self._kept_by_operator(layer))
        return layer.saved_bytes - kept

    def _layer_weights(self, kind: LayerKind) -> tuple[float, float]:
        return dense_and_expert(self._job, kind)

    def _gather(self, program: Program, weights: tuple[float, float]) -> None:
        """Gather a layer's sharded parameters (ZeRO-3)."""
        if self._job.parallelism.zero < 3 or self._job.gathers_once:
            return
        each, gathered = parameter_bytes(self._job), 0.0
        over = shards(self._job, 3)
        for group, count, ranks in zip(("shard", "edp"), weights, over, strict=True):
            copy = self._shard_from_host(program, count / ranks)
            row = self._sharded_row(OperatorKind.all_gather, group, count * each)
            if row >= 0:
                program.gather(row, group, behind=copy)
                gathered += count
            elif copy >= 0:
                program.wait_for(copy)
        if self._job.framework.shard_buffers and gathered:
            moved = 2 * gathered * each
            program.compute(self._memory_row("parameter copy-out", "copy", gathered, moved))

    def _shard_from_host(self, program: Program, parameters: float) -> int:
        """Copy a shard of parameters that the host holds, as it holds it; -1 = it does not."""
        job = self._job
        away = "parameters" in job.training.offload and job.cluster.host_link is not None
        if not away or not parameters:
            return -1
        held = job.framework.param_bytes[job.training.storage]
        row = link_row(job, "parameters from host", FROM_HOST, parameters * held)
        return program.copy_in(self._rows.id_of(row))

    def _reduce(self, program: Program, weights: tuple[float, float]) -> None:
        """Reduce a layer's gradients in every micro-batch (ZeRO-2 and 3)."""
        plan = self._job.parallelism
        if plan.zero < 2 or self._job.reduces_once or self._job.training.lora_rank:
            return  # adapters are small: their gradients are reduced at the end of the step
        each = self._job.framework.grad_reduce_bytes[self._job.training.storage]
        for group, count in zip(("shard", "edp"), weights, strict=True):
            row = self._sharded_row(OperatorKind.reduce_scatter, group, count * each)
            if row >= 0:
                program.reduce(row, group)
        shard = self._job.parallelism.shard_group
        row = -1
        if shard:  # HSDP: then all-reduce the shard over its copies
            message = weights[0] * each / shard
            row = self._sharded_row(OperatorKind.all_reduce, "replicate", message)
        if row >= 0:
            program.reduce(row, "replicate")
        self._gradients_away(program, weights)

    def _gradients_away(self, program: Program, weights: tuple[float, float]) -> None:
        """Copy the reduced shard of a layer's gradients to the host that updates it."""
        share = on_host(self._job)
        if not share or self._job.cluster.host_link is None:
            return
        over_dense, over_expert = shards(self._job, 2)
        local = weights[0] / over_dense + weights[1] / over_expert
        moved = share * local * gradient_bytes(self._job)
        if moved > 0:
            row = link_row(self._job, "gradients to host", TO_HOST, moved)
            program.copy_reduced(self._rows.id_of(row))

    def _sharded_row(self, kind: OperatorKind, group: str, message_bytes: float) -> int:
        if message_bytes <= 0 or self._writer.group_size(group) < 2:
            return -1
        noun = "parameter" if kind == OperatorKind.all_gather else "gradient"
        name = f"{noun} {kind.name.replace('_', '-')}"
        return self._writer.collective(name, kind, group, message_bytes)

    def _arrival(self, at_the_end: bool) -> Part:
        """What a stage does with a message that came in pieces (Megatron's scatter/gather)."""
        parallelism = self._job.parallelism
        cut = self._job.framework.scatter_gather and not parallelism.sequence_parallel

        def write(program: Program) -> None:
            if cut and not at_the_end and parallelism.pp > 1 and parallelism.tp > 1:
                message = self._values["full_message"]
                name, kind = "pipeline all-gather", OperatorKind.all_gather
                program.communicate(self._writer.collective(name, kind, "tp", message), "tp")

        return Part(self._written(("arrival", at_the_end), write))

    def _scales(self, kinds: Sequence[LayerKind], passes: Pass) -> list[Part]:
        layers = [(self.layer(kind), run) for kind, run in runs_of(kinds)]
        count = scales_of(self._job, layers, passes)

        def write(program: Program) -> None:
            write_scales(program, self._writer, self._memory_row, count, scale_history(self._job))

        return [Part(self._written(("scales", count), write))] if count else []

    def _accumulate(self, program: Program, kind: LayerKind) -> None:
        """Adding a layer's gradients up, where that is a kernel of its own.

        Buffers of sharded collectives are filled in every micro-batch, not from the second on.
        Where they are reduced once, every micro-batch reads and adds to a gradient in the type of
        the reduction instead (torch/distributed/fsdp/_fully_shard/_fsdp_param.py,
        `accumulate_unsharded_grad_if_needed`).
        """
        job = self._job
        per_parameter = job.framework.grad_accumulate_bytes.get(job.training.storage, 0.0)
        if job.reduces_once:
            per_parameter += job.framework.grad_reduce_bytes[job.training.storage]
        filled = job.framework.shard_buffers and job.parallelism.zero >= 2
        if per_parameter and (job.micro_batches > 1 or filled) and not job.training.lora_rank:
            weights = sum(self._layer_weights(kind))
            variant, moved = "gradient_accumulation", weights * per_parameter
            program.compute(self._memory_row("gradient accumulation", variant, weights, moved))

    def _memory_row(self, name: str, variant: str, count: float, hbm_bytes: float) -> int:
        row = {"name": name, "kind": int(OperatorKind.memory), "variant": variant}
        row |= self._launches.columns(name, OperatorKind.memory, Pass.none)
        return self._rows.id_of(row | {"m": int(count), "n": 1, "hbm_bytes": hbm_bytes})
