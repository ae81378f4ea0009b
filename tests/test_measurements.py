"""Reading measurement files: the layout by its header, the good rows in, the bad ones named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from seer.errors import UnreadableError
from seer.readers import measurements as reader
from seer.readers.measurements import read_licences, read_measurements

GEMM = "dtype,m,n,k,time_us,source\nbfloat16,16,32,64,2.5,lab\nfp8,1,2,4,1,lab\n"


def write(folder: Path, text: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_gemm_file_becomes_seconds_and_normal_names(tmp_path: Path) -> None:
    (table,), skipped = read_measurements(write(tmp_path, GEMM))

    assert table.kind == "gemm"
    assert table["dtype"].tolist() == ["bf16", "fp8"]
    assert table["m"].tolist() == [16.0, 1.0]
    assert table.time_s.tolist() == pytest.approx([2.5e-6, 1e-6])
    assert table.line.tolist() == [2, 3]
    assert table.source.tolist() == ["lab", "lab"]
    assert skipped == []


def test_a_gzip_file_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "looks-like.csv"
    path.write_bytes(gzip.compress(GEMM.encode()))

    (table,), _ = read_measurements(path)

    assert len(table) == 2


def test_a_linear_layer_file_keeps_its_pass_and_bias(tmp_path: Path) -> None:
    text = "layer,train_pass,dtype,bias,m,n,k,time_us,source\nqkv,bwd,float16,True,2,3,4,5,x\n"
    (table,), _ = read_measurements(write(tmp_path, text))

    assert table["variant"].tolist() == ["linear"]
    assert table["train_pass"].tolist() == ["backward"]
    assert table["bias"].tolist() == [True]


def test_unfused_attention_is_two_batched_products_and_memory_operators(tmp_path: Path) -> None:
    text = (
        "op,train_pass,dtype,batch_heads,seq_q,seq_kv,head_dim,time_us,source\n"
        "qk_baddbmm,fwd,fp16,8,100,200,64,5,x\n"
        "pv_bmm,bwd,fp16,8,100,200,64,5,x\n"
        "softmax,fwd,fp16,8,100,200,,5,x\n"
    )
    tables, _ = read_measurements(write(tmp_path, text))
    shapes = {
        t["variant"][0]: [float(t[c][0]) for c in ("m", "n", "k", "batch")]
        for t in tables
        if t.kind == "gemm"
    }
    (softmax,) = [t for t in tables if t.kind == "memory"]

    assert shapes == {"qk_bmm": [100, 200, 64, 8], "pv_bmm": [100, 64, 200, 8]}
    assert softmax["rows"].tolist() == [800.0]
    assert softmax["cols"].tolist() == [200.0]
    assert softmax["hbm_bytes"].tolist() == [800 * 200 * 2 * 2.0]  # read and write two bytes


def test_an_eager_norm_is_another_variant_than_a_fused_one(tmp_path: Path) -> None:
    text = (
        "op,impl,train_pass,dtype,rows,cols,bytes_moved,time_us,source\n"
        "rms_norm,torch_eager_unfused,fwd,fp16,8,16,512,5,x\n"
        "rms_norm,kernel,fwd,fp16,8,16,512,5,x\n"
    )
    (table,), _ = read_measurements(write(tmp_path, text))

    assert table["variant"].tolist() == ["rms_norm_eager", "rms_norm"]


def test_rotary_rows_count_queries_and_keys_in_every_table(tmp_path: Path) -> None:
    one = (
        "op,impl,train_pass,dtype,rows,cols,bytes_moved,time_us,source\n"
        "rope_q_and_k,gpt_neox_jit,fwd,fp16,8,16,1024,5,x\n"
    )
    other = (
        "op,impl,train_pass,x_name,x_value,config_json,time_us_p50,time_us_p20,time_us_p80,source\n"
        'rope,huggingface,fwd,T,2,"{""hidden_size"": 32, ""num_q_heads"": 2, ""num_kv_heads"": 6}"'
        ",5,5,5,x\n"
    )
    (pairs,), _ = read_measurements(write(tmp_path, one))
    (each,), _ = read_measurements(write(tmp_path, other))

    assert pairs["variant"].tolist() == each["variant"].tolist() == ["rope_eager"]
    assert pairs["rows"].tolist() == [16.0]  # 8 rows of queries, and as many of keys with them
    assert each["rows"].tolist() == [16.0]  # 2 tokens x (2 + 6) heads
    assert pairs["cols"].tolist() == each["cols"].tolist() == [16.0]


FUSED = "op,impl,train_pass,x_name,x_value,config_json,time_us_p50,time_us_p20,time_us_p80,source\n"
Fused = dict[tuple[str, str], tuple[float, float]]


def fused(folder: Path, impl: str, *passes: tuple[str, float]) -> Fused:
    """Microseconds and ideal traffic of Megatron's SwiGLU, 8 x 2 tokens by 64, by variant, pass."""
    rows = [
        f'megatron_swiglu,{impl},{name},ffn_local,64,"{{""S"": 8, ""B"": 2}}",{t},{t},{t},lab\n'
        for name, t in passes
    ]
    tables, _ = read_measurements(write(folder, FUSED + "".join(rows)))
    found: Fused = {}
    for table in tables:
        for variant, name, moved, time_s in zip(
            table["variant"], table["train_pass"], table["hbm_bytes"], table.time_s, strict=True
        ):
            found[variant, name] = (float(time_s) * 1e6, float(moved))
    return found


def test_a_backward_benchmark_that_runs_the_forward_again_is_taken_without_it(
    tmp_path: Path,
) -> None:
    again = fused(tmp_path, "megatron", ("fwd", 30.0), ("bwd", 100.0), ("fwd+bwd", 101.0))
    assert again["swiglu", "backward"][0] == pytest.approx(70.0)
    alone = fused(tmp_path, "megatron", ("fwd", 30.0), ("bwd", 70.0), ("fwd+bwd", 101.0))
    assert alone["swiglu", "backward"][0] == pytest.approx(70.0)
    assert again["swiglu", "forward"][0] == pytest.approx(30.0)


def test_a_chain_of_pytorch_kernels_also_tells_what_strided_kernels_take(tmp_path: Path) -> None:
    found = fused(tmp_path, "torch", ("fwd", 30.0), ("bwd", 70.0), ("fwd+bwd", 100.0))
    half = 2 * 16 * 64  # bytes of a half
    # silu reads and writes a half, the product reads two and writes one
    assert found["eager", "forward"] == (pytest.approx(30.0), 5 * half)
    # kernels that stream run between the strided ones of its backward
    assert ("eager", "backward") not in found


@pytest.mark.parametrize(("impl", "halves"), [("liger", 7), ("megatron", 5)])
def test_a_summed_output_and_its_written_gradient_count_as_traffic_of_the_benchmark(
    tmp_path: Path, impl: str, halves: int
) -> None:
    # the kernel reads the gradient and both halves and writes both; besides, one sum, one copy
    found = fused(tmp_path, impl, ("fwd", 30.0), ("bwd", 70.0), ("fwd+bwd", 100.0))
    assert found["swiglu", "backward"][1] == halves * 2 * 16 * 64


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("bfloat16,16,32,64,nan,lab", "time_us is 'nan', not a positive number"),
        ("bfloat16,16,32,64,0,lab", "time_us is '0', not a positive number"),
        ("bfloat16,16,-32,64,1,lab", "n is '-32', not a positive number"),
        ("bfloat16,16,32,many,1,lab", "k is 'many', not a positive number"),
        ("bfloat16,16,32,1e300,1,lab", "k is '1e300', not a positive number up to 1e+15"),
        ("bfloat16,16,32,64,inf,lab", "time_us is 'inf', not a positive number"),
        ("bfloat16,16,32,64,1,cpu_time", "source is 'cpu_time'"),
        ("bfloat16,16,32", "the row has 3 columns, the header 6"),
    ],
)
def test_a_row_that_cannot_be_used_is_skipped_with_file_line_and_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    path = write(tmp_path, GEMM + row + "\n")
    (table,), (skipped,) = read_measurements(path)

    assert len(table) == 2
    assert skipped.line == 4
    assert str(skipped).startswith(f"{path}, line 4: {reason}")


def test_an_operator_that_is_not_known_is_skipped(tmp_path: Path) -> None:
    text = (
        "op,impl,train_pass,dtype,rows,cols,bytes_moved,time_us,source\n"
        "fft,k,fwd,fp16,8,16,512,5,x\nadd,k,fwd,fp16,8,16,512,5,x\n"
    )
    _, (skipped,) = read_measurements(write(tmp_path, text))

    assert (skipped.line, skipped.reason) == (2, "the operator is not known")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("dtype,m,n,k,time_us,source\n", "no rows under the header"),
        ("dtype,m,n,k,time_us,source\nbfloat16,1,1", "truncated"),
        ("dtype,m,n,k,time_us,source\nbfloat16,1,1,1,nan,x\n", "no usable row"),
        ("dtype,m,n,k,time_ms,source\nbfloat16,1,1,1,1,x\n", "no column 'time_us'"),
        ("a,b\n1,2\n", "not a measurement file"),
        ("dtype,dtype,m,n,k,time_us\nx,x,1,1,1,1\n", "named twice"),
        ('dtype,m,n,k,time_us,source\n"bfloat16,1,1,1,1,x\n', "not CSV"),
        ("\x00\x01\x02", "not a text file"),
    ],
)
def test_a_file_that_gives_nothing_is_refused_by_name(tmp_path: Path, text: str, what: str) -> None:
    path = write(tmp_path, text)

    with pytest.raises(UnreadableError, match=what) as fault:
        read_measurements(path)

    assert str(path) in fault.value.where


def test_a_file_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LIMIT_BYTES", 20)

    with pytest.raises(UnreadableError, match="too large"):
        read_measurements(write(tmp_path, GEMM))


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    write(tmp_path, GEMM, "b.csv")
    write(tmp_path, GEMM, "a.csv")
    write(tmp_path, "not read", "notes.txt")

    tables, _ = read_measurements([tmp_path])

    assert [Path(t.file).name for t in tables] == ["a.csv", "b.csv"]


def test_licences_come_from_the_sources_file_above(tmp_path: Path) -> None:
    write(tmp_path, "source_prefix,project,licence\nlab_,Lab,MIT\n", "sources.csv")
    (tmp_path / "gemm").mkdir()

    assert read_licences([write(tmp_path / "gemm", GEMM)]) == {"lab_": "MIT"}


def test_every_calibration_file_of_the_a100_is_read(shared: Path) -> None:
    files = sorted((shared / "data" / "calibration").glob("*/a100_sxm*.csv"))
    files = [f for f in files if f.parent.name != "moe_grouped_gemm"]

    tables, skipped = read_measurements(files)

    assert len(files) >= 12
    kinds = {"gemm", "attention", "memory", "embedding", "optimizer", "collective"}
    assert {t.kind for t in tables} == kinds
    assert sum(len(t) for t in tables) > 40_000
    assert all(np.isfinite(t.time_s).all() and (t.time_s > 0).all() for t in tables)
    assert {row.file.rsplit("/", 2)[-2] for row in skipped} <= {"fused_ops"}


def test_waiting_for_other_ranks_is_no_part_of_dispatch_or_combine(tmp_path: Path) -> None:
    # counts are exchanged before a dispatch, whatever multiprocessors the transfer gets: the least
    # of a shape is its time. A combine exchanges none; its notify is a barrier.
    text = (
        "phase,n_nodes,ep_size,tokens_per_rank,hidden,topk,experts,comm_sms,transmit_us,notify_us,library,source\n"
        "dispatch,8,64,4096,7168,8,256,8,600,10,lib,lab\n"
        "dispatch,8,64,4096,7168,8,256,24,500,90,lib,lab\n"
        "dispatch,8,64,1024,7168,8,256,24,150,30,lib,lab\n"
        "combine,8,64,4096,7168,8,256,24,400,800,lib,lab\n"
    )
    (table,), _ = read_measurements(write(tmp_path, text))

    assert table.time_s.tolist() == pytest.approx([610e-6, 510e-6, 180e-6, 400e-6])


def test_experts_without_a_gate_are_two_products_of_the_same_kernels(tmp_path: Path) -> None:
    header = "kernel,dtype,tokens,hidden,inter,topk,experts,moe_tp,moe_ep,routing,time_us,source\n"
    sizes = "128,2688,1856,6,128,1,2,balanced,100,lab"
    kernels = (
        ("moe_torch_flow_cutlass", "bfloat16"),
        ("moe_torch_flow_nongated", "bfloat16"),
        ("moe_torch_flow_nongated", "nvfp4"),
    )
    rows = "".join(f"{kernel},{dtype},{sizes}\n" for kernel, dtype in kernels)
    (found,), _ = read_measurements(write(tmp_path, header + rows))
    assert found["products"].tolist() == [2.0, 1.0, 1.0]
    # only in bf16 and fp8 is it known to be the backend that the gated ones run on
    assert found["stack"].tolist() == [kernels[0][0], kernels[0][0], kernels[2][0]]
