"""Settings of all tests."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def _no_module_outlives_its_test():
    """Modules that a test wrote and imported are forgotten, so that another test may use their names."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "pytest-of-" in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
