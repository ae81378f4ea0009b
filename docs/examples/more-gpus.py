"""What do more GPUs buy? The same batch on 64 to 512, and what a day of them does."""

import seer


def main() -> None:
    """Print a line for each number of GPUs."""
    found = seer.sweep("llama3-8b-64xh100", {"gpus": [64, 128, 256, 512]}, on="here")
    plans = sorted(found.plans, key=lambda plan: plan.gpus)
    first = plans[0]
    for plan in plans:
        speedup = first.iteration_time_s / plan.iteration_time_s
        efficiency = speedup * first.gpus / plan.gpus
        tokens = plan.tokens_per_s_per_gpu * plan.gpus * 86400
        print(
            f"{plan.gpus:4} GPUs  {plan.iteration_time_s:6.2f} s per step  "
            f"{tokens / 1e9:6.1f} G tokens a day  {efficiency:4.0%} of linear"
        )
    assert [plan.gpus for plan in plans] == [64, 128, 256, 512]


if __name__ == "__main__":
    main()
