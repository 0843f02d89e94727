"""A round's time holds nothing that is done but once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedfi.federation.warming import OPTIMIZERS, SCIPY
from fedfi.oneshot.dense import DENSE
from fedfi.oneshot.fedfiot import FedFiOT
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.mf import MF

SCRIPT = """
import dataclasses, sys
from tests.recsys import small
from fedfi.federation import loop
from fedfi.federation.run import run
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.mf import MF

inner, found = loop.Loop._round, []

def watched(self, state, round):
    before = set(sys.modules)
    result = inner(self, state, round)
    found.extend(set(sys.modules) - before)
    return result

loop.Loop._round = watched
run({method}, small.task(), rounds=2)
assert not found, sorted(found)[:20]
"""


@pytest.mark.parametrize("method", ["MF()", "FedRKG(interval=1, clip=1.0, noise=2.0)"])
def test_rounds_load_nothing(method):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(method=method)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_methods_load_what_they_need_alone():
    assert MF().loads() == DENSE().loads() == FedFiOT(distil="generated").loads() == (OPTIMIZERS,)
    assert FedRKG().loads() == FedFiOT().loads() == ()
    assert FedRKG(clip=1.0, noise=1.0).loads() == SCIPY
