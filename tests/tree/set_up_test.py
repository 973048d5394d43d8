"""The set-up of ./run on machines that lack something, with stand-ins for the package tools."""

import pathlib
import subprocess
import tempfile
import unittest

from sources import ROOT


class SetUp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.stand_in("env", 'while [[ $1 == *=* ]]; do shift; done; "$@"')

    def stand_in(self, name, script):
        """A command that does `script` and notes its call in the file `calls`."""
        path = self.folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> {self.folder}/calls\n{script}\n')
        path.chmod(0o755)
        return path

    def calls(self):
        path = self.folder / "calls"
        return path.read_text() if path.exists() else ""

    def bash(self, script):
        script = "\n".join([
            "set -euo pipefail",
            *(f"source '{ROOT}/{file}'" for file in ("versions.sh", "tools/common.sh", "tools/setup.sh")), script])
        run = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, text=True,
                             env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"})
        return run.returncode, run.stdout + run.stderr

    def machine(self, lacks, user, sudo="exit 1", install="exit 0"):
        self.stand_in("dpkg-query", "for name; do case $name in --*) ;; "
                      f"{lacks}) echo $name unknown ;; *) echo $name installed ;; esac; done")
        self.stand_in("id", f"echo {user}")
        self.stand_in("sudo", sudo)
        self.stand_in("apt-get", f'case "$*" in *install*) {install} ;; esac')
        self.stand_in("apt-cache", "exit 1")

    def test_does_nothing_where_everything_is_there(self):
        self.machine(lacks="none", user=1000)
        self.assertEqual((0, ""), self.bash("set_up_packages"))
        self.assertNotIn("apt-get", self.calls())

    def test_a_user_without_sudo_gets_the_command(self):
        self.machine(lacks="libhdf5-dev|cmake", user=1000)
        status, text = self.bash("set_up_packages")
        self.assertEqual(1, status)
        self.assertIn("missing packages: cmake libhdf5-dev\n", text)
        self.assertIn("sudo apt-get update && sudo apt-get install -y --no-install-recommends cmake libhdf5-dev\n", text)
        self.assertNotIn("apt-get", self.calls())

    def test_sudo_without_a_password_installs(self):
        self.machine(lacks="cmake", user=1000, sudo='shift; "$@"')
        status, text = self.bash("set_up_packages")
        self.assertEqual(0, status, text)
        self.assertIn("install -y --no-install-recommends cmake\n", self.calls())

    def test_root_installs_what_is_missing_only(self):
        self.machine(lacks="cmake", user=0)
        status, text = self.bash("set_up_packages")
        self.assertEqual(0, status, text)
        self.assertIn("install -y --no-install-recommends cmake\n", self.calls())
        self.assertNotIn("sudo", self.calls())

    def test_a_package_that_no_archive_has_is_named(self):
        self.machine(lacks="libcli11-dev", user=0, install="echo E: Unable to locate package; exit 100")
        status, text = self.bash("set_up_packages")
        self.assertEqual(1, status)
        self.assertIn("no such package in the configured archives: libcli11-dev", text)
        self.assertIn("to see why: apt-get install -y --no-install-recommends libcli11-dev", text)

    def test_wheels_are_installed_once_for_a_list(self):
        python = self.stand_in("python", "exit 0")
        (self.folder / ".venv/bin").mkdir(parents=True)
        python.rename(self.folder / ".venv/bin/python")
        for wheels, installs in (("one==1 two==2", 1), ("one==1 two==2", 1), ("one==1 two==3", 2)):
            status, text = self.bash(f"set_up_wheels some {wheels}")
            self.assertEqual(0, status, text)
            self.assertEqual(installs, self.calls().count("pip install"), wheels)

    def test_a_wheel_that_fails_is_named_and_tried_again(self):
        python = self.stand_in("python", "exit 1")
        (self.folder / ".venv/bin").mkdir(parents=True)
        python.rename(self.folder / ".venv/bin/python")
        for tries in (1, 2):
            status, text = self.bash("set_up_wheels some one==1")
            self.assertEqual(1, status)
            self.assertIn("could not install one==1", text)
            self.assertIn("pip install --no-deps one==1", text)
            self.assertEqual(tries, self.calls().count("pip install"))


class Usage(unittest.TestCase):
    def test_wrong_calls_end_with_two_before_anything_is_set_up(self):
        for arguments, says in ((["biuld"], "unknown command 'biuld'"), (["test", "--fast"], "unknown option '--fast'"),
                                (["build", "--preset", "quick"], "release, debug, asan or tsan, not 'quick'"),
                                (["build", "--preset"], "release, debug, asan or tsan, not ''")):
            run = subprocess.run([ROOT / "run", *arguments], capture_output=True, text=True)
            self.assertEqual((2, ""), (run.returncode, run.stdout))
            self.assertIn(says, run.stderr)

    def test_help(self):
        run = subprocess.run([ROOT / "run", "help"], capture_output=True, text=True)
        self.assertEqual(0, run.returncode)
        for command in ("demo", "test", "build", "package"):
            self.assertIn(f"./run {command} ", run.stdout)


class Options(unittest.TestCase):
    def test_what_cannot_act_is_refused(self):
        for arguments, fragment in ((["demo", "--preset", "asan"], "--preset goes with"), (["build", "--slow"], "--slow goes with"),
                                    (["package", "--", "-R", "x"], "after --"), (["test", "--preset", "fast"], "'fast'"), (["biuld"], "biuld")):
            with self.subTest(arguments=arguments):
                run = subprocess.run([ROOT / "run", *arguments], capture_output=True, text=True)
                self.assertEqual(2, run.returncode, run.stdout + run.stderr)
                self.assertIn(fragment, run.stderr)


if __name__ == "__main__":
    unittest.main()
