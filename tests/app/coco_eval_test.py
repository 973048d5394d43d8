"""coco_eval_test.py LOCKSTEP: `lockstep coco-eval` against pycocotools, and with damaged files. The cases come from
tests/trainer/evaluation, which compares every cell; here it is the command, its options, messages and exit codes."""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "trainer/evaluation"))
import compare_with_pycocotools as peer

LOCKSTEP = sys.argv[1]
NAMES = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
GOOD = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "score": 0.5}


class CocoEval(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.truth, self.detections = self.folder / "truth.json", self.folder / "detections.json"

    def run_files(self, *options):
        return subprocess.run([LOCKSTEP, "coco-eval", self.truth, self.detections, *options], capture_output=True, text=True, timeout=120)

    def run_case(self, case, *options):
        self.truth.write_text(json.dumps(case.ground_truth()))
        self.detections.write_text(json.dumps(case.detections))
        return self.run_files(*options)

    def expect_lines_of_pycocotools(self, case, *options):
        result = self.run_case(case, *options)
        self.assertEqual((0, peer.expected_of(case)[1]), (result.returncode, result.stdout), result.stderr)
        self.assertEqual(12, result.stdout.count("\n"))

    def expect_numbers_of_pycocotools(self, case, *options, warns=None):
        """Those of --json, which are returned; `warns` is a piece of a warning, and None stands for silence."""
        result = self.run_case(case, "--json", *options)
        self.assertEqual(0, result.returncode, result.stderr)
        answer = json.loads(result.stdout)
        for name, ours, expected in zip(NAMES, answer["stats"], peer.expected_of(case)[0][-12:], strict=True):
            self.assertLessEqual(abs(ours - expected), peer.TOLERANCE, name)
        if warns is None:
            self.assertEqual("", result.stderr)
        else:
            self.assertIn("warning", result.stderr)
            self.assertIn(warns, result.stderr)
        return answer

    def expect_refused(self, result, code, *fragments):
        self.assertEqual((code, ""), (result.returncode, result.stdout), result.stderr)
        for fragment in fragments:
            self.assertIn(fragment, result.stderr)

    # ------------------------------------------------------------ results

    def test_twelve_lines_and_twelve_numbers(self):
        case = peer.many_images()
        self.expect_lines_of_pycocotools(case)
        answer = self.expect_numbers_of_pycocotools(case)
        self.assertGreater(answer["stats"][0], 0.1)
        self.assertEqual(NAMES, answer["names"])
        self.assertEqual([1, 10, 100], answer["max_detections"])
        self.assertEqual((300, len(case.annotations), len(case.detections)), tuple(answer[k] for k in ("images", "boxes", "detections")))
        self.assertGreater(answer["evaluation_seconds"], 0)

    def test_scores_of_each_class(self):
        case = peer.many_images()
        cells, _ = peer.expected_of(case)
        precision = cells[: 10 * 101 * 12 * 4 * 3].reshape(10, 101, 12, 4, 3)
        per_class = json.loads(self.run_case(case, "--json").stdout)["per_class"]
        self.assertEqual([(c, f"class {c}") for c in sorted(case.categories)], [(entry["id"], entry["name"]) for entry in per_class])
        for k, entry in enumerate(per_class):
            self.assertAlmostEqual(precision[:, :, k, 0, 2].mean(), entry["AP"], delta=peer.TOLERANCE)

    def test_nothing_found_and_nothing_to_find(self):
        self.assertEqual(0, self.expect_numbers_of_pycocotools(peer.no_detections())["stats"][0])
        self.assertEqual([-1] * 12, self.expect_numbers_of_pycocotools(peer.no_boxes())["stats"])

    def test_threads_change_nothing(self):
        stats = [json.loads(self.run_case(peer.many_images(), "--json", "--threads", threads).stdout)["stats"] for threads in "127"]
        for other in stats[1:]:
            self.assertEqual(stats[0], other)

    # ------------------------------------------------------------ options

    def test_honor_ignore(self):
        overlooked = self.expect_numbers_of_pycocotools(peer.ignore_is_overlooked())
        honored = self.expect_numbers_of_pycocotools(peer.ignore_is_honored(), "--honor-ignore")
        self.assertNotEqual(overlooked["stats"], honored["stats"])

    def test_fix_ids(self):
        for name, quirk, fixed, warning in (("zero", peer.id_zero, peer.id_zero_fixed, "1 annotations have the id 0"),
                                            ("repeated", peer.repeated_ids, peer.repeated_ids_fixed, "have an id that a later one has too")):
            with self.subTest(name):
                # Boxes of an image that isn't listed are warned of either way.
                left_out = "of images or categories that the file doesn't list" if name == "repeated" else None
                as_it_is = self.expect_numbers_of_pycocotools(quirk(), warns=warning)
                repaired = self.expect_numbers_of_pycocotools(fixed(), "--fix-ids", warns=left_out)
                self.assertNotEqual(as_it_is["stats"], repaired["stats"])
                self.assertEqual(repaired["stats"], json.loads(self.run_case(fixed(), "--json", "--fix-zero-ids").stdout)["stats"])

    def test_max_dets(self):
        standard = self.expect_numbers_of_pycocotools(peer.ties_at_the_cut())
        middle = self.expect_numbers_of_pycocotools(peer.limits_with_100_in_the_middle(), "--max-dets", "10,100,120")
        without = self.expect_numbers_of_pycocotools(peer.other_limits(), "--max-dets", "3,30,300", warns="--max-dets without 100")
        self.expect_lines_of_pycocotools(peer.other_limits(), "--max-dets", "3,30,300")
        self.assertEqual([3, 30, 300], without["max_detections"])
        self.assertEqual(-1, without["stats"][0])
        self.assertNotEqual(standard["stats"][1:], middle["stats"][1:])

    def test_wrong_usage_exits_2(self):
        case = peer.perfect_match()
        for options, fragment in ((["--max-dets", "1,10"], "--max-dets"), (["--max-dets", "100,10,1"], "100, 10, 1"),
                                  (["--max-dets", "0,10,100"], "at least 1"), (["--max-dets", "1,ten,100"], "--max-dets"),
                                  (["--threads", "-1"], "--threads"), (["--honour-ignore"], "--honour-ignore")):
            with self.subTest(options=options):
                self.expect_refused(self.run_case(case, *options), 2, fragment)
        alone = subprocess.run([LOCKSTEP, "coco-eval", self.truth], capture_output=True, text=True)
        self.expect_refused(alone, 2, "detections")

    # ------------------------------------------------------------ files

    def test_detections_of_an_unknown_category_are_left_out(self):
        self.expect_numbers_of_pycocotools(peer.detections_of_an_unknown_category(),
                                         warns="1 detections are of categories that the ground truth doesn't list")

    def test_detections_of_an_unknown_image_are_refused(self):
        case = peer.perfect_match().found([0, 0, 10, 10], image=77)
        with self.assertRaisesRegex(AssertionError, "do not correspond"):
            peer.expected_of(case)
        last = len(case.detections) - 1
        self.expect_refused(self.run_case(case), 1, "detections.json", "truth.json", f"detection {last}: image 77 is not among")

    def test_damaged_detections_exit_1_and_name_the_place(self):
        self.truth.write_text(json.dumps(peer.no_detections().ground_truth()))
        text = json.dumps([GOOD, GOOD])
        without_score = {key: value for key, value in GOOD.items() if key != "score"}
        cases = {
            "empty": ("", "ends too early"),
            "cut in a record": (text[: len(text) // 3], "ends too early"),
            "cut after a record": (text[: text.index("}") + 1], "ends too early"),
            "no list": (json.dumps({"detections": []}), "an array of detections"),
            "a string as an id": (json.dumps([GOOD, {**GOOD, "image_id": "1"}]), 'detection 1, "image_id"'),
            "three numbers": (json.dumps([GOOD, {**GOOD, "bbox": [0, 0, 10]}]), 'detection 1, "bbox": 3 instead of the 4'),
            "no score": (json.dumps([GOOD, without_score]), 'detection 1: has no "score"'),
            "NaN": (json.dumps([GOOD, {**GOOD, "score": math.nan}]), 'detection 1, "score": not a finite number'),
            "infinity": (json.dumps([GOOD, {**GOOD, "score": math.inf}]), 'detection 1, "score": not a finite number'),
            "an infinite side": (json.dumps([GOOD, {**GOOD, "bbox": [0, 0, math.inf, 1]}]), 'detection 1, "bbox": not a finite number'),
        }
        for name, (content, fragment) in cases.items():
            with self.subTest(name):
                self.detections.write_text(content)
                self.expect_refused(self.run_files(), 1, "detections.json", fragment)
        self.expect_refused(self.run_files("--json"), 1, fragment)
        self.detections.write_text(text)
        self.assertEqual(0, self.run_files().returncode, "undamaged, it is fine")

    def test_damaged_ground_truth_exits_1_and_names_the_place(self):
        self.detections.write_text(json.dumps([GOOD]))
        good = peer.no_detections().ground_truth()
        text = json.dumps(good)
        annotation = good["annotations"][1]
        changed = lambda **more: json.dumps({**good, "annotations": [good["annotations"][0], {**annotation, **more}]})
        cases = {
            "cut": (text[: len(text) // 2], "ends too early"),
            "results instead": (json.dumps([GOOD]), "not a COCO ground truth"),
            "no categories": (json.dumps({"images": [], "annotations": []}), 'has no "categories"'),
            "a string as an id": (changed(id="2"), 'annotation 1, "id"'),
            "three numbers": (changed(bbox=[0, 0, 10]), 'annotation 1, "bbox": 3 instead of the 4'),
            "NaN as an area": (changed(area=math.nan), 'annotation 1, "area": not a finite number'),
        }
        for name, (content, fragment) in cases.items():
            with self.subTest(name):
                self.truth.write_text(content)
                self.expect_refused(self.run_files(), 1, "truth.json", fragment)
        self.truth.unlink()
        self.expect_refused(self.run_files(), 1, "truth.json", "can't be read")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
