#!/usr/bin/env python3
"""All-reduce of FP32 between the ranks of one machine: Lockstep beside gloo (through torch.distributed) and MPI_Allreduce.

Lockstep's own bench (which takes turns with MPI_Allreduce and a plain copy, repetition by repetition) and gloo's ranks run
in turns, for several rounds; a figure is the median over the rounds of each round's median, of the slowest rank's times. Both
time the mean of 50 operations back to back up to 64 KiB.

Needs Python's torch with all that it depends on (docs/dependencies.md), in whatever environment runs this:

    python3 -m venv peers && peers/bin/pip install torch==2.11.0 numpy
    peers/bin/python bench/peers/collectives.py build/release/lockstep [--record results/collectives/record.json]
"""

import argparse
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import time

BATCHED_BYTES, BATCH = 64 << 10, 50


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="4B,1KiB,4KiB,64KiB,1MiB,4MiB,25MB,100MB,256MB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing for each size, algorithm and round")
    parser.add_argument("--record", type=pathlib.Path, help="write all figures there, as JSON")
    parser.add_argument("--gloo-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gloo-port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gloo-bytes", type=int, nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def gloo_rank(options):
    """A rank of the peer: prints, by size, the median over repetitions of the slowest rank's time."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{options.gloo_port}", rank=options.gloo_rank, world_size=options.ranks)
    medians = []
    for size in options.gloo_bytes:
        tensor = torch.zeros(size // 4)
        batch = BATCH if size <= BATCHED_BYTES else 1
        times, is_over = [], torch.zeros(1)
        begin = None
        while not is_over.item():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(batch):
                dist.all_reduce(tensor)
            now = time.perf_counter()
            if begin is None:  # connections are made by the first one
                begin = now
            else:
                times.append((now - start) / batch)
            is_over[0] = float(now - begin > options.seconds and len(times) >= 3)
            dist.broadcast(is_over, 0)
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        medians.append(slowest.median().item())
    if options.gloo_rank == 0:
        print(json.dumps(medians), flush=True)
    dist.destroy_process_group()


def gloo(options, sizes):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, __file__, options.lockstep, "--ranks", str(options.ranks), "--seconds", str(options.seconds),
             "--gloo-port", str(port), "--gloo-bytes", *map(str, sizes)]
    ranks = [subprocess.Popen([*words, "--gloo-rank", str(rank)], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
             for rank in range(options.ranks)]
    texts = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("gloo's ranks failed")
    return dict(zip(sizes, json.loads(texts[0])))


def lockstep(options):
    words = [options.lockstep, "bench", "collectives", "--ranks", str(options.ranks), "--sizes", options.sizes, "--seconds",
             str(options.seconds), "--peers", "--json"]
    rows = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["rows"]
    if any(row["wrong"] for row in rows):
        sys.exit(f"wrong results: {rows}")
    return rows


def main():
    options = arguments()
    if options.gloo_rank is not None:
        gloo_rank(options)
        return
    milliseconds = {}  # (bytes, algorithm) -> one figure a round
    for _ in range(options.rounds):
        rows = lockstep(options)
        for row in rows:
            milliseconds.setdefault((row["bytes"], row["algorithm"]), []).append(row["median_ms"])
        for size, seconds in gloo(options, sorted({row["bytes"] for row in rows})).items():
            milliseconds.setdefault((size, "peer:gloo"), []).append(seconds * 1e3)

    medians = {key: statistics.median(values) for key, values in milliseconds.items()}
    ours = "shared" if any(algorithm == "shared" for _, algorithm in medians) else "mpi"
    others = ["copy", "peer:mpi", "peer:gloo"]
    print(f"{options.ranks} ranks, median ms of {options.rounds} rounds; in brackets how many times as long as Lockstep takes")
    print(f"{'bytes':>12} {'lockstep':>12} " + " ".join(f"{name:>22}" for name in others))
    for size in sorted({size for size, _ in medians}):
        mine = medians[size, ours]
        cells = [f"{medians[size, name]:12.4f} ({medians[size, name] / mine:6.2f})" if (size, name) in medians else "-" for name in others]
        print(f"{size:>12} {mine:12.4f} " + " ".join(f"{cell:>22}" for cell in cells))
    if options.record:
        import torch

        options.record.parent.mkdir(parents=True, exist_ok=True)
        cpu = next(line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
        options.record.write_text(json.dumps({
            "command": "bench/peers/collectives.py " + " ".join(sys.argv[2:]), "commit": subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip(), "cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(),
            "torch": torch.__version__, "ranks": options.ranks, "rounds": options.rounds, "lockstep_algorithm": ours,
            "rows": [{"bytes": size, "algorithm": algorithm, "median_ms_of_rounds": values, "median_ms": medians[size, algorithm]}
                     for (size, algorithm), values in sorted(milliseconds.items())]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
