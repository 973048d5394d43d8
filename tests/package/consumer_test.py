"""consumer_test.py CMAKE BUILD CHECKOUT [LIBTORCH]: installs a build and uses it from a project outside the checkout."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CMAKE, BUILD, CHECKOUT, *LIBTORCH = sys.argv[1:]
MPIRUN = pathlib.Path(CHECKOUT) / "tests/mpirun.sh"


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(f"{command} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


class Consumer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        run(CMAKE, "--install", BUILD, "--prefix", cls.folder / "prefix")

    def build(self, project):
        """A copy of it, outside the checkout; the folder of its programs."""
        source, build = self.folder / project.name, self.folder / f"{project.name}-build"
        shutil.copytree(project, source)
        arguments = [f"-DCMAKE_PREFIX_PATH={self.folder / 'prefix'}", *(f"-DLOCKSTEP_TORCH_DIR={path}" for path in LIBTORCH)]
        run(CMAKE, "-S", source, "-B", build, "-G", "Ninja", *arguments)
        run(CMAKE, "--build", build)
        return build

    def test_nothing_points_into_the_checkout(self):
        for file in (self.folder / "prefix").rglob("*.cmake"):
            self.assertNotIn(CHECKOUT, file.read_text(), f"{file} points into the checkout")

    def test_ranks_of_another_project_add_up(self):
        build = self.build(pathlib.Path(CHECKOUT) / "tests/package/consumer")
        self.assertEqual("sum 3 of 2 ranks\n", run(MPIRUN, 2, 60, build / "ring"))
        if LIBTORCH:
            self.assertEqual("tensor 3 of 2 ranks\n", run(MPIRUN, 2, 60, build / "tensors"))

    @unittest.skipUnless(LIBTORCH, "this build has no LibTorch")
    def test_a_module_of_ones_own_learns_the_same_on_any_number_of_ranks(self):
        example = pathlib.Path(CHECKOUT) / "examples/own_module"
        self.assertLess(len((example / "own_module.cc").read_text().splitlines()), 80)
        program = self.build(example) / "own_module"
        losses = {ranks: [float(line.rsplit(" ", 1)[1]) for line in run(MPIRUN, ranks, 120, program).splitlines()]
                  for ranks in (1, 2, 3)}
        self.assertEqual(3, len(losses[1]), losses)
        self.assertLess(losses[1][-1], 0.5 * losses[1][0], losses)
        for ranks in (2, 3):
            for alone, together in zip(losses[1], losses[ranks], strict=True):
                self.assertAlmostEqual(alone, together, delta=2e-3, msg=str(losses))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
