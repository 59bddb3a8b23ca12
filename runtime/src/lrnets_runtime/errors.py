"""What can be wrong with a packed file or with what a network is given."""

from __future__ import annotations

import reprlib


class PackedFileError(ValueError):
    """The file is not a packed network, is damaged, or asks for more than this version knows."""


def refuse(where: str, problem: str) -> PackedFileError:
    """The error to raise: where in the file, and what is wrong there."""
    return PackedFileError(f"{where}: {problem}")


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxstring, self.maxother = 2, 3, 60, 60

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print whole numbers of some thousand digits.
        return repr(x) if x.bit_length() <= 100 else f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object) -> str:
    """A value for an error message: one short line, however long, deep or large the value."""
    return _SHORT.repr(value)
