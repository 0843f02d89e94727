import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """These models are so small that threads cost more than they save, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
