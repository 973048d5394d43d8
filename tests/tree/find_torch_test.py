"""find_torch_test.py CMAKE LIBTORCH: which LibTorch directories cmake/FindLockstepTorch.cmake takes, and what it says."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from sources import ROOT

CMAKE, LIBTORCH = sys.argv[1], pathlib.Path(sys.argv[2])
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH {ROOT / "cmake"})
find_package(LockstepTorch REQUIRED)
message(STATUS "version ${{LockstepTorch_VERSION}}")
"""


class FindTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "CMakeLists.txt").write_text(PROJECT)

    def configure(self, *arguments):
        command = [CMAKE, "-S", self.folder, "-B", self.folder / "build", *arguments]
        run = subprocess.run(command, capture_output=True, text=True)
        return run.returncode, " ".join((run.stdout + run.stderr).split())

    def libtorch_with(self, symbol):
        """What the module reads of a LibTorch, with the constructor of c10::Error mangled as given."""
        torch = self.folder / "libtorch"
        for name in ("lib/libtorch_cpu.so", "include/ATen/core/Tensor.h", "include/torch/headeronly/version.h"):
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / name).write_bytes((LIBTORCH / name).read_bytes() if name.endswith("version.h") else b"")
        (torch / "lib/libc10.so").write_bytes(b"\x7fELF\0" + symbol + b"\0")
        return torch

    def test_takes_the_users_libtorch_with_a_warning(self):
        status, text = self.configure(f"-DLOCKSTEP_TORCH_DIR={LIBTORCH}")
        self.assertEqual(0, status, text)
        self.assertIn("CMake Warning", text)
        self.assertIn("tested only with the wheel that versions.sh names", text)
        self.assertIn("version 2.11.0", text)

    def test_refuses_the_old_abi(self):
        torch = self.libtorch_with(b"_ZN3c105ErrorC1ENS_14SourceLocationESs")
        status, text = self.configure(f"-DLOCKSTEP_TORCH_DIR={torch}")
        self.assertNotEqual(0, status)
        self.assertIn("another C++ ABI", text)
        self.assertIn("_GLIBCXX_USE_CXX11_ABI=0", text)

    def test_takes_the_new_abi(self):
        torch = self.libtorch_with(b"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE")
        status, text = self.configure(f"-DLOCKSTEP_TORCH_DIR={torch}")
        self.assertEqual(0, status, text)

    def test_names_what_a_directory_lacks(self):
        status, text = self.configure(f"-DLOCKSTEP_TORCH_DIR={self.folder}")
        self.assertNotEqual(0, status)
        self.assertIn("there is no lib/libtorch_cpu.so", text)
        self.assertIn("LOCKSTEP_TORCH_DIR", text)

    def test_says_how_to_install_the_wheel(self):
        status, text = self.configure()
        self.assertNotEqual(0, status)
        self.assertIn("./run build installs it", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
