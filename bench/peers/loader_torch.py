#!/usr/bin/env python3
"""Loading JPEGs of about 640x480 to 320 px with flip and HSV: Lockstep beside PyTorch's DataLoader with OpenCV.

The JPEGs, 640 x 426 to 512 pixels, are cut from the aerial photos of data/trees/photos (or --photos), quality 90. Both sides letterbox to a square of
320 px, flip half of the images, change hue, saturation and value, make batches of 32 and turn them into FP32 between 0 and 1
on the consuming thread. Each takes a turn in each round, in a process of its own, with the files in memory; a figure is the
median over the rounds. Memory is the proportional set size of all processes of a side, mapped files included.

Needs Python's torch with all that it depends on, and OpenCV, in whatever environment runs this:

    python3 -m venv peers && peers/bin/pip install torch==2.11.0 numpy opencv-python-headless==4.12.0.88
    peers/bin/python bench/peers/loader_torch.py build/release/lockstep [--record results/loader/record.json]
"""

import argparse
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

SIDE, BATCH = 320, 32
HUE, SATURATION, VALUE = 0.015, 0.7, 0.4
SETTINGS = {"image_size": SIDE, "batch": BATCH, "augmentation.mosaic": 0, "augmentation.translate": 0, "augmentation.scale": 0,
            "augmentation.hsv_hue": HUE, "augmentation.hsv_saturation": SATURATION, "augmentation.hsv_value": VALUE,
            "augmentation.flip_horizontal": 0.5}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--photos", type=pathlib.Path, default="data/trees/photos")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the one, threads of the other")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of timing for each way and round")
    parser.add_argument("--record", type=pathlib.Path, help="write all figures there, as JSON")
    parser.add_argument("--peer-folder", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_jpegs(photos, folder, count):
    import cv2

    lots = random.Random(1)
    sources = [cv2.imread(str(path)) for path in sorted(photos.glob("*.png")) + sorted(photos.glob("*.jpg"))]
    if not sources:
        sys.exit(f"no photos in {photos}: ./run demo puts them there")
    images = []
    for i in range(count):
        photo = sources[i % len(sources)]
        width, height = 640, lots.randrange(426, 513)
        x, y = lots.randrange(photo.shape[1] - width), lots.randrange(photo.shape[0] - height)
        name = f"{i:05}.jpg"
        cv2.imwrite(str(folder / name), photo[y:y + height, x:x + width], [cv2.IMWRITE_JPEG_QUALITY, 90])
        images.append({"id": i + 1, "file_name": name, "width": width, "height": height})
    (folder / "instances.json").write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "tree"}]}))


def pss_mib(pids):
    total = 0
    for pid in pids:
        for line in open(f"/proc/{pid}/smaps_rollup"):
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def children():
    return [int(pid) for task in os.listdir("/proc/self/task") for pid in open(f"/proc/self/task/{task}/children").read().split()]


def peer(options):
    """One turn of the peer, in a process of its own: prints images a second and MiB."""
    import cv2
    import numpy as np
    import torch

    torch.set_num_threads(1)  # as on the other side

    class Jpegs(torch.utils.data.Dataset):
        def __init__(self, folder):
            self.paths = [str(path) for path in sorted(folder.glob("*.jpg"))]

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            image = cv2.imread(self.paths[index])
            scale = SIDE / max(image.shape[:2])
            width, height = round(image.shape[1] * scale), round(image.shape[0] * scale)
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
            left, top = (SIDE - width) // 2, (SIDE - height) // 2
            image = cv2.copyMakeBorder(image, top, SIDE - height - top, left, SIDE - width - left, cv2.BORDER_CONSTANT, value=(114, 114, 114))
            if random.random() < 0.5:
                image = cv2.flip(image, 1)
            gains = np.random.uniform(-1, 1, 3) * (HUE, SATURATION, VALUE) + 1
            hue, saturation, value = cv2.split(cv2.cvtColor(image, cv2.COLOR_BGR2HSV))
            steps = np.arange(256)
            image = cv2.merge((cv2.LUT(hue, (steps * gains[0] % 180).astype(np.uint8)),
                               cv2.LUT(saturation, np.clip(steps * gains[1], 0, 255).astype(np.uint8)),
                               cv2.LUT(value, np.clip(steps * gains[2], 0, 255).astype(np.uint8))))
            image = cv2.cvtColor(image, cv2.COLOR_HSV2RGB)
            return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))

    def one_thread(_):
        cv2.setNumThreads(0)

    loader = torch.utils.data.DataLoader(Jpegs(options.peer_folder), batch_size=BATCH, shuffle=True, num_workers=options.workers,
                                         persistent_workers=True, worker_init_fn=one_thread)
    start, images, memory = None, 0, 0
    while start is None or time.perf_counter() < start + options.seconds:
        for batch in loader:
            ready = batch.float().div_(255)
            if start is None:  # the first batch waits for the workers to start
                start = time.perf_counter()
            else:
                images += len(ready)
            if time.perf_counter() >= start + options.seconds:
                break
        if not memory:
            memory = pss_mib([os.getpid(), *children()])
    rate = images / (time.perf_counter() - start)
    print(json.dumps({"images_per_second": rate, "pss_mib": max(memory, pss_mib([os.getpid(), *children()]))}), flush=True)
    os._exit(0)  # not waiting for workers that are in the middle of an epoch


def lockstep(options, dataset, decode):
    words = [options.lockstep, "bench", "loader", str(dataset), "--json", "--what", "all", "--state", "warm", "--read", "mmap",
             "--threads", str(options.workers), "--only-all-threads", "--rounds", "1", "--seconds", str(options.seconds), "--decode", decode,
             "--encoding", "raw" if dataset.name == "raw" else "encoded"]
    for key, value in SETTINGS.items():
        words += ["--set", f"{key}={value}"]
    rows = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["rows"]
    (row,) = [row for row in rows if not row["without"]]  # others say what a setting costs
    return row


def main():
    options = arguments()
    if options.peer_folder:
        peer(options)
        return
    turns = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "jpegs"
        folder.mkdir()
        make_jpegs(options.photos, folder, options.images)
        for name, more in (("encoded", []), ("raw", ["--raw", "--side", str(SIDE)])):
            subprocess.run([options.lockstep, "import", "coco", folder / "instances.json", "--images", folder, "--out", pathlib.Path(scratch) / name, *more],
                           check=True, capture_output=True)
        ways = {
            "peer:torch": lambda: json.loads(subprocess.run([sys.executable, __file__, *sys.argv[1:], "--peer-folder", folder],
                                                            check=True, capture_output=True, text=True).stdout),
            "full": lambda: lockstep(options, pathlib.Path(scratch) / "encoded", "full"),
            "scaled": lambda: lockstep(options, pathlib.Path(scratch) / "encoded", "scaled"),
            "raw": lambda: lockstep(options, pathlib.Path(scratch) / "raw", "full"),
        }
        for turn in range(options.rounds):
            names = list(ways)
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                turns.setdefault(name, []).append(ways[name]())

    rates = {name: statistics.median(turn["images_per_second"] for turn in of_way) for name, of_way in turns.items()}
    memory = {name: max(turn["pss_mib"] for turn in of_way) for name, of_way in turns.items()}
    ratios = {name: statistics.median(ours["images_per_second"] / theirs["images_per_second"] for ours, theirs in zip(turns[name], turns["peer:torch"]))
              for name in turns}
    print(f"{'':12} {'images/s':>10} {'of the peer':>12} {'PSS MiB':>9} {'of the peer':>12}")
    for name in ("peer:torch", "full", "scaled", "raw"):
        print(f"{name:12} {rates[name]:10.0f} {ratios[name]:12.2f} {memory[name]:9.0f} {memory[name] / memory['peer:torch']:12.2f}")
    if options.record:
        import cv2
        import torch

        options.record.parent.mkdir(parents=True, exist_ok=True)
        cpu = next(line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
        options.record.write_text(json.dumps({
            "command": "bench/peers/loader_torch.py " + " ".join(sys.argv[2:]), "commit": subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip(), "cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(),
            "torch": torch.__version__, "opencv": cv2.__version__, "images": options.images, "workers": options.workers, "settings": SETTINGS,
            "rows": [{"what": name, "images_per_second": rates[name], "times_the_peer": ratios[name], "pss_mib": memory[name], "turns": turns[name]}
                     for name in turns]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
