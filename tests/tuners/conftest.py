from __future__ import annotations

import pytest

from adapting import CONFIGS


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]
