#!/usr/bin/env python3
"""Times COCO box evaluation on a val2017-sized set: lockstep, pycocotools and faster-coco-eval, interleaved.

Two figures for each, medians over the rounds; every round starts with another of the three:
  process     the whole process from its start to its exit, reading both JSON files
  evaluation  matching, accumulation and the twelve scores, from what is in memory

The set is made up but seeded: 5,000 images, 80 classes, about 36,000 boxes with polygons, as in COCO, 100 detections an
image. All three must give the same twelve numbers in every round (|difference| <= 1e-12), or the script fails. With
--json it prints the samples with what they were taken on: cores, load, threads, versions, size of the set.

    .venv/bin/python bench/peers/coco_eval.py build/release/lockstep --rounds 5
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

PEERS = ("pycocotools", "faster-coco-eval")
FIGURES = ("process", "evaluation")
TOLERANCE = 1e-12


def make_set(folder, images, per_image, seed):
    """Writes ground truth and detections like a trained detector's; returns their paths."""
    random = numpy.random.default_rng(seed)
    # COCO's ids have gaps, its classes are far from equally frequent, and "person" is a third of all boxes.
    categories = [int(c) for c in numpy.sort(random.choice(numpy.arange(1, 91), 80, replace=False))]
    weight = 1 / numpy.arange(2, 82)
    weight[0] = weight[1:].sum() / 2
    weight /= weight.sum()
    image_ids = [int(i) for i in numpy.sort(random.choice(numpy.arange(139, 581782), images, replace=False))]
    annotations, detections = [], []
    for image_id in image_ids:
        present = random.choice(80, size=random.integers(1, 5), p=weight)
        truths = []
        for _ in range(random.poisson(7.36)):
            size = numpy.exp(random.normal(4.1, 1.1, size=2)).clip(2, [600, 440])
            x, y = random.uniform(0, [640, 480] - size)
            box = [round(float(v), 2) for v in (x, y, *size)]
            category = categories[random.choice(present)]
            truths.append((box, category))
            points = random.uniform([x, y], [x + size[0], y + size[1]], size=(random.integers(10, 40), 2))
            annotations.append({
                "segmentation": [[round(float(p), 2) for p in points.ravel()]],
                "area": round(float(size[0] * size[1] * random.uniform(0.4, 0.9)), 4),
                "iscrowd": int(random.random() < 0.012),
                "image_id": image_id,
                "bbox": box,
                "category_id": category,
                "id": len(annotations) + 1,
            })
        found = []
        for box, category in truths:
            for _ in range(random.integers(1, 4)):
                box_of_it = numpy.array(box) + random.normal(0, 0.08, 4) * [box[2], box[3], box[2], box[3]]
                found.append((box_of_it, category, random.beta(3, 2)))
        while len(found) < per_image:
            size = numpy.exp(random.normal(4.1, 1.1, size=2)).clip(2, [600, 440])
            category = categories[random.choice(80, p=weight)] if random.random() < 0.5 else categories[random.choice(present)]
            found.append(((*random.uniform(0, [640, 480] - size), *size), category, random.beta(1, 12)))
        for box, category, score in found[:per_image]:
            detections.append({
                "image_id": image_id,
                "category_id": category,
                "bbox": [round(float(v), 3) for v in box],
                "score": round(float(score), 5),
            })
    truth = {
        "images": [{"id": i, "width": 640, "height": 480, "file_name": f"{i:012}.jpg"} for i in image_ids],
        "annotations": annotations,
        "categories": [{"id": c, "name": f"class {c}"} for c in categories],
    }
    paths = []
    for name, content in (("ground_truth.json", truth), ("detections.json", detections)):
        paths.append(os.path.join(folder, name))
        with open(paths[-1], "w") as file:
            json.dump(content, file)
    return paths


def python_peer(name, truth_path, detections_path):
    """Runs in a process of its own; prints the twelve numbers and the seconds of the evaluation alone."""
    with contextlib.redirect_stdout(io.StringIO()):
        if name == "pycocotools":
            from pycocotools.coco import COCO
            from pycocotools.cocoeval import COCOeval
        else:
            from faster_coco_eval import COCO
            from faster_coco_eval import COCOeval_faster as COCOeval
        truth = COCO(truth_path)
        detections = truth.loadRes(detections_path)
        start = time.perf_counter()
        evaluation = COCOeval(truth, detections, iouType="bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        seconds = time.perf_counter() - start
    print(json.dumps({"stats": [float(s) for s in evaluation.stats[:12]], "evaluation_seconds": seconds}))


def timed_run(command):
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - start, json.loads(done.stdout)


def difference(stats, reference):
    """The greatest of a score; infinite where one is missing or is no number."""
    if len(stats) != 12 or len(reference) != 12:
        return math.inf
    differences = [abs(a - b) for a, b in zip(stats, reference)]
    return math.inf if any(map(math.isnan, differences)) else max(differences)


def orders(names, rounds):
    """The names of each round, turned by one from round to round, so that none always comes after the same other."""
    return [names[r % len(names):] + names[:r % len(names)] for r in range(rounds)]


def measure(commands, rounds):
    """Returns the samples in seconds, the last answers and the greatest difference from pycocotools, each by name."""
    samples = {name: {figure: [] for figure in FIGURES} for name in commands}
    answers, greatest = {}, dict.fromkeys(commands, 0.0)
    for order in orders(list(commands), rounds):
        for name in order:
            seconds, answers[name] = timed_run(commands[name])
            samples[name]["process"].append(seconds)
            samples[name]["evaluation"].append(answers[name]["evaluation_seconds"])
        for name, answer in answers.items():
            greatest[name] = max(greatest[name], difference(answer["stats"], answers["pycocotools"]["stats"]))
    return samples, answers, greatest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", help="the lockstep program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections-per-image", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of lockstep; 0: all usable cores")
    parser.add_argument("--keep", metavar="DIR", help="make the set there, or take the one that is there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--require-faster", action="store_true",
                        help="exit 1 unless lockstep's medians are below both peers' in both figures")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")

    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or scratch
        os.makedirs(folder, exist_ok=True)
        paths = [os.path.join(folder, name) for name in ("ground_truth.json", "detections.json")]
        if not all(map(os.path.exists, paths)):
            paths = make_set(folder, arguments.images, arguments.detections_per_image, arguments.seed)
        file_bytes = sum(map(os.path.getsize, paths))
        commands = {"lockstep": [arguments.lockstep, "coco-eval", *paths, "--json", "--threads", str(arguments.threads)]}
        for peer in PEERS:
            commands[peer] = [sys.executable, os.path.abspath(__file__), "--peer", peer, *paths]
        load_before = os.getloadavg()
        samples, answers, greatest = measure(commands, arguments.rounds)
        load_after = os.getloadavg()
    medians = {name: {figure: statistics.median(times[figure]) for figure in FIGURES} for name, times in samples.items()}
    if arguments.json:
        version = subprocess.run([arguments.lockstep, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        print(json.dumps({
            "medians_seconds": medians,
            "samples_seconds": samples,
            "orders": orders(list(commands), arguments.rounds),
            "stats": {name: answer["stats"] for name, answer in answers.items()},
            "greatest_difference": {name: value if math.isfinite(value) else None for name, value in greatest.items()},
            "set": {"bytes": file_bytes, **{what: answers["lockstep"].get(what) for what in ("images", "boxes", "detections")}},
            "threads": arguments.threads,
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "load_average": {"before": load_before, "after": load_after},
            "versions": {
                "lockstep": version,
                "python": platform.python_version(),
                **{package: importlib.metadata.version(package) for package in ("numpy", *PEERS)},
            },
        }))
    else:
        print(f"{'':18}{'process':>10}{'evaluation':>12}   greatest difference from pycocotools in a score")
        for name in commands:
            process, evaluation = (medians[name][figure] for figure in FIGURES)
            print(f"{name:18}{process:9.3f}s{evaluation:11.3f}s   {greatest[name]:.1e}")

    problems = [f"{name} and pycocotools disagree by {value:g} in a score"
                for name, value in greatest.items() if not value <= TOLERANCE]
    if arguments.require_faster:
        problems += [f"lockstep is not faster than {peer} in {figure}: {medians['lockstep'][figure]:.3f} s against {medians[peer][figure]:.3f} s"
                     for peer in PEERS for figure in FIGURES if not medians["lockstep"][figure] < medians[peer][figure]]
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        python_peer(*sys.argv[2:5])
    else:
        main()
