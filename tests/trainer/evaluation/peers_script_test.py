"""peers_script_test.py SCRIPT: what bench/peers/coco_eval.py must refuse, with stand-ins for lockstep."""

import importlib.util
import json
import math
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv[1])
spec = importlib.util.spec_from_file_location("peers", SCRIPT)
peers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peers)


class Difference(unittest.TestCase):
    def test_is_the_greatest(self):
        self.assertEqual(0.25, peers.difference([0.5] * 11 + [0.75], [0.5] * 12))
        self.assertEqual(0, peers.difference([-1] * 12, [-1] * 12))

    def test_no_number_differs_from_everything(self):
        for value in (math.nan, math.inf, -math.inf):
            for at in (0, 5, 11):
                wrong = [0.5] * 12
                wrong[at] = value
                for ours, theirs in ((wrong, [0.5] * 12), ([0.5] * 12, wrong), (wrong, wrong)):
                    self.assertEqual(math.inf, peers.difference(ours, theirs), (value, at))

    def test_a_missing_score_differs(self):
        self.assertEqual(math.inf, peers.difference([0.5] * 11, [0.5] * 12))
        self.assertEqual(math.inf, peers.difference([], []))


class Orders(unittest.TestCase):
    def test_everyone_is_first_second_and_third(self):
        orders = peers.orders(["a", "b", "c"], 4)
        self.assertEqual([list("abc"), list("bca"), list("cab"), list("abc")], orders)


class Script(unittest.TestCase):
    """A small set, whose answers come once from pycocotools itself."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        paths = peers.make_set(cls.folder, images=20, per_image=10, seed=3)
        answer = subprocess.run([sys.executable, SCRIPT, "--peer", "pycocotools", *paths], capture_output=True, text=True, check=True)
        cls.stats = json.loads(answer.stdout)["stats"]

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def run_with(self, stats, evaluation_seconds, *options):
        """With a program in lockstep's place that gives these scores at once."""
        answer = json.dumps({"stats": stats, "evaluation_seconds": evaluation_seconds, "images": 20, "boxes": 1, "detections": 200})
        program = self.folder / "stand_in"
        program.write_text(f"#!/bin/sh\ncat <<'ANSWER'\n{answer}\nANSWER\n")
        os.chmod(program, stat.S_IRWXU)
        return subprocess.run([sys.executable, SCRIPT, program, "--keep", self.folder, "--rounds", "1", *options],
                              capture_output=True, text=True)

    def test_agreeing_and_faster(self):
        result = self.run_with(self.stats, 1e-6, "--require-faster", "--json", "--threads", "2")
        self.assertEqual(0, result.returncode, result.stderr)
        record = json.loads(result.stdout)
        self.assertEqual((2, os.cpu_count()), (record["threads"], record["cores"]))
        self.assertEqual({"lockstep", "python", "numpy", "pycocotools", "faster-coco-eval"}, set(record["versions"]))
        self.assertEqual({"lockstep", "pycocotools", "faster-coco-eval"}, set(record["samples_seconds"]))

    def test_slower_fails_only_where_it_is_asked_for(self):
        result = self.run_with(self.stats, 1000.0, "--require-faster")
        self.assertEqual(1, result.returncode)
        for peer in ("pycocotools", "faster-coco-eval"):
            self.assertIn(f"not faster than {peer} in evaluation", result.stderr)
        self.assertNotIn("in process", result.stderr)
        self.assertEqual(0, self.run_with(self.stats, 1000.0).returncode)

    def test_another_score_fails(self):
        for wrong in (math.nan, self.stats[4] + 1e-11):
            result = self.run_with([*self.stats[:4], wrong, *self.stats[5:]], 1e-6)
            self.assertEqual(1, result.returncode, wrong)
            self.assertIn("lockstep and pycocotools disagree", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
