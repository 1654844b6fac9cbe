"""Draw the loss of one or more runs: `python examples/plot_loss.py RUN… --output loss.png`.

Reads `metrics.jsonl` of a run directory (of an array's task: `RUN/task-3`). It is here, not in
the package, because it is the shortest example of reading a run, meant to be copied. Needs
matplotlib: `pip install 'fsdpkit[plot]'`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib
from matplotlib import pyplot

from fsdpkit.runs.events import read_json_lines
from fsdpkit.runs.layout import TaskPaths


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the loss of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's directory")
    parser.add_argument("--output", type=Path, default=Path("loss.png"), help="the picture")
    arguments = parser.parse_args()
    matplotlib.use("Agg")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150, layout="constrained")
    for run in arguments.runs:
        lines = list(read_json_lines(TaskPaths(run).metrics))
        training = [line for line in lines if "loss" in line]
        if not training:
            print(f"plot_loss: {run} has no logged step", file=sys.stderr)
            return 1
        steps, losses = [line["step"] for line in training], [line["loss"] for line in training]
        (drawn,) = axes.plot(steps, losses, marker=".", label=run.name)
        held_out = [line for line in lines if "eval_loss" in line]
        axes.plot(
            [line["step"] for line in held_out],
            [line["eval_loss"] for line in held_out],
            marker="*",
            markersize=12,
            linestyle="none",
            color=drawn.get_color(),
            label="held out" if held_out else None,
        )
        print(
            f"{run.name}: loss {losses[0]:.3f} at step {steps[0]}, {losses[-1]:.3f} at {steps[-1]}"
        )
    axes.set(xlabel="step", ylabel="loss per target token", title="Training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output)
    print(f"loss curve: {arguments.output.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
