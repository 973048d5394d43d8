"""The arrows between the folders, read from the include lines, and what must not meet in one translation unit."""

import pathlib
import unittest

from sources import ROOMS, closure, cxx_files, includes, is_libtorch

ALLOWED = {
    "base": {"base"},
    "comm": {"comm", "base"},
    "sharding": {"sharding", "base"},
    "trainer": {"trainer", "sharding", "comm", "base"},
    # Its micro-benchmarks link what they time.
    "bench": {"bench", "trainer", "sharding", "comm", "base"},
    "app": {"app", "bench", "trainer", "sharding", "comm", "base"},
}
# Folders of the trainer that are libraries of their own, and what they may see of the trainer.
TRAINER_ALLOWED = {
    "trainer/models": {"trainer/models"},
    "trainer/losses": {"trainer/losses", "trainer/models"},
    "trainer/optimizers": {"trainer/optimizers", "trainer/recipe.h", "trainer/schedule.h"},
    "trainer/evaluation": {"trainer/evaluation"},
}


class Includes(unittest.TestCase):
    def test_arrows(self):
        for path in cxx_files():
            room = path.parts[0]
            if room not in ALLOWED:
                continue
            for name in includes(path):
                target = name.split("/")[0]
                if target in ROOMS and "/" in name:
                    with self.subTest(file=str(path), includes=name):
                        self.assertIn(target, ALLOWED[room])

    def test_arrows_within_the_trainer(self):
        for path in cxx_files():
            for name in includes(path):
                allowed = TRAINER_ALLOWED.get(str(path.parent))
                if allowed and name.startswith("trainer/"):
                    with self.subTest(file=str(path), includes=name):
                        self.assertTrue({name, str(pathlib.PurePath(name).parent)} & allowed)

    def test_base_and_sharding_see_no_libtorch(self):
        for path in cxx_files():
            if path.parts[0] in ("base", "sharding"):
                with self.subTest(file=str(path)):
                    self.assertEqual([], sorted(filter(is_libtorch, closure(path))))

    def test_libtorch_meets_neither_fmt_nor_spdlog_nor_onnx(self):
        for path in cxx_files():
            if path.suffix == ".cc":
                names = closure(path)
                strangers = [name for name in names if name.startswith(("fmt/", "spdlog/", "onnx/", "google/protobuf/"))]
                with self.subTest(file=str(path), strangers=strangers):
                    self.assertFalse(strangers and any(map(is_libtorch, names)))

    def test_the_reader_sees_includes(self):
        """Against the other tests passing because nothing was read."""
        files = cxx_files()
        self.assertGreater(len(files), 20)
        self.assertEqual({"base", "comm", "sharding", "trainer", "app"} - {path.parts[0] for path in files}, set())
        self.assertTrue(any(is_libtorch(name) for path in files for name in includes(path)))
        self.assertTrue(any(name.startswith("spdlog/") for path in files for name in closure(path)))


if __name__ == "__main__":
    unittest.main()
