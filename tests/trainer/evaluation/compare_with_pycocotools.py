"""Compares every precision and recall cell and the twelve scores with pycocotools itself.

    python compare_with_pycocotools.py COCO_CELLS named          the cases written out below
    python compare_with_pycocotools.py COCO_CELLS fuzz FIRST END random sets with the seeds FIRST .. END-1
    python compare_with_pycocotools.py COCO_CELLS spoiled        whether the comparison notices a NaN and one wrong bit
"""

import contextlib
import copy
import io
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import numpy
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

TOLERANCE = 1e-12  # of the twelve scores, which are sums in another order; the cells must be equal in every bit


class Case:
    """Ground truth, detections and options; built up by the functions below."""

    def __init__(self, images=(1,), categories=(1,), honor_ignore=False, fix_ids=False, max_detections=(1, 10, 100)):
        self.images, self.categories = list(images), list(categories)
        self.honor_ignore, self.fix_ids, self.max_detections = honor_ignore, fix_ids, max_detections
        self.annotations, self.detections = [], []

    def truth(self, box, image=None, category=None, area=None, iscrowd=0, id=None, **more):
        self.annotations.append({
            "id": len(self.annotations) + 1 if id is None else id,
            "image_id": self.images[0] if image is None else image,
            "category_id": self.categories[0] if category is None else category,
            "bbox": list(box),
            "area": box[2] * box[3] if area is None else area,
            "iscrowd": iscrowd,
            **more,
        })
        return self

    def found(self, box, score=0.5, image=None, category=None):
        self.detections.append({
            "image_id": self.images[0] if image is None else image,
            "category_id": self.categories[0] if category is None else category,
            "bbox": list(box),
            "score": score,
        })
        return self

    def ground_truth(self):
        return {
            "images": [{"id": i} for i in self.images],
            "categories": [{"id": c, "name": f"class {c}"} for c in self.categories],
            "annotations": self.annotations,
        }


class HonoringCOCOeval(COCOeval):
    """pycocotools with `ignore` no longer overwritten (the fix that cocoapi#123 asks for)."""

    def _prepare(self):
        super()._prepare()
        for truths in self._gts.values():
            for truth in truths:
                truth["ignore"] = truth["iscrowd"] or truth["marked"]


def expected_of(case):
    """What pycocotools says: all cells and scores in one array, and the printed summary."""
    content = copy.deepcopy(case.ground_truth())
    for index, annotation in enumerate(content["annotations"]):
        annotation["marked"] = annotation.get("ignore", 0)
        if case.fix_ids:
            annotation["id"] = index + 1
    truth = COCO()
    truth.dataset = content
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        truth.createIndex()
        if case.detections:
            detections = truth.loadRes(copy.deepcopy(case.detections))
        else:  # loadRes looks at the first of them
            detections = COCO()
            detections.dataset = {**content, "annotations": []}
            detections.createIndex()
        evaluation = (HonoringCOCOeval if case.honor_ignore else COCOeval)(truth, detections, "bbox")
        evaluation.params.maxDets = list(case.max_detections)
        evaluation.evaluate()
        evaluation.accumulate()
        printed.truncate(0)
        printed.seek(0)
        evaluation.summarize()
    cells = [evaluation.eval["precision"].ravel(), evaluation.eval["recall"].ravel(), evaluation.stats]
    return numpy.concatenate(cells), printed.getvalue()


# ---------------------------------------------------------------- the cases by name

NAMED = {}


def named(make):
    NAMED[make.__name__] = make
    return make


def below(value):
    return math.nextafter(value, -math.inf)


@named
def perfect_match():
    case = Case(images=[1, 2], categories=[1, 2])
    for image in (1, 2):
        for category in (1, 2):
            for i, size in enumerate((10, 40, 100)):
                case.truth([200 * i, 5, size, size], image, category)
                case.found([200 * i, 5, size, size], 0.9 - i / 10, image, category)
    return case


@named
def no_detections():
    return Case().truth([0, 0, 10, 10]).truth([0, 0, 100, 100])


@named
def no_boxes():
    return Case().found([0, 0, 10, 10])


@named
def nothing_at_all():
    return Case(images=[3, 1, 2], categories=[7, 5])


@named
def no_images():
    return Case(images=[])


@named
def no_categories():
    return Case(categories=[])


@named
def class_with_detections_only():
    return Case(categories=[1, 2]).truth([0, 0, 10, 10]).found([0, 0, 10, 10]).found([0, 0, 10, 10], category=2)


@named
def image_with_detections_only():
    return Case(images=[1, 2]).truth([0, 0, 10, 10]).found([0, 0, 10, 10], 0.5).found([0, 0, 10, 10], 0.7, image=2)


@named
def detections_of_an_unknown_category():
    return Case().truth([0, 0, 10, 10]).found([0, 0, 10, 10], 0.5).found([0, 0, 10, 10], 0.7, category=99)


@named
def annotations_of_unknown_image_and_category():
    return Case().truth([0, 0, 10, 10]).truth([0, 0, 10, 10], image=9).truth([0, 0, 10, 10], category=9).found([0, 0, 10, 10])


@named
def score_ties_within_an_image():
    case = Case().truth([0, 0, 10, 10]).truth([50, 0, 10, 10])
    for x in (100, 0, 200, 50, 300):
        case.found([x, 0, 10, 10], 0.5)
    return case


@named
def score_ties_across_images():
    # The file's order of images and of detections is against the order of image ids, which decides.
    case = Case(images=[30, 10, 20])
    for image, x in ((30, 0), (10, 100), (20, 0), (10, 0), (30, 100)):
        case.found([x, 0, 10, 10], 0.5, image)
    for image in (30, 20, 10):
        case.truth([0, 0, 10, 10], image)
    return case


@named
def score_ties_across_images_permuted():
    case = score_ties_across_images()
    renamed = {30: 10, 10: 20, 20: 30}
    case.images = [renamed[i] for i in case.images]
    for record in case.annotations + case.detections:
        record["image_id"] = renamed[record["image_id"]]
    return case


@named
def zero_scores_of_both_signs():
    return Case().truth([0, 0, 10, 10]).found([50, 0, 10, 10], -0.0).found([0, 0, 10, 10], 0.0).found([0, 0, 9, 9], -1.5)


@named
def whole_number_scores():
    return Case().truth([0, 0, 10, 10]).found([50, 0, 10, 10], 1).found([0, 0, 10, 10], 2)


@named
def equal_iou_later_box_wins():
    # Both boxes overlap the first detection equally; the second detection fits the first box only.
    case = Case().truth([0, 0, 10, 10]).truth([4, 0, 10, 10])
    return case.found([2, 0, 10, 10], 0.9).found([0, 0, 10, 10], 0.8).found([4, 0, 10, 10], 0.7)


@named
def iou_at_the_thresholds():
    case = Case(images=range(1, 50))
    for i, threshold in enumerate(numpy.linspace(0.5, 0.95, 10)):
        for j, height in enumerate((threshold, below(threshold), math.nextafter(threshold, 2))):
            image = 3 * i + j + 1
            case.truth([0, 0, 1, 1], image, area=100).found([0, 0, 1, float(height)], 1 - image / 100, image)
    return case


@named
def iou_exactly_half():
    return Case().truth([0, 0, 10, 10]).found([0, 0, 10, 5])


@named
def iou_one_ulp_below_half():
    return Case().truth([0, 0, 10, 10]).found([0, 0, 10, below(5.0)])


@named
def iou_exactly_three_quarters():
    return Case().truth([0, 0, 8, 8]).found([0, 0, 8, 6])


@named
def iou_one_ulp_below_three_quarters():
    return Case().truth([0, 0, 8, 8]).found([0, 0, 8, below(6.0)])


@named
def iou_one():
    return Case().truth([3.3, 4.7, 10.1, 20.3]).found([3.3, 4.7, 10.1, 20.3])


@named
def area_at_the_bounds():
    case = Case(images=range(1, 20))
    sizes = [(32, 32), (32, below(32.0)), (32, math.nextafter(32.0, 99)), (96, 96), (96, below(96.0)), (96, math.nextafter(96.0, 99)),
             (100000, 100000), (100000, 100001)]
    for image, size in enumerate(sizes, start=1):
        case.truth([0, 0, *size], image).found([1e6, 0, *size], image / 90, image)
        if image not in (1, 4, 7):  # those right at a bound are missed
            case.found([0, 0, *size], image / 100, image)
    return case


@named
def area_differs_from_width_times_height():
    case = Case(images=[1, 2, 3])
    for image, area in ((1, 10), (2, 5000), (3, 20000)):
        case.truth([0, 0, 50, 50], image, area=area).found([0, 0, 50, 50], 0.3 * image, image).found([9, 9, 20, 20], 0.5, image)
    return case


@named
def area_negative_or_zero():
    return Case().truth([0, 0, 10, 10], area=-1).truth([50, 0, 10, 10], area=0).found([0, 0, 10, 10]).found([50, 0, 10, 10], 0.4)


@named
def crowd_with_one_detection():
    return Case().truth([0, 0, 100, 100], iscrowd=1).truth([200, 0, 10, 10]).found([0, 0, 50, 50], 0.9).found([200, 0, 10, 10], 0.8)


@named
def crowd_with_many_detections():
    case = Case().truth([0, 0, 100, 100], iscrowd=1).truth([200, 0, 10, 10]).found([200, 0, 10, 10], 0.1)
    for i in range(20):
        case.found([i, i, 60, 30], 0.2 + i / 100)
    return case


@named
def crowd_and_regular_overlap():
    case = Case().truth([0, 0, 100, 100], iscrowd=1).truth([10, 10, 40, 40]).truth([12, 10, 40, 40])
    for i in range(8):
        case.found([8 + i, 10, 40, 40], 0.9 - i / 10)
    return case


@named
def only_crowds():
    return Case().truth([0, 0, 100, 100], iscrowd=1).found([0, 0, 50, 50])


def marked_to_be_ignored(**options):
    case = Case(**options).truth([0, 0, 10, 10], ignore=1).truth([50, 0, 10, 10], ignore=0).truth([100, 0, 30, 30], iscrowd=1, ignore=0)
    for i, x in enumerate((0, 50, 100, 101, 0)):
        case.found([x, 0, 10, 10], 0.9 - i / 10)
    return case


@named
def ignore_is_overlooked():
    return marked_to_be_ignored()


@named
def ignore_is_honored():
    return marked_to_be_ignored(honor_ignore=True)


@named
def more_than_100_detections():
    case = Case(images=[1, 2], categories=[1, 2])
    for i in range(150):
        case.truth([20 * i, 0, 10, 10], 1 + i % 2)
        case.found([20 * (149 - i), 0, 10, 10], i / 200, 1 + i % 2, 1 + i // 100)
    return case


@named
def ties_at_the_cut():
    case = Case(max_detections=(1, 10, 100))
    for i in range(130):
        case.truth([20 * i, 0, 10, 10]).found([20 * (i * 37 % 130), 0, 10, 10], 0.5 if 5 < i < 120 else 0.9)
    return case


@named
def other_limits():
    case = ties_at_the_cut()
    case.max_detections = (3, 30, 300)
    return case


@named
def limits_with_100_in_the_middle():
    case = ties_at_the_cut()
    case.max_detections = (10, 100, 120)
    return case


@named
def duplicate_detections():
    return Case().truth([0, 0, 10, 10]).truth([2, 0, 10, 10]).found([1, 0, 10, 10]).found([1, 0, 10, 10]).found([1, 0, 10, 10])


@named
def boxes_of_no_or_negative_size():
    case = Case()
    for size in ((0, 10), (10, 0), (0, 0), (-10, 10), (10, -10), (-10, -10)):
        case.truth([5, 5, *size]).found([5, 5, *size], 0.4 + size[0] / 100)
    return case.truth([0, 0, 10, 10]).found([0, 0, 10, 10], 0.3)


@named
def boxes_too_small_for_their_area():
    # The area underflows to 0 and the IoU is 0 / 0.
    return Case().truth([0, 0, 1e-200, 1e-200]).found([0, 0, 1e-200, 1e-200], 0.5).found([0, 0, 1, 1], 0.6)


@named
def category_ids_with_gaps_out_of_order():
    case = Case(images=[5], categories=[90, 1, 13, 44])
    for i, category in enumerate((13, 90, 1, 44)):
        case.truth([30 * i, 0, 20, 10 + i], category=category).found([30 * i, 0, 20, 9 + 2 * i], 0.5, category=category)
    return case


@named
def listed_twice():
    return Case(images=[1, 1, 2], categories=[2, 1, 2]).truth([0, 0, 10, 10]).found([0, 0, 10, 10]).found([0, 0, 9, 9])


def with_id_zero(**options):
    case = Case(**options)
    for i in range(4):
        case.truth([50 * i, 0, 10, 40], id=i).found([50 * i, 0, 10, 40], 0.5 + i / 10)
    return case.truth([300, 0, 50, 50], id=-5).found([300, 0, 50, 40])


@named
def id_zero():
    return with_id_zero()


@named
def id_zero_fixed():
    return with_id_zero(fix_ids=True)


def id_zero_on_a_crowd(**options):
    case = Case(**options).truth([0, 0, 40, 40], iscrowd=1, id=0).truth([100, 0, 40, 40], id=1)
    return case.found([0, 0, 40, 20]).found([0, 0, 20, 20], 0.6).found([100, 0, 40, 40], 0.4)


@named
def id_zero_crowd():
    return id_zero_on_a_crowd()


@named
def id_zero_crowd_fixed():
    return id_zero_on_a_crowd(fix_ids=True)


def with_repeated_ids(**options):
    case = Case(images=[2, 1], categories=[1, 2], **options)
    case.truth([0, 0, 10, 10], 2, 1, id=7).truth([50, 0, 10, 10], 1, 1, id=7).truth([90, 0, 10, 10], 1, 2, id=8)
    case.truth([20, 0, 10, 10], 2, 1, id=8).truth([0, 50, 10, 10], 99, 1, id=9).truth([0, 90, 10, 10], 1, 1, id=9)
    case.truth([0, 99, 10, 10], 2, 2, id=10).truth([9, 99, 10, 10], 99, 2, id=10)
    for annotation in list(case.annotations):
        if annotation["image_id"] != 99:
            case.found(annotation["bbox"], annotation["bbox"][0] / 100, annotation["image_id"], annotation["category_id"])
    return case


@named
def repeated_ids():
    return with_repeated_ids()


@named
def repeated_ids_fixed():
    return with_repeated_ids(fix_ids=True)


@named
def single_precision_numbers():
    case = Case(images=range(1, 9))
    for image in range(1, 9):
        box = [float(numpy.float32(v)) for v in (image / 3, image / 7, 30 + image / 11, 20 + image / 13)]
        case.truth(box, image).found([float(numpy.float32(v * 1.05)) for v in box], float(numpy.float32(image / 9)), image)
    return case


@named
def double_precision_numbers():
    case = Case(images=range(1, 9))
    for image in range(1, 9):
        box = [image / 3, image / 7, 30 + image / 11, 20 + image / 13]
        case.truth(box, image).found([v * 1.05 for v in box], image / 9, image)
    return case


@named
def large_ids():
    case = Case(images=[2**53 - 1, 2**53 - 3], categories=[2**40])
    return case.truth([0, 0, 10, 10], id=2**52).found([0, 0, 10, 10]).found([0, 0, 10, 10], 0.6, image=2**53 - 3)


@named
def many_images():
    """More images than one thread takes at a time, and no multiple of it."""
    draw = random.Random(300)
    images, categories = draw.sample(range(1, 5000), 300), draw.sample(range(1, 91), 12)
    case = Case(images, categories)
    for image in images:
        for _ in range(draw.randint(0, 6)):
            category = draw.choice(categories)
            size = draw.choice((12, 50, 150))
            box = [draw.randint(0, 400), draw.randint(0, 400), draw.randint(size // 2, size), draw.randint(size // 2, size)]
            case.truth(box, image, category, iscrowd=int(draw.random() < 0.05))
            for _ in range(draw.randint(0, 2)):
                case.found([v + draw.randint(-size // 8, size // 8) for v in box], round(draw.uniform(0.3, 1), 2), image, category)
        for _ in range(draw.randint(0, 4)):
            box = [draw.randint(0, 400), draw.randint(0, 400), draw.randint(5, 150), draw.randint(5, 150)]
            case.found(box, round(draw.uniform(0, 0.8), 2), image, draw.choice(categories))
    return case


# ---------------------------------------------------------------- random cases

def fuzzed(seed):
    """A small set in which ties, equal overlaps, bounds, crowds and odd ids are frequent."""
    draw = random.Random(seed)
    images = draw.sample(range(-3, 40), draw.randint(1, 6))
    categories = draw.sample(range(1, 91), draw.randint(1, 3))
    limits = draw.choice([(1, 10, 100)] * 8 + [(2, 5, 9), (1, 100, 300)])
    case = Case(images, categories, draw.random() < 0.1, draw.random() < 0.1, limits)
    style = draw.choice(("grid", "grid", "single", "double"))

    def number(low, high):
        if style == "grid":
            return draw.randint(low, high)
        value = draw.uniform(low, high)
        return float(numpy.float32(value)) if style == "single" else value

    def new_box():
        side = draw.choice((6, 33, 40, 100, 130))
        box = [number(0, side), number(0, side), number(1, side), number(1, side)]
        if draw.random() < 0.05:
            box[draw.choice((2, 3))] = draw.choice((0, -3, 32, 96))
        if draw.random() < 0.1:
            box[2:] = draw.choice(([32, 32], [96, 96], [16, 64]))
        return box

    def new_score():
        return draw.choice((0.1, 0.5, 0.9, draw.random(), round(draw.random(), 2)))

    ids = iter(draw.sample(range(-5, 500), 400))
    for image in images:
        for category in categories:
            truths = []
            for _ in range(draw.choice((0, 0, 1, 2, 3, 6))):
                box = draw.choice(truths) if truths and draw.random() < 0.15 else new_box()
                truths.append(box)
                more = {"ignore": draw.randint(0, 1)} if draw.random() < 0.3 else {}
                area = draw.choice((None, None, 1024, 9216, 5, 2e4, draw.uniform(0, 1e4)))
                id = draw.choice((0, 1, 2)) if draw.random() < 0.03 else next(ids)
                case.truth(box, image, category, area, int(draw.random() < 0.2), id, **more)
            for _ in range(draw.choice((0, 0, 1, 3, 8, 15))):
                box = list(draw.choice(truths)) if truths and draw.random() < 0.7 else new_box()
                if draw.random() < 0.6:
                    place = draw.randrange(4)
                    box[place] = box[place] + (draw.randint(-2, 2) if style == "grid" else draw.gauss(0, 0.1 * abs(box[place])))
                for _ in range(draw.choice((1, 1, 1, 2))):
                    case.found(box, new_score(), image, category)
    if draw.random() < 0.03:
        for _ in range(draw.randint(90, 250)):
            case.found(new_box(), new_score(), images[0], categories[0])
    if draw.random() < 0.1:
        case.found(new_box(), new_score(), images[0], 1000)
    draw.shuffle(case.annotations)
    draw.shuffle(case.detections)
    return case


# ---------------------------------------------------------------- comparison

def differing(ours, expected):
    """Where the cells differ in a bit or the scores by more than TOLERANCE. A NaN differs from everything, another NaN too."""
    differs = (ours.view(numpy.uint64) != expected.view(numpy.uint64)) | numpy.isnan(ours)
    differs[-12:] = ~(numpy.abs(ours[-12:] - expected[-12:]) <= TOLERANCE)
    return numpy.flatnonzero(differs)


def check(program, cases, with_text, spoil=None):
    """Compares all cases, after spoil(ours, expected); returns what differs, as text."""
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for name, case in cases.items():
            paths = [os.path.join(folder, f"{name}.{what}") for what in ("truth", "found", "cells")]
            for path, content in zip(paths, (case.ground_truth(), case.detections)):
                with open(path, "w") as file:
                    json.dump(content, file)
            lines.append(" ".join(map(str, [*paths, int(case.honor_ignore), int(case.fix_ids), *case.max_detections])))
        done = subprocess.run([program], input="\n".join(lines), text=True, stderr=subprocess.PIPE)
        if done.returncode != 0:
            return [f"{program} failed: {done.stderr}"]
        for name, case in cases.items():
            expected, text = expected_of(case)
            ours = numpy.fromfile(os.path.join(folder, f"{name}.cells"))
            if ours.shape != expected.shape:
                problems.append(f"{name}: {ours.size} numbers instead of {expected.size}")
                continue
            if spoil:
                spoil(ours, expected)
            places = differing(ours, expected)
            if places.size > 0:
                at = places[0]
                problems.append(f"{name}: {places.size} of {ours.size} numbers differ, the first at {at}: {ours[at]!r} instead of {expected[at]!r}")
            with open(os.path.join(folder, f"{name}.cells.txt")) as file:
                printed = file.read()
            if with_text and printed != text:
                problems.append(f"{name}: printed\n{printed}instead of\n{text}")
    print(f"{len(cases)} cases, {len(problems)} problems")
    return problems


def check_spoiled(program):
    """Each kind of damage to one number must be noticed in every case, and none without damage."""
    cases = {name: NAMED[name]() for name in ("perfect_match", "iou_at_the_thresholds")}
    first_score = -12

    def write(value, at, into_expected=False, into_both=False):
        def spoil(ours, expected):
            for numbers in (ours, expected) if into_both else (expected,) if into_expected else (ours,):
                numbers[at] = value(numbers[at]) if callable(value) else value
        return spoil

    damage = {
        "NaN in a cell": write(math.nan, 0),
        "NaN in the last cell": write(math.nan, first_score - 1),
        "NaN in a score": write(math.nan, first_score),
        "NaN in a cell of pycocotools": write(math.nan, 0, into_expected=True),
        "NaN in a score of pycocotools": write(math.nan, first_score, into_expected=True),
        "NaN in both cells": write(math.nan, 0, into_both=True),
        "NaN in both scores": write(math.nan, first_score, into_both=True),
        "an infinite cell": write(math.inf, 0),
        "one bit of a cell": write(lambda value: math.nextafter(value, 2), 0),
        "a score off by 1e-11": write(lambda value: value + 1e-11, first_score),
    }
    problems = check(program, cases, with_text=True)
    for name, spoil in damage.items():
        found = check(program, cases, with_text=True, spoil=spoil)
        if len(found) != len(cases) or not all(": 1 of " in problem for problem in found):
            problems.append(f"{name}: noticed in {len(found)} of {len(cases)} cases: {found}")
    return problems


def main():
    program, kind = sys.argv[1:3]
    if kind == "spoiled":
        problems = check_spoiled(program)
        sys.exit("\n".join(problems) if problems else 0)
    if kind == "named":
        cases = {name: make() for name, make in NAMED.items()}
    else:
        cases = {f"seed{seed}": fuzzed(seed) for seed in range(int(sys.argv[3]), int(sys.argv[4]))}
    problems = check(program, cases, with_text=kind == "named")
    sys.exit("\n".join(problems) if problems else 0)


if __name__ == "__main__":
    main()
