from __future__ import annotations

import pytest

from adapting import CONFIGS
from quantised_models import Bases


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """Loads quantised base models."""
    return Bases(tmp_path_factory.mktemp("bases"))
