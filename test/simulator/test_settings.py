"""Each test gets the simulated Blackhole that it asks for."""

import pytest


def grid(device):
    size = device.compute_with_storage_grid_size()
    return size.x, size.y


def test_default_is_a_card_with_current_firmware(device):
    assert grid(device) == (11, 10)


@pytest.mark.simulator(grid="13x10")
def test_card_with_older_firmware(device):
    assert grid(device) == (13, 10)


@pytest.mark.simulator(grid="4x2")
def test_small_grid(device):
    assert grid(device) == (4, 2)
