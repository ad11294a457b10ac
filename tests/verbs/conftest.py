"""Twins that tests of the verbs share."""

from __future__ import annotations

import pytest
from support.clusters import boxes


@pytest.fixture(params=["infiniband", "ethernet"])
def twin(request):
    return boxes(8, request.param)
