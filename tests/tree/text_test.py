"""No tracked file says where it was made."""

import re
import unittest

from sources import ROOT, tracked

# A home directory and this checkout's own place. Whole path segments only, so that "frame/work/" is not one.
_HOME = re.compile(r"(?<![\w./$}])/(?:root|home/\w+|Users/\w+)/")


class Text(unittest.TestCase):
    def test_no_paths_of_a_machine(self):
        place = re.compile(r"(?<![\w.])" + re.escape(str(ROOT)) + r"(?![\w-])")
        read = 0
        for path in tracked():
            data = (ROOT / path).read_bytes()
            if b"\0" in data:
                continue
            read += 1
            for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
                with self.subTest(file=f"{path}:{number}", line=line):
                    self.assertIsNone(_HOME.search(line))
                    self.assertIsNone(place.search(line))
        self.assertGreater(read, 50)


if __name__ == "__main__":
    unittest.main()
