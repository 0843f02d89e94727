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


IN_A_THREAD = """
import os, signal, threading, torch
from torch import nn
from fedfi.channels import discover
from fedfi.channels.tracing import one_at_a_time

held, done = threading.Event(), threading.Event()

def hold():
    with one_at_a_time():
        held.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    try:
        signal.alarm(60)
        discover(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2)), torch.zeros(2, 2))
        os._exit(0)
    finally:
        os._exit(1)
done.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_process_that_is_forked_while_another_thread_traces_does_not_wait_for_it():
    subprocess.run([sys.executable, "-W", "ignore", "-c", IN_A_THREAD], check=True)
