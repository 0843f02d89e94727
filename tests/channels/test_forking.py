from __future__ import annotations

import subprocess
import sys

CODE = """
import os, torch
from torch import nn
from fedfi.channels import discover

def train():
    nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()

discover(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2)), torch.zeros(2, 2))
train()
child = os.fork()
if child == 0:
    try:
        train()
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_process_that_has_traced_and_trained_can_still_fork_workers_that_train():
    subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], check=True)
