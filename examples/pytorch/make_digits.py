#!/usr/bin/env python3
"""Write the 1,797 handwritten digits of scikit-learn as an ImageFolder dataset.

    make_digits.py OUT      writes OUT/train/<class>/<number>.png

The images are the test set of "Optical Recognition of Handwritten Digits" (UCI). The scikit-learn
package contains it, so nothing is downloaded. An image of 8x8 pixels with values 0 to 16 becomes one
of 32x32 pixels with values 0 to 255. The same versions of scikit-learn and Pillow write the same
bytes on every run.
"""
import argparse
from pathlib import Path

import numpy
from PIL import Image
from sklearn.datasets import load_digits

SIDE = 32   # pixels


def png(pixels):
    """Returns an 8x8 array of values 0 to 16 as a grey image of SIDE x SIDE pixels."""
    grey = numpy.rint(pixels * (255 / 16)).astype(numpy.uint8)
    return Image.fromarray(grey).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the dataset; created if it is missing")
    args = parser.parse_args()

    digits = load_digits()
    for label in digits.target_names:
        (args.out / "train" / str(label)).mkdir(parents=True, exist_ok=True)
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target)):
        png(pixels).save(args.out / "train" / str(label) / f"{number:04}.png")
    print(f"{len(digits.images)} images in {args.out / 'train'}")


if __name__ == "__main__":
    main()
