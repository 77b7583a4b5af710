"""Set-up for everything that runs torch."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    """Tests run side by side: more threads than cores make torch wait for itself, many times slower."""
    torch.set_num_threads(1)
