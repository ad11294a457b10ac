"""Draws of the greatest of many independent amounts, by quantiles: exact in distribution at any number of ranks.

The greatest of n draws from F has the distribution F^n, so its quantile at u is F's at u^(1/n). Near 1 that loses
all digits; what is carried is the tail 1 - u^(1/n) = -expm1(ln(u) / n).

Logarithms and exponentials are computed here by adding, multiplying and dividing: every machine draws alike.
The normal quantile is that of Wichura (1988, algorithm AS 241, PPND16), whose error is about 1e-16.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record

_LN2 = 0.6931471805599453
Shape = Literal["fixed", "exponential", "gaussian"]


def log(x: F64) -> F64:
    """Natural logarithm of positive numbers: of the mantissa by the series of atanh."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa, exponent = np.where(low, mantissa * 2, mantissa), exponent - low
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square, term, total = z * z, z, np.zeros_like(z)
    for k in range(1, 26, 2):
        total = total + term / k
        term = term * square
    result: F64 = 2.0 * total + exponent * _LN2
    return result


def expm1(y: F64) -> F64:
    """e^y - 1 for y at most 0: by its series for a small part, then doubled up again."""
    y = np.maximum(np.asarray(y, np.float64), -745.0)
    doublings = 12
    small = y / 2.0**doublings
    term, total = small, small
    for k in range(2, 9):
        term = term * small / k
        total = total + term
    for _ in range(doublings):
        total = total * (total + 2.0)
    result: F64 = total
    return result


def tail_of_greatest(u: F64, n: int) -> F64:
    """1 - u^(1/n): how much of the distribution lies above the greatest of n."""
    result: F64 = -expm1(log(u) / n)
    return result


def _ratio(x: F64, above: tuple[float, ...], below: tuple[float, ...]) -> F64:
    top, bottom = np.zeros_like(x), np.zeros_like(x)
    for a in above:
        top = top * x + a
    for b in below:
        bottom = bottom * x + b
    return top / bottom


# coefficients of AS 241, highest power first
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_MIDDLE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def normal_above(tail: F64) -> F64:
    """The standard normal's quantile that leaves `tail` above it."""
    tail = np.asarray(tail, np.float64)
    q = 0.5 - tail
    central = q * _ratio(0.180625 - q * q, *_CENTRE)
    small = np.minimum(tail, 1.0 - tail)
    r = np.sqrt(-log(np.maximum(small, 5e-324)))
    outer = np.where(r <= 5.0, _ratio(r - 1.6, *_MIDDLE), _ratio(r - 5.0, *_FAR))
    return np.where(np.abs(q) <= 0.425, central, np.where(q < 0, -outer, outer))


@record
class Amount:
    """A random amount of a mean (of a Gaussian: about 0, of standard deviation `mean`), in any unit."""

    shape: Shape
    mean: float

    def above(self, tail: F64) -> F64:
        """The quantile that leaves `tail` above it."""
        if self.shape == "fixed":
            return np.full(np.shape(tail), self.mean)
        if self.shape == "exponential":
            return -self.mean * log(tail)
        return self.mean * normal_above(tail)

    def greatest(self, u: F64, n: int) -> F64:
        """Draws of the greatest of n independent amounts, from uniform draws u."""
        return self.above(tail_of_greatest(u, n))
