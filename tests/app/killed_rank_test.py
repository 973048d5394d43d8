"""killed_rank_test.py LOCKSTEP MPIRUN_SCRIPT: after kill -9 of a rank nothing is left: no process, no shared memory."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from small_classification import small_classification

LOCKSTEP, MPIRUN = sys.argv[1], sys.argv[2]
LIMIT = 120  # seconds


def processes_of(session):
    """Ids and names of what runs in a session, the dead that nobody has waited for left out."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, _, its_session = rest.split()[:4]
        if int(its_session) == session and state != "Z":
            found[int(entry.name)] = name
    return found


def mapped(process, part):
    """Names of the process's mappings that have `part` in them."""
    lines = pathlib.Path(f"/proc/{process}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6 and part in line}


class KilledRank(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.recipe = small_classification(LOCKSTEP, self.folder)

    def test_leaves_nothing(self):
        run = self.folder / "run"
        job = subprocess.Popen([MPIRUN, "2", str(LIMIT), LOCKSTEP, "train", self.recipe, "--out", run],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(self.end, job.pid)
        metrics = run / "metrics.jsonl"
        deadline = time.monotonic() + LIMIT
        while not (metrics.exists() and metrics.read_text().count("\n") > 8) and time.monotonic() < deadline:
            time.sleep(0.05)
        ranks = [process for process, name in processes_of(job.pid).items() if name.startswith("lockstep")]
        self.assertEqual(2, len(ranks), processes_of(job.pid))

        segments = {process: mapped(process, "memfd:lockstep") for process in ranks}
        self.assertTrue(all(segments.values()), "the ranks share memory without a name")
        named = set().union(*(mapped(process, "/dev/shm/") for process in ranks))  # MPI's own
        self.assertFalse([name for name in named if "lockstep" in name], named)

        os.kill(ranks[1], signal.SIGKILL)
        _, said = job.communicate(timeout=LIMIT)
        self.assertNotEqual(0, job.returncode)
        self.assertIn("2 ranks of a node", said, "decoded images were shared")
        deadline = time.monotonic() + LIMIT
        while processes_of(job.pid) and time.monotonic() < deadline:  # the launcher's helpers end after it
            time.sleep(0.05)
        self.assertEqual({}, processes_of(job.pid))
        self.assertEqual([], [name for name in named if pathlib.Path(name.split(" (deleted)")[0]).exists()])

    @staticmethod
    def end(session):
        for process in processes_of(session):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
