"""`lockstep bench loader` and `lockstep inspect --augmented`: what a training would see of a data set. The rows that programs rely on, the words for a person, and wrong calls.

Usage: bench_loader_test.py LOCKSTEP
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from png import png

lockstep = sys.argv[1]


def run(*words, code=0):
    result = subprocess.run([lockstep, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert result.returncode == code, (words, result.returncode, result.stdout, result.stderr)
    return result.stdout if code == 0 else result.stderr


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    for name in ("a", "b"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(4):
            (folder / "photos" / name / f"{i}.png").write_bytes(png(40 + i, 30, bytes([60 + i]) * (3 * (40 + i) * 30)))
    run("import", "imagefolder", folder / "photos", "--out", folder / "set")
    (folder / "copy").mkdir()
    fast = ("bench", "loader", folder / "set", "--set", "image_size=32", "--set", "batch=4", "--threads", 2, "--seconds", 0.002, "--rounds", 1,
            "--scratch", folder / "copy")

    report = json.loads(run(*fast, "--json"))
    keys = {"what", "decode", "encoding", "read", "threads", "images_per_second", "pss_mib"}
    for row in report["rows"]:
        assert keys <= row.keys(), row
        assert row["images_per_second"] > 0 and row["pss_mib"] > 0, row
    assert {row["what"] for row in report["rows"]} == {"decode", "augment", "assemble", "copy", "all"}, report
    for key, values in {"decode": {"full", "scaled"}, "encoding": {"encoded", "raw"}, "read": {"mmap", "hdf5"}, "threads": {1, 2}}.items():
        assert {row[key] for row in report["rows"] if row["what"] == "all"} == values, (key, report)
    assert report["samples"] == 8, report
    assert "Loading with 2 threads gives " in report["explanation"], report
    assert not list((folder / "copy").iterdir())

    text = run(*fast, "--what", "copy,augment")
    assert "augment" in text and "copy" in text and "decode " not in text.split("\n")[2], text

    recipe = folder / "recipe.toml"
    recipe.write_text(f'model = "resnet18"\nimage_size = 32\nbatch = 4\n[data]\ntrain = "{folder / "set"}"\nread = "hdf5"\n[augmentation]\nmosaic = 0\n')
    (row,) = json.loads(run("bench", "loader", folder / "set", "--recipe", recipe, "--what", "augment", "--threads", 1, "--seconds", 0.002, "--set",
                            "augmentation.enabled=false", "--json"))["rows"]
    assert row["read"] == "hdf5" and row["threads"] == 1, row

    sheet = folder / "sheet.png"
    run("inspect", folder / "set", "--sheet", sheet, "--augmented", "--set", "image_size=32")
    augmented = sheet.read_bytes()
    run("inspect", folder / "set", "--sheet", sheet)
    assert augmented.startswith(b"\x89PNG") and augmented != sheet.read_bytes()
    assert "--sheet" in run("inspect", folder / "set", "--augmented", code=2)

    assert "there are decode, augment, assemble, copy, all" in run(*fast, "--what", "decoding", code=2)
    assert "nothing to measure" in run(*fast, "--what", "all", "--encoding", "raw", "--decode", "scaled", code=2)
    assert "not a data set" in run("bench", "loader", folder / "photos", code=1)
    assert "augmentation.mosaik" in run(*fast, "--set", "augmentation.mosaik=1", code=2)
