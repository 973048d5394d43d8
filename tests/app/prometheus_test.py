"""prometheus_test.py LOCKSTEP MPIRUN_SCRIPT DASHBOARD: a training's figures reach the real Prometheus, and every query of the
Grafana dashboard finds some there.

The server is taken from the path, or unpacked from Debian's package, which isn't installed: it would leave a service running.
"""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

from small_classification import small_classification

LOCKSTEP, MPIRUN, DASHBOARD = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
LIMIT = 120  # seconds


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def server_program(folder):
    """None where it can't be had."""
    if found := shutil.which("prometheus"):
        return found
    folder.mkdir()
    got = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, timeout=LIMIT)
    packages = list(folder.glob("prometheus_*.deb"))
    if got.returncode != 0 or not packages:
        return None
    subprocess.run(["dpkg", "-x", packages[0], folder], check=True, timeout=LIMIT)
    return folder / "usr/bin/prometheus"


def dashboard_queries():
    return [target["expr"].replace("$instance", ".*")
            for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]


class Prometheus(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def start(self, *command, **options):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait, LIMIT)
        self.addCleanup(process.terminate)
        return process

    def train(self):
        """Two ranks; the address of their figures."""
        data = self.folder / "data"
        recipe = small_classification(LOCKSTEP, self.folder)
        job = self.start(MPIRUN, "2", str(LIMIT), LOCKSTEP, "train", recipe, "--out", self.folder / "run",
                         "--set", "telemetry.prometheus=127.0.0.1:0", "--set", f"data.validation={data}",
                         "--set", "evaluation.every_epochs=3")
        for line in job.stderr:
            if found := re.search(r"figures for Prometheus: (http://127\.0\.0\.1:\d+/metrics)", line):
                return found.group(1)
        self.fail(f"no address was said; exit code {job.wait(LIMIT)}")

    def wait_until(self, what, found):
        deadline = time.monotonic() + LIMIT
        while not (result := found()):
            self.assertLess(time.monotonic(), deadline, f"in vain for {what}")
            time.sleep(0.2)
        return result

    def test_figures_are_those_of_the_metrics(self):
        url = self.train()
        self.wait_until("an evaluation", lambda: 'lockstep_evaluation{metric="accuracy"}' in fetch(url))
        values = dict(line.rsplit(" ", 1) for line in fetch(url).splitlines() if not line.startswith("#"))
        steps = int(float(values["lockstep_steps_total"]))
        lines = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()[:-1]]
        line = next(line for line in lines if line["kind"] == "step" and line["step"] == steps)
        for name, key in (("lockstep_loss", "loss"), ("lockstep_learning_rate", "learning_rate"),
                          ('lockstep_step_seconds{part="backward"}', "backward_seconds"), ("lockstep_step", "step")):
            self.assertAlmostEqual(line[key], float(values[name]), delta=1e-6 * abs(line[key]), msg=name)
        self.assertEqual(sum(l["images"] for l in lines if l["kind"] == "step" and l["step"] <= steps),
                         float(values["lockstep_images_total"]))
        self.assertIn(f'run="{self.folder}/run"', next(name for name in values if name.startswith("lockstep_run_info")))
        self.assertGreater(float(values["lockstep_memory_bytes"]), 1 << 20)
        known = {name.partition("{")[0] for name in values}
        for query in dashboard_queries():
            for name in re.findall(r"lockstep_\w+", query):
                self.assertIn(name, known, query)

    def test_the_server_answers_every_query_of_the_dashboard(self):
        program = server_program(self.folder / "package")
        if program is None:
            self.skipTest("no prometheus on the path, and apt-get can't download it")
        url = urllib.parse.urlparse(self.train())
        configuration = self.folder / "prometheus.yml"
        configuration.write_text("global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: lockstep\n"
                                 f"  static_configs: [{{targets: ['{url.netloc}']}}]\n")
        port = free_port()
        self.start(program, f"--config.file={configuration}", f"--storage.tsdb.path={self.folder / 'series'}",
                   f"--web.listen-address=127.0.0.1:{port}", "--log.level=error")

        def answer(query):
            try:
                reply = json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})))
            except OSError:
                return None  # not up yet
            self.assertEqual("success", reply["status"], query)
            return reply["data"]["result"]

        for query in dashboard_queries():
            self.wait_until(query, lambda query=query: answer(query))

    def test_an_address_that_is_taken_or_wrong_is_refused(self):
        recipe = small_classification(LOCKSTEP, self.folder)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            for address in (f"127.0.0.1:{taken.getsockname()[1]}", "no such place"):
                with self.subTest(address):
                    run = subprocess.run([LOCKSTEP, "train", recipe, "--out", self.folder / "run",
                                          "--set", f"telemetry.prometheus={address}"],
                                         capture_output=True, text=True, timeout=LIMIT)
                    self.assertEqual(2, run.returncode, run.stderr)
                    self.assertIn("nothing can listen there", run.stderr)
                    self.assertFalse((self.folder / "run/metrics.jsonl").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
