"""Digests of columns: equal where lengths and elements are, and nowhere else."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import digest_of


def test_columns_cut_elsewhere_have_another_digest():
    whole = np.arange(6)
    cuts = [digest_of([whole[:k], whole[k:]]) for k in range(7)]
    assert len({*cuts, digest_of([whole])}) == 8


def test_strides_do_not_matter():
    table = np.arange(12).reshape(3, 4)
    assert digest_of(table.T) == digest_of([row.copy() for row in table.T])
