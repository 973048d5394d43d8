"""import_test.py LOCKSTEP: every importer of image files from the command line, and what inspect and verify say of the result."""

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

from png import png

LOCKSTEP = sys.argv[1]
WIDTH, HEIGHT = 64, 48


def run(*arguments):
    return subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def write_image(file, seed):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(png(WIDTH, HEIGHT, random.Random(seed).randbytes(3 * WIDTH * HEIGHT)))


class Import(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.out = self.folder / "out"

    def facts_of(self, *arguments, out=None):
        """Of a data set that is imported, by the closing report; inspect must say the same, and verify find it whole."""
        out = out or self.out
        imported = run("import", *arguments, "--out", out, "--json")
        self.assertEqual(0, imported.returncode, imported.stderr)
        facts = json.loads(imported.stdout)
        self.assertEqual(facts, json.loads(run("inspect", out, "--json").stdout))
        verified = run("verify", out)
        self.assertEqual(0, verified.returncode, verified.stderr)
        return facts

    def expect(self, facts, **expected):
        self.assertEqual(expected, {key: facts[key] for key in expected})

    def expect_refused(self, code, fragments, *arguments):
        result = run("import", *arguments, "--out", self.out)
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)
        for fragment in fragments:
            self.assertIn(fragment, result.stderr)
        self.assertFalse(self.out.exists())

    def write_coco(self):
        images = self.folder / "images"
        write_image(images / "a.png", 1)
        write_image(images / "b.png", 2)
        boxes = [(7, 1, [4, 4, 20, 10]), (7, 3, [50, 40, 30, 30]), (9, 1, [30, 10, -5, 5]), (99, 1, [0, 0, 9, 9]), (11, 1, [0, 0, 9, 9])]
        document = {
            "images": [{"id": id, "file_name": name, "width": WIDTH, "height": HEIGHT} for id, name in ((7, "a.png"), (9, "b.png"), (11, "gone.png"))],
            "categories": [{"id": 3, "name": "dog"}, {"id": 1, "name": "cat"}],
            "annotations": [{"id": i + 1, "image_id": image, "category_id": category, "bbox": box, "area": 99, "iscrowd": 0}
                            for i, (image, category, box) in enumerate(boxes)]}
        annotations = self.folder / "instances.json"
        annotations.write_text(json.dumps(document))
        return annotations, images

    def test_coco(self):
        annotations, images = self.write_coco()
        facts = self.facts_of("coco", annotations, "--images", images)
        self.expect(facts, images=2, boxes=2, classes=["cat", "dog"], per_class=[1, 1], images_without_boxes=1, task="detection", encoding="encoded",
                    dropped_images={"missing": 1}, dropped_boxes={"absent_image": 1, "inverted": 1}, notes={"clipped": 1})
        self.assertEqual({"small": 2, "medium": 0, "large": 0}, facts["box_sizes"])
        raw = self.facts_of("coco", annotations, "--images", images, "--raw", "--side", 32, out=self.folder / "raw")
        self.expect(raw, images=2, boxes=2, encoding="raw")

    def test_strict_names_the_place(self):
        annotations, images = self.write_coco()
        self.expect_refused(1, ["annotations[3]", "absent_image", "--strict"], "coco", annotations, "--images", images, "--strict")

    def test_dry_run_writes_nothing_and_predicts_size(self):
        annotations, images = self.write_coco()
        before = sorted(self.folder.rglob("*"))
        result = run("import", "coco", annotations, "--images", images, "--dry-run", "--json", "--out", self.out)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertEqual(before, sorted(self.folder.rglob("*")))
        forecast = json.loads(result.stdout)
        self.expect(forecast, images=2, measured=2, dropped_images={"missing": 1})
        bytes_of = {(output["encoding"], output["side"]): output["bytes"] for output in forecast["outputs"]}
        self.assertEqual({("encoded", None), ("raw", None), ("encoded", 640), ("raw", 640)}, set(bytes_of))
        self.assertEqual(sum(file.stat().st_size for file in images.iterdir()), bytes_of["encoded", None])
        self.assertEqual(2 * 3 * WIDTH * HEIGHT, bytes_of["raw", None])
        self.assertEqual(2 * 3 * 640 * 480, bytes_of["raw", 640])

    def test_yolo(self):
        write_image(self.folder / "images/train/a.png", 1)
        write_image(self.folder / "images/train/b.png", 2)
        labels = self.folder / "labels/train/a.txt"
        labels.parent.mkdir(parents=True)
        labels.write_text("1 0.5 0.5 0.25 0.5\n7 0.5 0.5 0.1 0.1\n")
        data = self.folder / "data.yaml"
        data.write_text("names: [cat, dog]\ntrain: images/train\n")
        self.expect_refused(1, ["--split", "train"], "yolo", data, "--split", "val")
        self.expect_refused(1, ["a.txt: line 2", "bad_class"], "yolo", data, "--strict")
        self.expect(self.facts_of("yolo", data), images=2, boxes=1, classes=["cat", "dog"], per_class=[0, 1], dropped_images={},
                    dropped_boxes={"bad_class": 1}, notes={"no_label_file": 1})

    def test_imagefolder(self):
        for seed, name in enumerate(("train/cat/a.png", "train/dog/b.png", "val/dog/c.png")):
            write_image(self.folder / name, seed)
        train, val = self.folder / "data-train", self.folder / "val"
        self.expect(self.facts_of("imagefolder", self.folder / "train", out=train), images=2, classes=["cat", "dog"], per_class=[1, 1],
                    task="classification")
        write_image(val / "bird/d.png", 4)
        self.expect_refused(1, ["'bird'", "cat, dog"], "imagefolder", val, "--like", train)
        self.expect(self.facts_of("imagefolder", val, "--like", train, "--skip-unknown-classes"), images=1, classes=["cat", "dog"],
                    per_class=[0, 1], dropped_images={"unknown_folder": 1})

    def test_another_format_is_refused(self):
        annotations, images = self.write_coco()
        self.expect_refused(2, ["instances.json", "import coco"], "imagefolder", annotations)
        self.expect_refused(2, ["images"], "coco", images)

    def test_verify_names_the_file_of_any_flipped_byte(self):
        annotations, images = self.write_coco()
        self.facts_of("coco", annotations, "--images", images)
        files = sorted(file.relative_to(self.out) for file in self.out.rglob("*") if file.is_file())
        self.assertTrue(files)
        for file in files:
            damaged = self.folder / "damaged"
            shutil.copytree(self.out, damaged)
            content = bytearray((damaged / file).read_bytes())
            content[len(content) // 2] ^= 1
            (damaged / file).write_bytes(content)
            result = run("verify", damaged)
            self.assertEqual(1, result.returncode, f"{file}: {result.stdout}")
            self.assertIn(file.name, result.stderr)
            shutil.rmtree(damaged)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
