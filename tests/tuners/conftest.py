from __future__ import annotations

from collections import Counter

import pytest

from adapting import CONFIGS
from compacter.nn import LPHM


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture
def builds(monkeypatch):
    """Counts builds, and the projections that they are of."""
    calls = Counter()
    formula = LPHM.matrices.__func__

    def counted(cls, factors, A=None):
        calls["builds"] += 1
        calls["projections"] += len(factors["s"])
        return formula(cls, factors, A)

    monkeypatch.setattr(LPHM, "matrices", classmethod(counted))
    return calls
