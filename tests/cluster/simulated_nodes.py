"""Machines simulated by network namespaces (nodes.sh), for tests that need several."""

import os
import pathlib
import shutil
import subprocess

SCRIPT = str(pathlib.Path(__file__).resolve().parent / "nodes.sh")


def reason_to_skip(rate=None):
    """Why there can be no such machines here, or with `rate` no links of a rate; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "nsenter", "unshare"):
        if not shutil.which(tool):
            return f"there is no {tool}"
    prefix = f"l{os.getpid() % 100000}p"
    probe = subprocess.run([SCRIPT, prefix, "probe", *([rate] if rate else [])], capture_output=True, text=True)
    if probe.returncode != 0:
        subprocess.run([SCRIPT, prefix, "down"], capture_output=True)
    return f"no network namespaces here: {probe.stderr.strip()}" if probe.returncode != 0 else None


class Nodes:
    """`count` machines, until down(); their names are PREFIX0 and so on."""

    def __init__(self, count, rate=None):
        self.prefix = f"l{os.getpid() % 100000}n"
        self.count = count
        try:
            self.call("up", str(count), *([rate] if rate else []))
        except BaseException:
            self.down()
            raise

    def name(self, node):
        return f"{self.prefix}{node}"

    def call(self, *arguments):
        subprocess.run([SCRIPT, self.prefix, *arguments], check=True)

    def down(self):
        self.call("down")

    def power_off(self):
        for node in range(self.count):
            self.call("kill", self.name(node))

    def mpirun(self, ranks_per_node, *words):
        """The command that starts the words on all machines."""
        hosts = ",".join(f"{self.name(node)}:{ranks_per_node}" for node in range(self.count))
        return [SCRIPT, self.prefix, "mpirun", "--host", hosts, "-np", str(self.count * ranks_per_node), *map(str, words)]
