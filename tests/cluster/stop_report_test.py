"""stop_report_test.py FAILING_JOB: four ranks on two simulated machines, of which one goes wrong; who says what?"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from simulated_nodes import Nodes, reason_to_skip

JOB = sys.argv[1]
LIMIT = 60  # seconds; peers would wait for 100 where the job has no shorter deadline


@unittest.skipIf(reason_to_skip(), reason_to_skip())
class StopReportOfTwoMachines(unittest.TestCase):
    def setUp(self):
        self.nodes = Nodes(2)
        self.addCleanup(self.nodes.down)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_job(self, mode, after_start=None, launcher_hangs=False):
        """The exit code, the output, and stop_report.json or None. `launcher_hangs`: it is ended when all ranks have."""
        command = self.nodes.mpirun(2, "-x", "LOCKSTEP_TEST_DIRECTORY", JOB, mode)
        environment = os.environ | {"LOCKSTEP_TEST_DIRECTORY": str(self.folder)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        if after_start:
            threading.Thread(target=self.when_all_run, args=(after_start,)).start()
        if launcher_hangs:
            threading.Thread(target=self.when_all_ended, args=(self.nodes.power_off,)).start()
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.nodes.power_off()
            output, _ = process.communicate()
            self.fail(f"{mode}: still there after {LIMIT} s\n{output}")
        report = self.folder / "stop_report.json"
        return process.returncode, output, json.loads(report.read_text()) if report.exists() else None

    def when_all_run(self, action):
        records = [self.folder / f"flight/rank-{rank}.txt" for rank in range(4)]
        for _ in range(LIMIT * 10):
            if all(record.exists() and '"start"' in record.read_text() for record in records):
                break
            time.sleep(0.1)
        time.sleep(1)
        action()

    def ranks_on(self, node):
        listed = subprocess.run(["ip", "netns", "pids", self.nodes.name(node)], capture_output=True, text=True).stdout.split()
        names = [pathlib.Path(f"/proc/{process}/comm") for process in listed]
        return sum(name.exists() and JOB.rpartition("/")[2].startswith(name.read_text().strip()) for name in names)

    def when_all_ended(self, action):
        report = self.folder / "stop_report.json"
        for _ in range(LIMIT * 10):
            if report.exists() and self.ranks_on(0) == 0 and self.ranks_on(1) == 0:
                action()
                return
            time.sleep(0.1)

    def states(self, report):
        return [rank["state"] for rank in report["ranks"]]

    def test_all_is_well(self):
        code, output, report = self.run_job("none")
        self.assertEqual(0, code, output)
        self.assertEqual(4, output.count("reached the end"), output)
        self.assertIsNone(report)

    def test_an_error_on_the_other_machine_is_told_with_all_ranks(self):
        code, output, report = self.run_job("throw")
        self.assertEqual(1, code, output)
        self.assertIn(f"stop report: rank 3 on {self.nodes.name(1)} failed: disk full on purpose", output)
        self.assertEqual(1, output.count("stop report:"), output)
        self.assertEqual([0, 1, 2, 3], [rank["rank"] for rank in report["ranks"]])
        self.assertEqual("failed", self.states(report)[3])

    def test_a_killed_rank_of_the_other_machine(self):
        code, output, report = self.run_job("killed")
        self.assertNotEqual(0, code, output)
        self.assertIn(f"stop report: rank 3 on {self.nodes.name(1)} died", output)
        self.assertEqual("died", self.states(report)[3])

    def test_a_rank_of_the_other_machine_that_stands_still(self):
        code, output, report = self.run_job("stopped")
        self.assertEqual(1, code, output)
        self.assertIn(f"stop report: rank 3 on {self.nodes.name(1)} stopped by a signal", output)
        self.assertEqual([3], report["behind"])

    def test_a_rank_of_the_other_machine_that_does_not_come(self):
        code, output, report = self.run_job("absent")
        self.assertEqual(1, code, output)
        self.assertIn(f"stop report: waited in vain for rank 3 on {self.nodes.name(1)}", output)
        self.assertEqual([3], report["behind"])

    def test_the_power_of_a_machine_goes(self):
        code, output, report = self.run_job("absent", lambda: self.nodes.call("kill", self.nodes.name(1)))
        self.assertNotEqual(0, code, output)
        self.assertIn(f"stop report: rank 2 on {self.nodes.name(1)} died", output)
        self.assertEqual(["died", "out of reach"], self.states(report)[2:])

    def test_the_link_of_a_machine_is_down(self):
        # mpirun does not notice it, and waits for ever for its own daemon there.
        _, output, report = self.run_job("absent", lambda: self.nodes.call("link", self.nodes.name(1), "down"), launcher_hangs=True)
        self.assertIn(f"nothing is heard of rank 2 on {self.nodes.name(1)}, rank 3 on {self.nodes.name(1)}", output)
        self.assertEqual(["out of reach", "out of reach"], self.states(report)[2:])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
