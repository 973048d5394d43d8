"""loader_test.py PROGRAM [ARGUMENTS...]: asks the dynamic loader what it did for a program that uses LibTorch and OpenCV.

OpenCV brings the distribution's reference BLAS. Where that comes before LibTorch, LibTorch's own calls go to it: slow, and
silently different. And a program that runs on a CPU should load nothing of CUDA but what libtorch_cpu itself asks for.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

COMMAND = sys.argv[1:]


class Loader(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            # The loader adds the process id to the file's name. LD_BIND_NOW: bind everything, not only what is called.
            environment = dict(os.environ, LD_DEBUG="files,bindings", LD_DEBUG_OUTPUT=f"{folder}/loader", LD_BIND_NOW="1")
            run = subprocess.run(COMMAND, env=environment, capture_output=True, text=True)
            if run.returncode != 0:
                raise AssertionError(f"{COMMAND} failed:\n{run.stderr}")
            text = "".join(path.read_text() for path in pathlib.Path(folder).iterdir())
        cls.loaded = {pathlib.Path(path).name for path in re.findall(r"calling init: (\S+)", text)}
        cls.bindings = [
            (pathlib.Path(user).name, pathlib.Path(provider).name)
            for user, provider in re.findall(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: normal symbol `sgemm_'", text)
        ]

    def loads(self, library):
        return any(name.startswith(library) for name in self.loaded)

    def test_both_libraries_are_there(self):
        """Otherwise the other tests say nothing."""
        self.assertTrue(self.loads("libtorch_cpu.so"), self.loaded)
        self.assertTrue(self.loads("libopencv_core.so"), self.loaded)
        self.assertTrue(self.loads("libblas.so"), self.loaded)

    def test_everybody_multiplies_with_libtorch(self):
        users = [user for user, _ in self.bindings]
        self.assertIn("libtorch_cpu.so", users)
        self.assertEqual({"libtorch_cpu.so"}, {provider for _, provider in self.bindings}, self.bindings)

    def test_no_cuda_code_is_loaded(self):
        self.assertFalse(self.loads("libtorch_cuda"), self.loaded)
        self.assertFalse(self.loads("libc10_cuda"), self.loaded)
        self.assertFalse(self.loads("liblockstep_cuda"), self.loaded)
        self.assertFalse(self.loads("libnccl"), self.loaded)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
