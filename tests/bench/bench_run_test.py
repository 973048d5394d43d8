"""bench_run_test.py LOCKSTEP CHECKOUT: bench/plans/smoke.toml from import to report, as a person runs it."""

import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

import report_page_test

LOCKSTEP, CHECKOUT = sys.argv[1], pathlib.Path(sys.argv[2])
ARTICLES = "/usr/share/datasets/fashion-mnist"
VERDICTS = {"holds", "falls short", "exceeds", "contradicted", "not measurable here"}


def photo(path, side=256):
    """A gradient, as an 8-bit RGB PNG."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(v for x in range(side) for v in (x, y, (x * y) % 256)) for y in range(side))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Smoke(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "bench").symlink_to(CHECKOUT / "bench")
        photo(cls.folder / "photo.png")
        for split, name, images in (("train", "train", 64), ("t10k", "validation", 32)):
            made = cls.lockstep("import", "composed", "--articles", ARTICLES, "--photos", "photo.png", "--size", 64, "--smallest", 20,
                                "--largest", 30, "--split", split, "--images", images, "--out", f"data/smoke/{name}")
            assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @staticmethod
    def environment():
        """Without the launcher's variables of a test that was started under one."""
        return {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "SLURM_"))}

    @classmethod
    def lockstep(cls, *words):
        return subprocess.run([LOCKSTEP, *map(str, words)], capture_output=True, text=True, cwd=cls.folder, env=cls.environment(),
                              timeout=900)

    def records(self, sweep):
        return {path.stem: json.loads(path.read_text()) for path in sorted((self.folder / sweep / "records").iterdir())}

    def test_a_sweep_from_dry_run_to_comparison(self):
        plan = "bench/plans/smoke.toml"
        dry = self.lockstep("bench", "run", plan, "--out", "sweep", "--dry-run")
        self.assertEqual(0, dry.returncode, dry.stderr)
        self.assertIn("41 launches, 0 made; predicted time: 2:09", dry.stdout)
        self.assertIn("not measurable yet: graph", dry.stdout)
        self.assertFalse((self.folder / "sweep").exists(), "--dry-run writes nothing")

        begin = time.monotonic()
        run = self.lockstep("bench", "run", plan, "--out", "sweep")
        seconds = time.monotonic() - begin
        self.assertEqual(0, run.returncode, run.stderr)
        records = list(self.records("sweep").values())
        self.assertGreaterEqual(len(records), 5, "at least the first block")
        print(f"{len(records)} launches in {seconds:.0f} s", file=sys.stderr)
        for record in records:
            self.assertEqual("ok", record["status"], record["reason"])
            self.assertGreater(record["metrics"]["memory_mib"], 50, record["id"])
            self.assertEqual(record["ranks"] == 2, record["launcher"] == "mpirun")
            self.assertTrue(any(name.startswith("libtorch") for name in record["provenance"]["libraries"]))
            self.assertEqual(16, len(record["data_hashes"]["data/smoke/train"]))
            if record["measurement"] == "speed":
                self.assertEqual(8, len(record["steps"]["seconds"]))
        # One process of FP32 does the same arithmetic each time; the harness sees it.
        digests = {record["loss_digest"] for record in records if record["arm"] in ("baseline", "again") and record["measurement"] == "speed"}
        self.assertEqual(1, len(digests))

        sweep = self.folder / "sweep"
        again = self.lockstep("bench", "report", "sweep")
        self.assertEqual(0, again.returncode, again.stderr)
        self.assertEqual(["sweep/report.md", "sweep/report.html", "sweep/verdicts.json"], again.stdout.split())
        verdicts = json.loads((sweep / "verdicts.json").read_text())["claims"]
        self.assertLessEqual({row["verdict"] for row in verdicts}, VERDICTS)
        self.assertEqual(31, len(verdicts))
        for path in [*sweep.glob("records/*"), *sweep.glob("report.*"), sweep / "sweep.json", sweep / "verdicts.json"]:
            for private in (str(self.folder), str(CHECKOUT), str(pathlib.Path(LOCKSTEP).parent)):
                self.assertNotIn(private, path.read_text(), path)
        page = (sweep / "report.html").read_text()
        self.assertEqual(page.count("<figure>"), page.count("<figcaption>"))
        self.assertIsNone(re.search(r"https?:|src=|<script|<link|@import", page))
        self.assertIn("graph", (sweep / "report.md").read_text())

        if report_page_test.program():
            self.assertEqual([], report_page_test.problems_of(sweep / "report.html"))
        else:
            print("no chromium here: the page was not opened", file=sys.stderr)

        same = self.lockstep("bench", "compare", "sweep", "sweep", "--check")
        self.assertEqual(0, same.returncode, same.stderr)
        self.assertIn("0 regressions", same.stdout)

    def test_a_killed_runner_goes_on_and_a_failing_arm_is_a_row(self):
        (self.folder / "plan.toml").write_text("""
            title = "Killed"
            recipe = "bench/plans/smoke_recipe.toml"
            attempts = 1
            [speed]
            blocks = 6
            steps = 8
            [factors.weights]
            initial_weights = ["", "nowhere.safetensors"]
            """)
        chance = random.Random(5)
        seen = {}
        for _ in range(3):
            runner = subprocess.Popen([LOCKSTEP, "bench", "run", "plan.toml", "--out", "killed"], cwd=self.folder, env=self.environment(),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            begun = time.monotonic()
            while len(list(self.folder.glob("killed/records/*"))) == len(seen) and time.monotonic() - begun < 120:
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 3))
            runner.send_signal(signal.SIGKILL)
            runner.wait()
            now = self.records("killed")
            self.assertGreater(len(now), len(seen))
            self.assertEqual(seen, {name: now[name] for name in seen}, "what was recorded stays")
            seen = now
        last = self.lockstep("bench", "run", "plan.toml", "--out", "killed")
        self.assertEqual(0, last.returncode, last.stderr)
        self.assertIn("Failed: weights: exit code", last.stdout)
        records = self.records("killed")
        places = [(record["block"], record["arm"]) for record in records.values()]
        self.assertEqual(len(places), len(set(places)), "nothing was launched twice")
        self.assertEqual(6 + 6 + 2, len(places))
        for record in records.values():
            self.assertEqual("failed" if record["arm"] == "weights" else "ok", record["status"], record["reason"])
        self.assertIn("nowhere.safetensors", (self.folder / "killed/report.md").read_text())

    def test_wrong_calls_say_what_to_do(self):
        (self.folder / "wrong.toml").write_text('title = "t"\nrecipe = "bench/plans/smoke_recipe.toml"\n[speed]\n[factors.q]\nquantisation = ["a", "b"]\n')
        wrong = self.lockstep("bench", "run", "wrong.toml", "--dry-run")
        self.assertEqual(2, wrong.returncode)
        self.assertIn("which this version doesn't have yet", wrong.stderr)
        nothing = self.lockstep("bench", "report", "data")
        self.assertEqual(2, nothing.returncode)
        self.assertIn("holds no sweep", nothing.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
