"""Two rows compared on what they have in common: the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lrnets.tables import table
from lrnets.words import counted

FEWEST = 3  # seeds below which nothing is concluded
# Student's t, 97.5 %, for 1, 2, ... degrees of freedom; beyond the last the normal distribution's 1.96 is near enough.
T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Test errors of two rows, in per cent, by seed; differences are the first minus the second."""

    first: str
    second: str
    errors: Mapping[int, tuple[float, float]]

    @property
    def each(self) -> list[float]:
        return [a - b for a, b in self.errors.values()]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.each) if self.errors else None

    @property
    def standard_error(self) -> float | None:
        """Of the mean: s / sqrt(n), s with n - 1; None for fewer than two seeds."""
        return statistics.stdev(self.each) / math.sqrt(len(self.each)) if len(self.errors) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, by Student's t: mean -+ t s / sqrt(n)."""
        if self.mean is None or self.standard_error is None:
            return None
        freedom = len(self.errors) - 1
        reach = (T[freedom - 1] if freedom <= len(T) else 1.96) * self.standard_error
        return self.mean - reach, self.mean + reach

    def verdict(self) -> str:
        """What may be concluded, in a sentence."""
        count = len(self.errors)
        if count < FEWEST:
            return f"{counted(count, 'seed')}: too few to conclude anything, at least {FEWEST} are needed"
        assert self.mean is not None
        low, high = self.interval or (self.mean, self.mean)
        span = f"95 % interval {low:+.3f} to {high:+.3f}"
        if low <= 0 <= high:
            return f"{count} seeds: too few to tell {self.first} from {self.second} ({span} holds 0)"
        better = self.first if self.mean < 0 else self.second
        return f"{count} seeds: {better} has the lower error ({span})"

    def __str__(self) -> str:
        rows = [(seed, f"{a:.2f}", f"{b:.2f}", f"{a - b:+.2f}") for seed, (a, b) in self.errors.items()]
        lines = [table(("seed", f"{self.first} %", f"{self.second} %", "difference"), rows, right=(0, 1, 2, 3))]
        if self.mean is not None:
            error = "none from one seed" if self.standard_error is None else f"{self.standard_error:.3f}"
            lines.append(
                f"mean difference {self.mean:+.3f}, standard error {error}, {counted(len(self.errors), 'seed')}"
            )
        lines.append(self.verdict())
        lines.append("(seeds vary training; the test images are the same, and chance in them is not counted)")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "errors": {str(seed): list(pair) for seed, pair in self.errors.items()},
            "mean": self.mean,
            "standard_error": self.standard_error,
            "interval": self.interval,
            "seeds": len(self.errors),
            "verdict": self.verdict(),
        }
