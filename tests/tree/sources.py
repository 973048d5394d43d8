"""The source files of the checkout and what they include."""

import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("base", "comm", "sharding", "trainer", "bench", "app")
_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")', re.MULTILINE)


def tracked():
    """Paths relative to the checkout, sorted; without git, everything that is not a build output."""
    listing = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True)
    if listing.returncode == 0:
        paths = [pathlib.Path(name) for name in listing.stdout.split("\0") if name]
    else:
        skipped = {".git", ".venv", "build", "data", "runs", "dist"}
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        paths = [path for path in paths if path.parts[0] not in skipped]
    return sorted(path for path in paths if (ROOT / path).is_file())


def cxx_files():
    return [path for path in tracked() if path.suffix in (".cc", ".h")]


@functools.cache
def includes(path):
    """The names that a file of the checkout includes: those in quotes are relative to the checkout."""
    return tuple(system or own for system, own in _INCLUDE.findall((ROOT / path).read_text()))


def closure(path):
    """Every name that a translation unit includes, directly or through headers of the checkout."""
    seen, todo = set(), [path]
    while todo:
        for name in includes(todo.pop()):
            if name not in seen:
                seen.add(name)
                if (ROOT / name).is_file():
                    todo.append(pathlib.Path(name))
    return seen


def is_libtorch(name):
    return name.startswith(("torch/", "ATen/", "c10/"))
