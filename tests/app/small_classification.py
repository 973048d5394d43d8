"""A recipe, with its data, that a test can train for as long as it likes: dark and bright noise told apart."""

import random
import subprocess

from png import png

SIDE = 64


def small_classification(lockstep, folder, more=""):
    """Imports 16 pictures into FOLDER/data and writes FOLDER/recipe.toml, with `more` at its end; its path."""
    for label in ("dark", "bright"):
        (folder / "photos" / label).mkdir(parents=True)
        for i in range(8):
            draw = random.Random(i)
            low = 150 if label == "bright" else 0
            pixels = bytes(low + draw.randrange(100) for _ in range(3 * SIDE * SIDE))
            (folder / "photos" / label / f"{i}.png").write_bytes(png(SIDE, SIDE, pixels))
    data = folder / "data"
    subprocess.run([lockstep, "import", "imagefolder", folder / "photos", "--out", data],
                   capture_output=True, check=True, timeout=120)
    recipe = folder / "recipe.toml"
    recipe.write_text(f'model = "resnet18"\nsmall_images = true\nimage_size = 32\nbatch = 4\nepochs = 100000\n'
                      f'[data]\ntrain = "{data}"\n[augmentation]\nmosaic = 0\n[checkpoint]\nevery_epochs = 0\n{more}')
    return recipe
