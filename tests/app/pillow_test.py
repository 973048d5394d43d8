"""pillow_test.py LOCKSTEP: an imported image has the pixels of Pillow's exif_transpose().convert("RGB"), in every format, mode and
orientation, within the rounding of the decoder."""

import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np
from PIL import Image, ImageOps

LOCKSTEP = sys.argv[1]
WIDTH, HEIGHT = 61, 43
ORIENTATION = 274

# Smooth enough for JPEG, and different in every corner and channel.
X, Y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
COLOURS = np.stack([4 * X, 255 - 3 * X - Y, 5 * Y], axis=-1).astype(np.uint8)
PHOTO = Image.fromarray(COLOURS)


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation):
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags


def with_alpha(image, mode):
    image = image.convert(mode)
    image.putalpha(Image.fromarray((X * 255 // WIDTH).astype(np.uint8)))
    return image


class Pillow(unittest.TestCase):
    def imported(self, files):
        """Name to pixels, as stored by `import --raw`, and the report."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            (folder / "images" / "class").mkdir(parents=True)
            for name, content in files.items():
                (folder / "images" / "class" / name).write_bytes(content)
            done = subprocess.run([LOCKSTEP, "import", "imagefolder", folder / "images", "--raw", "--out", folder / "set", "--json"],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(0, done.returncode, done.stderr)
            index = h5py.File(folder / "set" / "index.h5")
            shard = h5py.File(folder / "set" / "shard-00000.h5")
            names = bytes(index["names"][:])
            pixels = {}
            for i, (width, height) in enumerate(zip(index["width"], index["height"])):
                name = names[index["name_offsets"][i]:index["name_offsets"][i + 1]].decode()
                begin, end = shard["offsets"][i:i + 2]
                pixels[pathlib.PurePath(name).name] = shard["pool"][begin:end].reshape(height, width, 3)
            return pixels, json.loads(done.stdout)

    def expect_as_pillow(self, files, most, mean):
        pixels, report = self.imported(files)
        self.assertEqual({}, report["dropped_images"])
        self.assertEqual(set(files), set(pixels))
        for name, content in files.items():
            expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
            self.assertEqual(expected.shape, pixels[name].shape, name)
            difference = np.abs(expected.astype(int) - pixels[name])
            self.assertLessEqual(difference.max(), most, name)
            self.assertLessEqual(difference.mean(), mean, name)
        return report

    def test_orientations(self):
        lossless, lossy = {}, {}
        for orientation in range(1, 9):
            lossless[f"{orientation}.png"] = encoded(PHOTO, "PNG", exif=exif(orientation))
            lossless[f"{orientation}.webp"] = encoded(PHOTO, "WEBP", lossless=True, exif=exif(orientation))
            lossless[f"{orientation}.tif"] = encoded(PHOTO, "TIFF", exif=exif(orientation))
            lossy[f"{orientation}.jpg"] = encoded(PHOTO, "JPEG", quality=90, exif=exif(orientation))
            lossy[f"{orientation}-progressive.jpg"] = encoded(PHOTO, "JPEG", quality=90, progressive=True, exif=exif(orientation))
            lossy[f"{orientation}-gray.jpg"] = encoded(PHOTO.convert("L"), "JPEG", exif=exif(orientation))
            lossy[f"{orientation}-cmyk.jpg"] = encoded(PHOTO.convert("CMYK"), "JPEG", exif=exif(orientation))
        self.expect_as_pillow(lossless, most=0, mean=0)
        self.expect_as_pillow(lossy, most=3, mean=0.5)

    def test_modes(self):
        files = {
            "gray.png": encoded(PHOTO.convert("L"), "PNG"),
            "two-levels.png": encoded(PHOTO.convert("1"), "PNG"),
            "palette.png": encoded(PHOTO.quantize(64), "PNG"),
            "palette-16.png": encoded(PHOTO.quantize(16), "PNG", bits=4),
            "palette-transparent.png": encoded(PHOTO.quantize(64), "PNG", transparency=3),
            "alpha.png": encoded(with_alpha(PHOTO, "RGBA"), "PNG"),
            "gray-alpha.png": encoded(with_alpha(PHOTO.convert("L"), "LA"), "PNG"),
            "alpha.webp": encoded(with_alpha(PHOTO, "RGBA"), "WEBP", lossless=True, exact=True),
            "gray.bmp": encoded(PHOTO.convert("L"), "BMP"),
            "colour.bmp": encoded(PHOTO, "BMP"),
            "gray.tif": encoded(PHOTO.convert("L"), "TIFF"),
            "packed.tif": encoded(PHOTO, "TIFF", compression="tiff_lzw"),
        }
        notes = self.expect_as_pillow(files, most=0, mean=0)["notes"]
        self.assertEqual(4, notes["alpha"], notes)  # a transparent palette entry is alpha, too

    def test_subsampled_jpegs(self):
        files = {f"{name}.jpg": encoded(PHOTO, "JPEG", quality=quality, subsampling=subsampling)
                 for name, quality, subsampling in (("444", 95, 0), ("422", 90, 1), ("420", 75, 2), ("rough", 20, 2))}
        self.expect_as_pillow(files, most=3, mean=0.5)

    def test_sixteen_bits_by_the_high_byte(self):
        """Pillow would clip at 255 instead, which is not followed."""
        values = (X * 1000 + Y * 77).astype(np.uint16)
        pixels, report = self.imported({"deep.png": encoded(Image.fromarray(values), "PNG")})
        np.testing.assert_array_equal(pixels["deep.png"], np.repeat((values >> 8)[:, :, None], 3, axis=2))
        self.assertEqual(1, report["notes"]["sixteen_bits"])

    def test_truncated_images_are_dropped_where_pillow_refuses_them(self):
        whole = {"photo.jpg": encoded(PHOTO, "JPEG", quality=95), "progressive.jpg": encoded(PHOTO, "JPEG", quality=95, progressive=True),
                 "photo.png": encoded(PHOTO, "PNG"), "photo.webp": encoded(PHOTO, "WEBP", lossless=True)}
        files = {"whole.png": whole["photo.png"]}
        for name, content in whole.items():
            for percent in (40, 80):
                cut = content[:len(content) * percent // 100]
                with self.assertRaises(OSError, msg=name):
                    Image.open(io.BytesIO(cut)).load()
                files[f"{percent}-{name}"] = cut
        pixels, report = self.imported(files)
        self.assertEqual({"whole.png"}, set(pixels))
        self.assertEqual({"unreadable": len(files) - 1}, report["dropped_images"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
