"""profile_test.py LOCKSTEP MPIRUN_SCRIPT: lockstep train --profile draws what every rank did, and the parts of a step add up."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from small_classification import small_classification

LOCKSTEP, MPIRUN = sys.argv[1], sys.argv[2]
LIMIT = 120  # seconds
PHASES = ["reading data", "forward", "backward", "waiting for gradients", "optimizer", "end of a step"]


class Profile(unittest.TestCase):
    def train(self, *options):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        run = subprocess.run([MPIRUN, "2", str(LIMIT), LOCKSTEP, "train", small_classification(LOCKSTEP, folder),
                              "--out", folder / "run", *options], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(0, run.returncode, run.stderr)
        return folder / "run"

    def test_every_rank_and_every_phase_is_drawn(self):
        for steps, options in ((3, ["--profile"]), (2, ["--profile", "2"])):
            with self.subTest(steps=steps):
                run = self.train("--set", "max_steps=10", *options)
                events = json.loads((run / "trace.json").read_text())["traceEvents"]
                names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
                for rank in (0, 1):
                    spans = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
                    phases = [e for e in spans if names[rank, e["tid"]] == "phases"]
                    self.assertEqual(PHASES * steps, [e["name"] for e in sorted(phases, key=lambda e: e["ts"])][:6 * steps])
                    reduced = [e for e in spans if names[rank, e["tid"]] == "gradients"]
                    self.assertTrue(any("bucket 0" in e["name"] for e in reduced), reduced)
                    for event in reduced:  # beside this rank's own phases, not before or after all of them
                        self.assertGreaterEqual(event["ts"], phases[0]["ts"])
                        self.assertGreaterEqual(event["dur"], 0)

    def test_a_run_that_ends_early_draws_what_there_was(self):
        run = self.train("--set", "max_steps=6", "--profile", "100")
        events = json.loads((run / "trace.json").read_text())["traceEvents"]
        self.assertEqual(2, sum(e["name"] == "forward" for e in events))

    def test_without_it_nothing_is_drawn(self):
        self.assertFalse((self.train("--set", "max_steps=6") / "trace.json").exists())

    def test_parts_add_up(self):
        run = self.train("--set", "max_steps=8")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        epochs = [line for line in lines if line["kind"] == "epoch"]
        self.assertTrue(epochs)
        for epoch in epochs:
            steps = [line for line in lines if line["kind"] == "step" and line["epoch"] == epoch["epoch"]]
            parts = epoch["step_parts"]
            for name, part in parts.items():
                self.assertLessEqual(part["least"], part["mean"] + 1e-9, name)
                self.assertLessEqual(part["mean"], part["greatest"] + 1e-9, name)
                self.assertIn(part["greatest_rank"], (0, 1), name)
            least, greatest = (sum(part[of] for part in parts.values()) for of in ("least", "greatest"))
            of_rank_0 = epoch["seconds"] / len(steps)
            self.assertLessEqual(least, of_rank_0 + 1e-9)
            self.assertGreaterEqual(greatest, of_rank_0 - 1e-9)
            for line in steps:
                known = sum(line[key] for key in ("data_wait_seconds", "forward_seconds", "backward_seconds",
                                                  "exposed_communication_seconds", "optimizer_seconds"))
                self.assertLessEqual(known, line["step_seconds"] * 1.001, line)
                for key in ("forward_seconds", "backward_seconds", "optimizer_seconds"):
                    self.assertGreater(line[key], 0, key)

    def test_a_number_that_is_none_is_refused(self):
        for given in ("0", "many"):
            run = subprocess.run([LOCKSTEP, "train", "recipe.toml", "--profile", given], capture_output=True, text=True,
                                 timeout=LIMIT)
            self.assertEqual(2, run.returncode, run.stderr)
            self.assertIn("--profile", run.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
