"""archive_test.py CHECKOUT BUILD: makes the archive, unpacks it elsewhere and runs the command where there is no checkout."""

import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

CHECKOUT, BUILD = map(pathlib.Path, sys.argv[1:])

# glibc, the compiler's run-time libraries and Open MPI with what it needs itself.
HOST = re.compile(r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|mpi|open-rte|open-pal|hwloc|"
                  r"event_core|event_pthreads|udev|z|pmix|munge)[.-]")

# A second copy of these would not fit the host's loader or the host's mpirun.
HOST_ONLY = re.compile(r"ld-linux|lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|mpi)\.so")


def png(width, height):
    """A grey picture; PNG because zlib is all that it takes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes([row % 256]) * (3 * width) for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


VOC = """<annotation><filename>field.png</filename><size><width>96</width><height>64</height><depth>3</depth></size>
<object><name>Tree</name><bndbox><xmin>10</xmin><ymin>12</ymin><xmax>40</xmax><ymax>44</ymax></bndbox></object>
</annotation>"""


class Archive(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([CHECKOUT / "tools/package.sh", BUILD, cls.folder / "dist"], check=True, stdout=subprocess.DEVNULL)
        (archive,) = (cls.folder / "dist").glob("lockstep-*-linux-x86_64.tar.gz")
        (cls.folder / "some where").mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", cls.folder / "some where"], check=True)
        archive.unlink()
        (cls.root,) = (cls.folder / "some where").iterdir()

    def lockstep(self, *arguments, environment=()):
        """Runs the unpacked command with an empty environment and, where the kernel lets us, an empty checkout."""
        hidden = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', CHECKOUT]
        if subprocess.run([*hidden, "true"], capture_output=True, cwd="/").returncode != 0:
            hidden = []
        command = [*hidden, "env", *environment, self.root / "bin/lockstep", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env={"PATH": "/usr/bin:/bin"})

    def test_libraries_come_from_the_archive_or_the_base_system(self):
        listing = self.lockstep(environment=["LD_TRACE_LOADED_OBJECTS=1"]).stdout
        found = re.findall(r"^\s*(\S+) => (.+) \(0x", listing, re.MULTILINE)
        self.assertGreater(len(found), 10, listing)
        self.assertIn("libtorch_cpu.so", dict(found))
        for name, path in found:
            with self.subTest(library=name, path=path):
                self.assertTrue(path.startswith(str(self.root)) or HOST.match(name))
                self.assertFalse(path.startswith(str(self.root)) and HOST_ONLY.match(name))
        self.assertNotIn(str(CHECKOUT), listing)
        self.assertFalse(list(self.root.glob("lib/libtorch_cuda*")) + list(self.root.glob("lib/libmpi*")))

    def test_licences_travel_along(self):
        licences = {path.stem for path in (self.root / "licenses").iterdir()}
        self.assertLessEqual({"torch", "nvidia_cuda_runtime", "nvidia_cuda_cupti"}, licences)
        self.assertTrue((self.root / "LICENSE").is_file())

    def test_help(self):
        run = self.lockstep("--help")
        self.assertEqual(0, run.returncode, run.stderr)
        self.assertIn("train", run.stdout)

    def test_import_and_inspect(self):
        (self.folder / "field.png").write_bytes(png(96, 64))
        (self.folder / "field.xml").write_text(VOC)
        run = self.lockstep("import", "voc", "field.xml", "--out", "field")
        self.assertEqual(0, run.returncode, run.stderr)
        run = self.lockstep("inspect", "field", "--json")
        self.assertEqual(0, run.returncode, run.stderr)
        report = json.loads(run.stdout)
        self.assertEqual((1, 1, ["Tree"]), (report["images"], report["boxes"], report["classes"]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
