"""Small data sets in the official layouts, written by hand."""

import dataclasses
import gzip
import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np

from lrnets.data.known import DATA_SETS, DataSet, File, Form


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def cifar_binary(images: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels))


def cifar_python(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The stream of Python 2's cPickle, protocol 2, of which the official batches are made."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    pixels = images.tobytes()
    return b"".join(
        [
            b"\x80\x02}q\x01(",
            string(b"batch_label"), string(b"training batch 1 of 5"),
            string(b"labels"), b"]q\x02(", *(b"K" + bytes([label]) for label in labels), b"e",
            string(b"data"), b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85",
            string(b"b"), b"\x87Rq\x05(K\x01", b"M" + struct.pack("<H", len(images)), b"M\x00\x0c\x86",
            b"cnumpy\ndtype\nq\x06", string(b"u1"), b"K\x00K\x01\x87Rq\x07(K\x03", string(b"|"),
            b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T", struct.pack("<I", len(pixels)), pixels, b"tb",
            string(b"filenames"), b"]q\x08(", *(string(b"%d.png" % i) for i in range(len(images))), b"e",
            b"u.",
        ]
    )  # fmt: skip


def png_sheet(images: np.ndarray) -> bytes:
    from PIL import Image

    rows = np.stack([image.transpose(1, 2, 0).reshape(1024, 3) for image in images])
    stream = io.BytesIO()
    Image.fromarray(rows).save(stream, "PNG")
    return stream.getvalue()


def tar_gz(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def place(files: dict[str, bytes], where: Path) -> None:
    where.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (where / name).write_bytes(content)


@dataclasses.dataclass
class Small:
    """A small data set: its description, its true examples, and its files in every form."""

    data_set: DataSet
    examples: dict[str, tuple[np.ndarray, np.ndarray]]  # "train" and "test": images, labels
    plain: dict[str, bytes]
    other: dict[str, bytes]
    package: bytes
    downloads: dict[str, bytes]


def small_mnist() -> Small:
    rng = np.random.default_rng(0)
    examples, plain = {}, {}
    for part, prefix, count in (("train", "train", 60), ("test", "t10k", 20)):
        images = rng.integers(256, size=(count, 1, 28, 28), dtype=np.uint8)
        labels = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        examples[part] = images, labels
        plain[f"{prefix}-images-idx3-ubyte"] = idx(images[:, 0])
        plain[f"{prefix}-labels-idx1-ubyte"] = idx(labels)
    other = {f"{name}.gz": gzip.compress(content) for name, content in plain.items()}
    package = tar_gz({"package/index.js": b"process.exit(1)", **{f"package/data/{k}": v for k, v in plain.items()}})

    def file(old: File) -> File:
        form = Form(f"{old.name}.gz", md5(other[f"{old.name}.gz"]), old.others[0].decode)
        return File(old.name, md5(plain[old.name]), (form,))

    return _small("mnist", file, examples, plain, other, package, other)


def small_cifar10() -> Small:
    rng = np.random.default_rng(1)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    batches = {
        name: (rng.integers(256, size=(20, 3, 32, 32), dtype=np.uint8), (rng.permutation(20) % 10).astype(np.uint8))
        for name in names
    }
    train = [batches[name] for name in names[:5]]
    train_images, train_labels = (np.concatenate(parts) for parts in zip(*train))
    examples = {"train": (train_images, train_labels), "test": batches["test_batch"]}
    plain = {f"{name}.bin": cifar_binary(*batch) for name, batch in batches.items()}
    other = {name: cifar_python(*batch) for name, batch in batches.items()}
    package = tar_gz(
        {
            **{f"package/{name}.png": png_sheet(images) for name, (images, _) in batches.items()},
            "package/test_lables.json": json.dumps(batches["test_batch"][1].tolist()).encode(),
            "package/train_lables.json": json.dumps(train_labels.tolist()).encode(),
        }
    )
    archive = tar_gz({f"cifar-10-batches-bin/{name}": content for name, content in plain.items()})

    def file(old: File) -> File:
        form = Form(old.others[0].name, md5(other[old.others[0].name]), old.others[0].decode)
        return File(old.name, md5(plain[old.name]), (form,))

    return _small("cifar10", file, examples, plain, other, package, {"cifar-10-binary.tar.gz": archive})


def _small(name, file, examples, plain, other, package, downloads) -> Small:
    official = DATA_SETS[name]
    data_set = dataclasses.replace(
        official,
        train=tuple(map(file, official.train)),
        test=tuple(map(file, official.test)),
        package=official.package._replace(checksum=sha256(package)),
        downloads=tuple(parcel._replace(checksum=md5(downloads[parcel.name])) for parcel in official.downloads),
    )
    return Small(data_set, examples, plain, other, package, downloads)
