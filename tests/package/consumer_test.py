"""consumer_test.py CMAKE BUILD CHECKOUT [LIBTORCH]: installs a build and uses it from a project outside the checkout."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CMAKE, BUILD, CHECKOUT, *LIBTORCH = sys.argv[1:]


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(f"{command} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


class Consumer(unittest.TestCase):
    def test_ranks_of_another_project_add_up(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            run(CMAKE, "--install", BUILD, "--prefix", folder / "prefix")
            for file in (folder / "prefix").rglob("*.cmake"):
                self.assertNotIn(CHECKOUT, file.read_text(), f"{file} points into the checkout")

            shutil.copytree(pathlib.Path(CHECKOUT) / "tests/package/consumer", folder / "source")
            arguments = [f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}", *(f"-DLOCKSTEP_TORCH_DIR={path}" for path in LIBTORCH)]
            run(CMAKE, "-S", folder / "source", "-B", folder / "build", "-G", "Ninja", *arguments)
            run(CMAKE, "--build", folder / "build")

            mpirun = pathlib.Path(CHECKOUT) / "tests/mpirun.sh"
            self.assertEqual("sum 3 of 2 ranks\n", run(mpirun, 2, 60, folder / "build/ring"))
            if LIBTORCH:
                self.assertEqual("tensor 3 of 2 ranks\n", run(mpirun, 2, 60, folder / "build/tensors"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
