"""Each folder of code has a README that names every header in it."""

import unittest

from sources import ROOMS, ROOT, cxx_files, tracked


class Readme(unittest.TestCase):
    def test_names_every_header(self):
        folders = {path.parent for path in cxx_files() if path.parts[0] in ROOMS}
        self.assertGreater(len(folders), 5)
        for folder in folders:
            readme = ROOT / folder / "README.md"
            with self.subTest(folder=folder):
                self.assertTrue(readme.is_file())
                text = readme.read_text()
                for path in cxx_files():
                    if path.parent == folder and path.suffix == ".h":
                        self.assertIn(f"`{path.stem}", text)

    def test_links_lead_somewhere(self):
        pages = [path for path in tracked() if path.suffix == ".md"]
        for page in pages:
            for part in (ROOT / page).read_text().split("](")[1:]:
                target = part.split(")")[0].split("#")[0]
                if target and "://" not in target:
                    with self.subTest(page=page, target=target):
                        self.assertTrue((ROOT / page.parent / target).exists())


if __name__ == "__main__":
    unittest.main()
