"""Every C++ file is as clang-format writes it; the version is fixed, since each formats a little differently."""

import subprocess
import unittest

from sources import ROOT, cxx_files


class Format(unittest.TestCase):
    def test_clang_format_changes_nothing(self):
        files = [str(path) for path in cxx_files()]
        check = subprocess.run(["clang-format-14", "--dry-run", "-Werror", *files], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(0, check.returncode, f"run clang-format-14 -i on these:\n{check.stderr}")


if __name__ == "__main__":
    unittest.main()
