"""For all tests: one simulated Blackhole a session, and the markers of device tests (docs/simulator.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from ttsp_ros.simulator.environment import P150, Grid, activate
from ttsp_ros.simulator.session import open_device
from ttsp_ros.simulator.toolchain import SimulatorError


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("device", "tests on a simulated Blackhole")
    group.addoption("--device-full", action="store_true", help="run the tests marked device_full too: minutes each")
    group.addoption("--grid", type=Grid.parse, default=P150, help="worker grid of the device (default %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "device_full: takes minutes on a simulated Blackhole; runs with --device-full")
    # Before any test imports ttnn, which reads its environment once. The fixture `device` says what is wrong, if it is.
    with suppress(SimulatorError):
        activate(config.getoption("grid"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("device_full"):
        return
    full = [item for item in items if item.get_closest_marker("device_full")]
    if full:
        items[:] = [item for item in items if item not in full]
        config.hook.pytest_deselected(items=full)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[object]:
    """The session's open simulated Blackhole."""
    with open_device(request.config.getoption("grid")) as opened:
        yield opened
