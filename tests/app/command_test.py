"""command_test.py LOCKSTEP MPIRUN_SCRIPT: the command as a person or a script meets it, from import to prediction."""

import html
import html.parser
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

from png import png

LOCKSTEP, MPIRUN = sys.argv[1], sys.argv[2]
SIDE = 64
CLASS = "square <script src='x'>&\"</b>"  # names come from other people's files


def write_scene(folder, name, seed):
    """Gray noise with one or two bright squares, and its Pascal VOC file."""
    draw = random.Random(seed)
    pixels = bytearray(draw.randrange(60) for _ in range(3 * SIDE * SIDE))
    objects = ""
    for _ in range(1 + seed % 2):
        size = draw.randrange(16, 32)
        x, y = draw.randrange(SIDE - size), draw.randrange(SIDE - size)
        for row in range(y, y + size):
            for column in range(x, x + size):
                pixels[3 * (row * SIDE + column)] = 250
        objects += (f"<object><name>{html.escape(CLASS)}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
                    f"<xmax>{x + size}</xmax><ymax>{y + size}</ymax></bndbox></object>")
    (folder / f"{name}.png").write_bytes(png(SIDE, SIDE, pixels))
    (folder / f"{name}.xml").write_text(f"<annotation><filename>{name}.png</filename>{objects}</annotation>")


def run(*arguments, ranks=0, timeout=120, **more):
    command = [MPIRUN, str(ranks), str(timeout)] if ranks else []
    return subprocess.run([*command, LOCKSTEP, *map(str, arguments)], capture_output=True, text=True, timeout=timeout + 30, **more)


class WellFormed(html.parser.HTMLParser):
    """Fails a test where tags don't nest."""

    def __init__(self, test):
        super().__init__()
        self.test, self.open = test, []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br", "img", "hr", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        self.test.assertEqual(tag, self.open.pop() if self.open else None, self.getpos())


class Command(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.photos = cls.folder / "photos"
        cls.photos.mkdir()
        for i in range(13):
            write_scene(cls.photos, f"scene-{i:02}", i)
        cls.data = cls.folder / "data"
        cls.imported = run("import", "voc", cls.photos, "--out", cls.data, "--json")
        cls.recipe = cls.folder / "squares.toml"
        cls.recipe.write_text(
            f'model = "yolov10n"\nimage_size = 64\nbatch = 4\nepochs = 3\n[data]\ntrain = "{cls.data}"\nvalidation = "{cls.data}"\n'
            "[schedule]\nwarmup_epochs = 1\n[augmentation]\nclosing_epochs = 1\n")
        cls.trained = cls.folder / "trained"
        cls.training = run("train", cls.recipe, "--out", cls.trained, ranks=2)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def expect_refused(self, result, code, *fragments):
        self.assertEqual(code, result.returncode, result.stderr[-2000:])
        for fragment in fragments:
            self.assertIn(fragment, result.stderr)

    def test_import_inspect_verify(self):
        self.assertEqual(0, self.imported.returncode, self.imported.stderr)
        self.assertEqual(13, json.loads(self.imported.stdout)["images"])
        facts = json.loads(run("inspect", self.data, "--json").stdout)
        for key in ("images", "boxes", "classes", "shards", "bytes", "dropped_images", "dropped_boxes"):
            self.assertIn(key, facts)
        self.assertEqual((13, 19, [CLASS]), (facts["images"], facts["boxes"], facts["classes"]))
        self.assertEqual(0, run("verify", self.data).returncode)

    def expect_the_same_in_tensorboard(self, run_directory):
        """What the real TensorBoard reads is what metrics.jsonl says."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, SCALARS
        events = EventAccumulator(str(run_directory / "tensorboard"), size_guidance={SCALARS: 0}).Reload()
        read = {(tag, event.step): event for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
        expected = {}
        for line in map(json.loads, (run_directory / "metrics.jsonl").read_text().splitlines()):
            for key, value in line.items():
                values = {f"{key}/{i}": item for i, item in enumerate(value)} if isinstance(value, list) else {key: value}
                for name, item in values.items():
                    if name not in ("epoch", "step", "time") and isinstance(item, (int, float)):
                        expected[f"{line['kind']}/{name}", line["step"]] = (line["time"], item)
        self.assertEqual(set(expected), set(read))
        for place, (time, value) in expected.items():
            self.assertAlmostEqual(time, read[place].wall_time, 3, place)
            self.assertAlmostEqual(value, read[place].value, delta=1e-6 * max(1, abs(value)), msg=place)

    def test_training_leaves_the_run_directory(self):
        self.assertEqual(0, self.training.returncode, self.training.stderr[-3000:])
        self.expect_the_same_in_tensorboard(self.trained)
        summary = json.loads((self.trained / "summary.json").read_text())
        for key in ("model", "ranks", "images_per_second", "seconds_per_epoch", "peak_pss_mib", "data_wait_fraction", "metrics", "epochs", "steps"):
            self.assertIn(key, summary)
        self.assertEqual((2, 3, 12), (summary["ranks"], summary["epochs"], summary["steps"]))
        self.assertIn("AP50", summary["metrics"])
        lines = [json.loads(line) for line in (self.trained / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual((12, 3), tuple(sum(line["kind"] == kind for line in lines) for kind in ("step", "epoch")))
        for name in ("recipe.resolved.toml", "environment.json", "weights.safetensors", "report.html"):
            self.assertTrue((self.trained / name).is_file(), name)
        self.assertIn("settings", self.training.stderr)
        self.assertIn("learning rate", self.training.stderr)
        self.assertIn("Average Precision", self.training.stdout)

    def test_report_stands_alone(self):
        page = (self.trained / "report.html").read_text()
        self.assertIn("AP50", page)
        self.assertIn("data:image/jpeg;base64,", page)
        for outside in ("http:", "https:", "<script", "<link", "@import"):
            self.assertNotIn(outside, page)
        WellFormed(self).feed(page)

    def test_eval_is_the_same_for_any_number_of_ranks(self):
        scores = [json.loads(run("eval", self.trained, "--data", self.data, "--json", ranks=ranks).stdout)["metrics"] for ranks in (0, 2, 3, 4)]
        for other in scores[1:]:
            self.assertEqual(scores[0], other)

    def test_predict(self):
        out = self.folder / "found"
        result = run("predict", self.trained, self.photos, "--json", "--min-score", "0", "--out", out)
        self.assertEqual(0, result.returncode, result.stderr)
        images = json.loads(result.stdout)["images"]
        self.assertEqual(13, len(images))
        self.assertEqual((SIDE, SIDE), (images[0]["width"], images[0]["height"]))
        self.assertEqual({"box", "score", "class"}, set(images[0]["detections"][0]))
        self.assertEqual(4, len(images[0]["detections"][0]["box"]))
        self.assertEqual(13, len(list(out.glob("*.png"))))

    def test_export_and_model(self):
        weights = self.folder / "exported.safetensors"
        self.assertEqual(0, run("export", self.trained, "--out", weights).returncode)
        raw = weights.read_bytes()
        header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
        self.assertIn("model.23.one2one_cv3.2.2.bias", header)
        facts = json.loads(run("model", "yolov10n", "--json").stdout)
        self.assertEqual(2775520, facts["parameters"])

    def test_bench_collectives(self):
        result = run("bench", "collectives", "--ranks", 2, "--sizes", "4B,1MiB", "--ops", "all_reduce,all_gather",
                     "--types", "f32,bf16", "--seconds", 0.02, "--peers", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual({row["algorithm"] for row in rows}, {"shared", "staged", "mpi", "peer:mpi", "copy"})
        self.assertEqual({(row["op"], row["dtype"], row["bytes"]) for row in rows},
                         {(op, kind, size) for op in ("all_reduce", "all_gather") for kind in ("f32", "bf16") for size in (4, 1 << 20)})
        for row in rows:
            with self.subTest(row=row):
                self.assertEqual((row["wrong"], row["ranks"], row["nodes"]), (None if row["algorithm"] == "copy" else 0, 2, 1))
                self.assertGreater(row["min_ms"], 0)
                self.assertLessEqual(row["min_ms"], row["median_ms"])
                self.assertLessEqual(row["median_ms"], row["p99_ms"])
                factor = {"all_reduce": 2 * (2 - 1) / 2, "all_gather": (2 - 1) / 2}[row["op"]]
                self.assertAlmostEqual(row["algbw_gbs"], row["bytes"] / row["median_ms"] / 1e6, delta=1e-6 * row["algbw_gbs"])
                self.assertAlmostEqual(row["busbw_gbs"], factor * row["algbw_gbs"], delta=1e-6 * row["algbw_gbs"])
        shaped = run("bench", "collectives", "--nodes", "2x2", "--sizes", "64KiB", "--seconds", 0.02, "--json", ranks=4)
        self.assertEqual(shaped.returncode, 0, shaped.stderr)
        self.assertIn("hierarchical", {row["algorithm"] for row in json.loads(shaped.stdout)["rows"]})
        for wrong in (["--sizes", "4X"], ["--types", "f8"], ["--ops", "gossip"], ["--sizes", "0"], ["--nodes", "2x3"]):
            self.expect_refused(run("bench", "collectives", *wrong, ranks=2), 2, wrong[1])

    def test_usage_errors_exit_2_and_say_what_to_do(self):
        self.expect_refused(run("train"), 2, "recipe")
        self.expect_refused(run("trian"), 2, "lockstep trian: no such command", "did you mean train?")
        self.expect_refused(run("train", self.recipe, "--set", "bacth=8"), 2, "batch")
        self.expect_refused(run("train", self.recipe, "--set", "batch=0"), 2, "batch")
        self.expect_refused(run("train", self.recipe, "--out", self.folder / "full", "--set", "max_boxes=1"), 2, "max_boxes", "2 boxes")
        self.expect_refused(run("train", self.recipe, "--out", self.trained), 2, "--resume")
        self.expect_refused(run("train", self.recipe, "--resume", self.trained, "--set", "optimizer.learning_rate=1"), 2, "recipe.resolved.toml",
                            "optimizer.learning_rate = 1.0 instead of")
        self.expect_refused(run("predict", self.trained, self.photos, "--tile", "big"), 2, "--tile")

    def test_failures_exit_1_and_name_the_file(self):
        broken = self.folder / "broken.png"
        broken.write_bytes(b"no image")
        self.expect_refused(run("predict", self.trained, broken), 1, "broken.png")
        among_others = run("predict", self.trained, broken, self.photos, "--json")
        self.expect_refused(among_others, 1, "broken.png", "1 of 14 files could not be read")
        self.assertEqual(13, sum("detections" in image for image in json.loads(among_others.stdout)["images"]))
        self.expect_refused(run("predict", self.folder / "nowhere", broken), 1, "nowhere")
        self.expect_refused(run("inspect", self.folder / "nowhere"), 1, "nowhere")
        self.expect_refused(run("train", self.recipe, "--resume", self.folder / "nowhere"), 1, "--resume", "no such directory")
        self.expect_refused(run("train", self.recipe, "--out", self.folder / "none", "--set", f"data.train={self.folder}/nowhere"), 1, "nowhere")
        self.assertFalse((self.folder / "none" / "metrics.jsonl").exists(), "nothing half-written")

    def test_predict_overwrites_nothing(self):
        copies = self.folder / "copies"
        copies.mkdir()
        for name in ("scene-00.png", "scene-01.png"):
            shutil.copy(self.photos / name, copies)
        before = (copies / "scene-00.png").read_bytes()
        self.expect_refused(run("predict", self.trained, copies, "--out", copies), 2, "overwrite", "scene-00.png")
        self.assertEqual(before, (copies / "scene-00.png").read_bytes())
        self.expect_refused(run("predict", self.trained, copies / "scene-00.png", self.photos / "scene-00.png", "--out", self.folder / "both"),
                            2, "would both be drawn")

    def test_eval_of_another_network_is_refused(self):
        weights = self.folder / "other.safetensors"
        raw = (self.trained / "weights.safetensors").read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        header["__metadata__"]["model"] = "yolov10s"
        text = json.dumps(header).encode()
        weights.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
        self.expect_refused(run("eval", weights, "--data", self.data), 1, "not the weights of yolov10s")

    def test_an_epoch_that_is_cut_short_has_its_line(self):
        out = self.folder / "cut"
        self.assertEqual(0, run("train", self.recipe, "--out", out, "--set", "max_steps=6").returncode)
        whole, cut = (line for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if line["kind"] == "epoch")
        self.assertEqual((1, 4, None), (whole["epoch"], whole["step"], whole.get("steps_left_out")))
        self.assertEqual((2, 6, 2), (cut["epoch"], cut["step"], cut["steps_left_out"]))
        self.assertEqual(json.loads((out / "summary.json").read_text())["metrics"]["AP50"], cut["AP50"])

    def lines(self, out, kind):
        return [line for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if line["kind"] == kind]

    def test_steps_that_are_not_finite_stop_or_are_skipped(self):
        raw = bytearray((self.trained / "weights.safetensors").read_bytes())
        length = int.from_bytes(raw[:8], "little")
        at = 8 + length + json.loads(raw[8 : 8 + length])["model.0.conv.weight"]["data_offsets"][0]
        raw[at : at + 4] = struct.pack("<f", float("nan"))
        poisoned = self.folder / "poisoned.safetensors"
        poisoned.write_bytes(raw)
        broken = ("--set", f"initial_weights={poisoned}", "--set", "max_steps=2", "--set", "data.validation=")
        out = self.folder / "nan"
        self.expect_refused(run("train", self.recipe, "--out", out, *broken, ranks=2), 1, "step 1 (epoch 1)", "nan", "model.",
                            "rank 0", "rank 1", "not finite in a micro-step of the samples", 'on_nan = "skip"')
        self.assertFalse((out / "checkpoints").exists())
        skipped = self.folder / "nan-skipped"
        result = run("train", self.recipe, "--out", skipped, *broken, "--set", "on_nan=skip", ranks=2)
        self.assertEqual(0, result.returncode, result.stderr[-2000:])
        self.assertEqual([True, True], [line["skipped_step"] for line in self.lines(skipped, "step")])
        self.assertEqual(2, json.loads((skipped / "summary.json").read_text())["skipped_steps"])

    def test_out_of_memory_proposes_the_accumulation_that_keeps_the_batch(self):
        limit = 6 << 30  # of address space, of which LibTorch alone takes more than 1 GiB

        def limited():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        result = subprocess.run([LOCKSTEP, "train", self.recipe, "--out", self.folder / "large", "--set", "batch=4096",
                                 "--set", "image_size=1280", "--set", "data.cache_mib=0", "--set", "data.prefetch=1"],
                                capture_output=True, text=True, timeout=120, preexec_fn=limited)
        self.assertEqual(1, result.returncode, result.stderr[-2000:])
        self.assertIn("out of memory", result.stderr)
        self.assertIn("accumulate = 2 keeps the effective batch of 4096", result.stderr)

    def test_frozen_parameters_stay_also_over_a_resume(self):
        out = self.folder / "frozen"
        frozen = ("--set", "optimizer.rate_factors=model.0=0 model.1=0.1")
        self.assertEqual(0, run("train", self.recipe, "--out", out, *frozen, "--set", f"initial_weights={self.trained}/weights.safetensors",
                                "--set", "max_steps=2", ranks=2).returncode)
        self.assertEqual(0, run("train", self.recipe, "--resume", out, *frozen, "--set", f"initial_weights={self.trained}/weights.safetensors", ranks=2).returncode)
        before, after = (self.tensors(folder / "weights.safetensors") for folder in (self.trained, out))
        for name in before:
            if name.startswith("model.0.") and ".bn.running" not in name and "num_batches" not in name:
                self.assertEqual(before[name], after[name], name)
        self.assertNotEqual(before["model.1.conv.weight"], after["model.1.conv.weight"])
        self.expect_refused(run("train", self.recipe, "--out", self.folder / "none", "--set", "optimizer.rate_factors=modle=0"), 2, "modle", "model.0")

    def tensors(self, path):
        """The bytes of each tensor of a safetensors file, by name."""
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        entries = json.loads(raw[8 : 8 + length])
        return {name: raw[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]]
                for name, entry in entries.items() if name != "__metadata__"}

    def test_the_rate_follows_results_and_a_run_without_better_ones_ends(self):
        out = self.folder / "plateau"
        # With a rate of almost nothing no result is better than the first.
        result = run("train", self.recipe, "--out", out, "--set", "epochs=9", "--set", "schedule.name=plateau", "--set", "schedule.patience=2",
                     "--set", "optimizer.learning_rate=1e-12", "--set", "schedule.warmup_epochs=0", "--set", "evaluation.patience=4",
                     "--set", "evaluation.weights=live", "--set", "batch_norm=frozen", ranks=2)
        self.assertEqual(0, result.returncode, result.stderr[-2000:])
        self.assertIn("evaluation.patience", result.stderr)
        epochs = self.lines(out, "epoch")
        self.assertEqual([True] + 4 * [False], [line.get("is_best", False) for line in epochs])
        self.assertEqual([1e-12] * 12 + [1e-13] * 8, [round(line["learning_rate"], 15) for line in self.lines(out, "step")])
        self.assertTrue((out / "best.safetensors").is_file())
        self.assertEqual(4, json.loads((out / "summary.json").read_text())["best_step"])

    def test_settings_of_communication_reach_the_ranks(self):
        out = self.folder / "rounded"
        result = run("train", "--set", "epochs=2", self.recipe, "--out", out, "--set", "communication.topology=flat",
                     "--set", "communication.wire=bf16", "--set", "communication.algorithm=central", "--set", "optimizer.zero_stage=0", ranks=2)
        self.assertEqual(0, result.returncode, result.stderr[-2000:])
        self.assertIn("MPI (central all-reduce)", result.stderr)
        epoch = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()][-1]
        self.assertEqual("epoch", epoch["kind"])
        self.assertGreater(epoch["gradients_sent_mib"], 0)
        self.assertGreater(epoch["wire_error"], 1e-4)  # of eight significant bits
        self.assertLess(epoch["wire_error"], 4e-3)
        self.expect_refused(run("train", self.recipe, "--out", self.folder / "hops", "--set", "communication.wire=bf16",
                                "--set", "communication.algorithm=ring", ranks=2), 2, "ring", "direct")

    def test_communication_is_chosen_by_measurement_and_kept_by_a_resumed_run(self):
        out = self.folder / "chosen"
        settings = ["--set", "communication.topology=flat", "--set", "epochs=2"]

        def chosen():
            recipe = tomllib.loads((out / "recipe.resolved.toml").read_text())
            return recipe["communication"]["algorithm"], recipe["communication"]["bucket_mib"]

        result = run("train", self.recipe, "--out", out, *settings, "--set", "max_steps=2", ranks=2)
        self.assertEqual(0, result.returncode, result.stderr[-2000:])
        self.assertRegex(result.stderr, r"chosen: \w+ all-reduce, buckets of [\d.]+ MiB, measured \(direct, 1.0 MiB: .* ms.*ring.*halving_doubling")
        algorithm, bucket = chosen()
        self.assertIn(algorithm, ("direct", "ring", "halving_doubling"))
        self.assertIn(bucket, (1, 4, 16))
        (out / "summary.json").unlink()  # as if it had been killed
        result = run("train", self.recipe, "--resume", out, *settings, "--set", "max_steps=3", ranks=2)
        self.assertEqual(0, result.returncode, result.stderr[-2000:])
        self.assertIn(f"chosen: {algorithm} all-reduce", result.stderr)
        self.assertIn(", as in ", result.stderr)
        self.assertEqual((algorithm, bucket), chosen())

    def test_parameters_that_are_gathered_over_mpi(self):
        losses = {}
        for stage in (0, 3):
            out = self.folder / f"stage-{stage}"
            result = run("train", self.recipe, "--out", out, "--set", "epochs=2", "--set", "communication.topology=flat",
                         "--set", "batch_norm=sync", "--set", f"optimizer.zero_stage={stage}", ranks=2)
            self.assertEqual(0, result.returncode, result.stderr[-2000:])
            losses[stage] = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
        self.assertAlmostEqual(losses[0], losses[3], delta=1e-3 * losses[0])

    def test_shards_of_each_node_train_save_and_resume_elsewhere(self):
        losses = {}
        settings = ["--set", "communication.topology=2x2", "--set", "batch_norm=sync", "--set", "communication.algorithm=direct"]
        by_node = ["--set", "optimizer.zero_stage=3", "--set", "optimizer.zero_scope=node"]
        for name, more in (("whole", ["--set", "optimizer.zero_stage=0"]), ("by-node", by_node)):
            out = self.folder / name
            result = run("train", self.recipe, "--out", out, *settings, *more, "--set", "epochs=3", "--set", "max_steps=4", ranks=4)
            self.assertEqual(0, result.returncode, result.stderr[-2000:])
            (out / "summary.json").unlink()  # as if it had been killed
            result = run("train", self.recipe, "--resume", out, "--set", "batch_norm=sync", "--set", "optimizer.zero_stage=0", "--set", "epochs=3",
                         "--set", "max_steps=6", ranks=2)
            self.assertEqual(0, result.returncode, result.stderr[-2000:])
            losses[name] = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(len(losses["whole"]), len(losses["by-node"]))
        for whole, by_node in zip(losses["whole"], losses["by-node"]):
            self.assertAlmostEqual(whole, by_node, delta=1e-3 * whole)
        self.expect_refused(run("train", self.recipe, "--out", self.folder / "uneven", *settings[2:], "--set", "communication.topology=flat",
                                "--set", "optimizer.zero_stage=1", "--set", "optimizer.zero_scope=node", ranks=2), 2, "every node")

    def test_ranks_with_other_settings_of_communication_all_say_so(self):
        out = self.folder / "apart"
        script = 'exec "$0" train "$1" --out "$2" --set communication.topology=$([ "$OMPI_COMM_WORLD_RANK" = 1 ] && echo flat || echo auto)'
        result = subprocess.run([MPIRUN, "2", "60", "sh", "-c", script, LOCKSTEP, self.recipe, out], capture_output=True, text=True, timeout=90)
        self.expect_refused(result, 1, "rank 1 on", 'communication.topology: "flat"')
        self.assertFalse(out.exists())

    def test_more_ranks_than_images_of_a_step(self):
        result = run("train", self.recipe, "--out", self.folder / "thin", "--set", "batch=2", ranks=3)
        self.expect_refused(result, 2, "ranks")

    def test_signal_saves_and_exits_75_and_resumes_at_another_number_of_ranks(self):
        out = self.folder / "stopped"
        command = [MPIRUN, "2", "200", LOCKSTEP, "train", self.recipe, "--out", out, "--set", "epochs=200"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        metrics = out / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size > 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        # mpirun hands SIGUSR1 on to the ranks; after a SIGTERM it would kill them within a second.
        os.kill(self.child_of(process.pid, "mpirun"), signal.SIGUSR1)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(75, process.returncode, errors[-2000:])
        self.assertTrue((out / "weights.safetensors").exists(), "what it has come to can be looked at")
        done = json.loads(metrics.read_text().splitlines()[-1])["step"]
        result = run("train", self.recipe, "--resume", out, "--set", "epochs=200", "--set", f"max_steps={done + 6}", ranks=3)
        self.assertEqual(0, result.returncode, result.stderr[-2000:])
        self.assertIn("resumed", result.stderr)
        self.expect_the_same_in_tensorboard(out)
        steps = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual(list(range(1, done + 7)), [line["step"] for line in steps if line["kind"] == "step"])

    @staticmethod
    def child_of(process, name):
        """The process itself or the first below it with this name."""
        todo = [process]
        while todo:
            candidate = todo.pop(0)
            if pathlib.Path(f"/proc/{candidate}/comm").read_text().startswith(name):
                return candidate
            todo += map(int, pathlib.Path(f"/proc/{candidate}/task/{candidate}/children").read_text().split())
        raise LookupError(f"no {name} below {process}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
