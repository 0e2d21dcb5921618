"""Real pictures on disk: tiles cut from eight photographs that scikit-image ships (no network)."""

import os
import shutil
from pathlib import Path

from PIL import Image

PHOTOGRAPHS = ["astronaut", "brick", "chelsea", "coffee", "grass", "gravel", "retina", "rocket"]
ROWS, COLUMNS, TILE = 6, 8, 128
FOLDER = Path(__file__).parent / "data" / "pictures"


def list_pictures():
    """Lists the tiles, cutting them first if need be.

    Returns:
        (training, validation): 320 and 64 pairs (path of a JPEG, index of its photograph), in an
        order that keeps the photographs in balance wherever it is cut off.
    """
    if not FOLDER.exists():
        cut_photographs()
    training, validation = [], []
    for number in range(ROWS * COLUMNS):
        part = validation if number % 6 == 5 else training
        for label, name in enumerate(PHOTOGRAPHS):
            part.append((FOLDER / name / f"{number:02}.jpg", label))
    return training, validation


def cut_photographs():
    """Writes each photograph as 48 JPEG tiles into a folder of its own."""
    import skimage.data  # half a second, needed on the first run only

    draft = FOLDER.with_name(f"pictures-{os.getpid()}")
    for name in PHOTOGRAPHS:
        (draft / name).mkdir(parents=True)
        photograph = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        photograph = photograph.resize((COLUMNS * TILE, ROWS * TILE))
        for number in range(ROWS * COLUMNS):
            row, column = divmod(number, COLUMNS)
            left, top = column * TILE, row * TILE
            tile = photograph.crop((left, top, left + TILE, top + TILE))
            tile.save(draft / name / f"{number:02}.jpg", quality=90)
    try:
        draft.rename(FOLDER)  # whole or not at all: another first run may be looking
    except OSError:
        shutil.rmtree(draft)  # it was quicker
