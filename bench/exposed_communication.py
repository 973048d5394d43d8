#!/usr/bin/env python3
"""How much of the gradients' way over a network a training hides behind its backward pass, and whether the time that the
trainer prints as exposed is what communication really costs.

Two machines are simulated (tests/cluster/nodes.sh; needs root), each with a core of its own. In turns
  together   one training of two ranks over a link of the given rate
  apart      two trainings of one rank each, with as many images a rank and step, at the same time: no communication. They
             read different images, as the two ranks do: how long a step takes depends on the objects in them
and the all-reduce of as many bytes as there are gradients is timed over the idle link. A round is both kinds, in alternating
order; the difference of their steps is the median over the rounds of each round's difference of medians, the other figures are
medians over all steps. The first steps of a training are left out.

    .venv/bin/python bench/exposed_communication.py build/release/lockstep data/trees/train --rates 1gbit 100mbit
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/cluster"))
from simulated_nodes import SCRIPT, Nodes, reason_to_skip  # noqa: E402

WARM_UP = 5  # steps


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("data", help="a data set for detection")
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--batch", type=int, default=8, help="images a rank and step")
    parser.add_argument("--set", action="append", default=[], help="key=value of the recipe, for all trainings")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for setting in options.set:
        if setting.startswith(("model=", "communication.wire=", "communication.algorithm=", "communication.topology=")):
            parser.error(f"--set {setting}: the all-reduce that is timed alone would be another one than the training's")
    return options


class Bench:
    def __init__(self, options, nodes, folder):
        self.options, self.nodes, self.folder = options, nodes, pathlib.Path(folder)
        self.runs = 0

    def training(self, batch):
        """The words of a training into a directory of its own, and that directory."""
        self.runs += 1
        recipe, run = self.folder / f"{self.runs}.toml", self.folder / f"run-{self.runs}"
        recipe.write_text(f'model = "yolov10n"\nimage_size = 256\nbatch = {batch}\n[data]\ntrain = "{self.options.data}"\nthreads = 1\n')
        words = [self.options.lockstep, "train", str(recipe), "--out", str(run), "--set", f"max_steps={self.options.steps}",
                 "--set", "checkpoint.every_epochs=0"]
        for setting in self.options.set:
            words += ["--set", setting]
        return words, run

    def steps(self, run):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["kind"] == "step"][WARM_UP:]

    def check(self, process):
        output, _ = process.communicate(timeout=1200)
        if process.returncode != 0:
            sys.exit(f"a training failed:\n{output[-3000:]}")

    def start(self, command):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=os.environ | {"OMP_NUM_THREADS": "1"})

    def together(self):
        words, run = self.training(2 * self.options.batch)
        self.check(self.start(self.nodes.mpirun(1, "sh", "-c", 'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"', "sh", *words)))
        return self.steps(run)

    def apart(self):
        started = []
        for node in range(2):
            words, run = self.training(self.options.batch)
            words += ["--set", f"seed={node}"]
            command = [SCRIPT, self.nodes.prefix, "exec", self.nodes.name(node), "taskset", "-c", str(node), *words]
            started.append((self.start(command), run))
        for process, _ in started:
            self.check(process)
        # Ranks wait for each other: the slower one's steps are what a step without communication takes.
        return [max(pair, key=lambda line: line["step_seconds"]) for pair in zip(*(self.steps(run) for _, run in started))]

    def all_reduce_seconds(self, size):
        command = self.nodes.mpirun(1, self.options.lockstep, "bench", "collectives", "--sizes", f"{size}B", "--seconds", 2, "--json")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return next(row["median_ms"] / 1e3 for row in json.loads(done.stdout)["rows"] if row["algorithm"] == "mpi")


def median(lines, key):
    return statistics.median(line[key] for line in lines)


def measure(options, rate, folder):
    nodes = Nodes(2, rate)
    try:
        bench = Bench(options, nodes, folder)
        together, apart, differences = [], [], []
        for number in range(options.rounds):
            kinds = [bench.together, bench.apart]
            lines = {kind: kind() for kind in (kinds if number % 2 == 0 else reversed(kinds))}
            of_round = [lines[kind] for kind in kinds]
            differences.append(median(of_round[0], "step_seconds") - median(of_round[1], "step_seconds"))
            together += of_round[0]
            apart += of_round[1]
        cost = subprocess.run([options.lockstep, "model", "yolov10n", "--classes", "1", "--json"], capture_output=True, text=True, check=True)
        size = json.loads(cost.stdout)["parameters"] * 4
        communication = bench.all_reduce_seconds(size)
    finally:
        nodes.down()
    step, without = median(together, "step_seconds"), median(apart, "step_seconds")
    exposed = median(together, "exposed_communication_seconds")
    return {"rate": rate, "gradient_bytes": size, "step_seconds": step, "step_seconds_without_communication": without,
            "all_reduce_seconds": communication, "exposed_seconds": exposed, "difference_seconds": statistics.median(differences),
            "differences_of_rounds": differences, "rank_skew_seconds": median(together, "rank_skew_seconds"), "core_seconds": median(together, "communication_core_seconds"), "hidden_fraction": 1 - exposed / communication, "steps": len(together)}


def main():
    options = arguments()
    options.lockstep, options.data = os.path.abspath(options.lockstep), os.path.abspath(options.data)
    if reason := reason_to_skip(options.rates[0]):
        sys.exit(reason)
    rows = []
    for rate in options.rates:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(options, rate, folder)
        rows.append(row)
        if not options.json:
            print(f"{rate}: a step {1e3 * row['step_seconds']:.0f} ms, without communication"
                  f" {1e3 * row['step_seconds_without_communication']:.0f} ms; by rounds"
                  f" {', '.join(f'{1e3 * difference:.1f}' for difference in row['differences_of_rounds'])} ms more, median"
                  f" {1e3 * row['difference_seconds']:.1f} ms;"
                  f" exposed by the trainer's count {1e3 * row['exposed_seconds']:.1f} ms; by its thread on the core {1e3 * row['core_seconds']:.1f} ms; skew of the ranks"
                  f" {1e3 * row['rank_skew_seconds']:.1f} ms; the all-reduce alone"
                  f" {1e3 * row['all_reduce_seconds']:.1f} ms, of which {100 * row['hidden_fraction']:.0f}% are hidden", flush=True)
    if options.json:
        print(json.dumps({"rows": rows, "rounds": options.rounds, "batch": options.batch, "settings": options.set}, indent=1))


if __name__ == "__main__":
    main()
