"""Is fp8 worth it? The step in both precisions, and the operators that gain most."""

from collections import Counter

import seer

JOB = "llama3-8b-64xh100"


def seconds_by_kind(found: seer.ForecastResult) -> Counter:
    """Seconds that each kind of operator keeps the reported rank busy."""
    table = found.to_columns()
    total = Counter()
    for kind, seconds in zip(table["kind"], table["total_s"], strict=True):
        total[kind] += seconds
    return total


def main() -> None:
    """Print both steps and the kinds of operators that take longest."""
    bf16, fp8 = (seer.forecast(JOB, {"training.precision": p}) for p in ("bf16", "fp8"))
    print(f"bf16 {bf16.iteration_time_s:.2f} s, fp8 {fp8.iteration_time_s:.2f} s")
    before, after = seconds_by_kind(bf16), seconds_by_kind(fp8)
    for kind, seconds in before.most_common(5):
        print(f"{kind:12} {seconds:6.2f} s -> {after[kind]:6.2f} s")
    assert after["gemm"] < before["gemm"]


if __name__ == "__main__":
    main()
