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
    """Counts builds: one of all down- and one of all up-projections, whatever their number."""
    calls = Counter()
    formula = LPHM.matrices.__func__

    def counted(cls, factors, A=None):
        calls["down" if factors["s"].shape[2] > factors["t"].shape[3] else "up"] += 1
        calls["layers"] += len(factors["s"])
        return formula(cls, factors, A)

    monkeypatch.setattr(LPHM, "matrices", classmethod(counted))
    return calls
