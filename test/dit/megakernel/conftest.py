"""Lets the tests of this folder import its helper modules, which no package holds."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from megakernel_cases import VERSIONS


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each published version in turn."""
    return str(request.param)
