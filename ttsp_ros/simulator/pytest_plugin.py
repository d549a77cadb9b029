"""Device tests: one open simulated Blackhole a session, other settings in child sessions (docs/simulator.md).

`device` is the session's open device. A test marked `@pytest.mark.simulator(grid="13x10")`, `(cycles=True)` or
`(hollow=True)` needs a Blackhole that this process cannot have besides its own: all tests of a session with the same
marker run together in one child session, and their reports appear as if they had run here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ttsp_ros.simulator.environment import P150, Grid, activate
from ttsp_ros.simulator.session import L1_SMALL_BYTES, SimulatedFailure, open_device
from ttsp_ros.simulator.toolchain import SimulatorError

if TYPE_CHECKING:
    import ttnn

FULL = "takes minutes on a simulated Blackhole; runs with --device-full only"


@dataclass(frozen=True)
class Settings:
    """What a simulated Blackhole is started with."""

    grid: Grid = P150
    cycles: bool = False
    hollow: bool = False

    @classmethod
    def of(cls, item: pytest.Item) -> Settings | None:
        """What the test asks for, None where it does not care."""
        marker = item.get_closest_marker("simulator")
        if marker is None:
            return None
        unknown = set(marker.kwargs) - {"grid", "cycles", "hollow"}
        if marker.args or unknown:
            raise pytest.UsageError(
                f"{item.nodeid}: the marker is simulator(grid='13x10', cycles=True, hollow=True), not {marker}"
            )
        wanted = {**marker.kwargs, "grid": Grid.parse(marker.kwargs.get("grid", str(P150)))}
        return cls(**wanted)

    def options(self) -> list[str]:
        flags = {"--cycles": self.cycles, "--hollow": self.hollow}
        return ["--grid", str(self.grid), *(flag for flag, given in flags.items() if given)]


@dataclass
class State:
    """Of one test session."""

    settings: Settings
    children: dict[Settings, ChildSession] = field(default_factory=dict)
    hung: str | None = None  # the test in which the device hung
    left_out: int = 0


STATE = pytest.StashKey[State]()


@dataclass
class ChildSession:
    """The reports of the tests that ran in one child session."""

    reports: dict[str, list[dict[str, Any]]]
    end: str

    @classmethod
    def run(cls, config: pytest.Config, settings: Settings, tests: list[str]) -> ChildSession:
        """Runs `tests` under other settings and returns when they have ended."""
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as reports:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *settings.options()]
            command += ["--reports-to", reports.name, *(["--device-full"] if config.getoption("device_full") else [])]
            done = subprocess.run([*command, *tests], cwd=config.rootpath, capture_output=True, text=True)
            by_test: dict[str, list[dict[str, Any]]] = {test: [] for test in tests}
            for report in map(json.loads, reports):
                by_test[report["nodeid"]].append(report)
        output = done.stdout[-4000:] + done.stderr[-4000:]
        return cls(by_test, f"the child session ended with {done.returncode}:\n{output}")

    def replay(self, item: pytest.Item) -> None:
        """Reports the test here as it went there."""
        hook, location = item.ihook, item.location
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=location)
        phases = self.reports.get(item.nodeid, [])
        for phase in phases:
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=phase)
            hook.pytest_runtest_logreport(report=report)
        if not phases or phases[-1]["when"] != "teardown":
            hook.pytest_runtest_logreport(report=_failure(item, self.end))
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=location)


def _failure(item: pytest.Item, reason: str) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", reason, "call")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulator", "tests on a simulated Blackhole")
    group.addoption("--device-full", action="store_true", help="also run the tests marked device_full: minutes each")
    group.addoption("--grid", type=Grid.parse, default=P150, help="worker grid of the device (default %(default)s)")
    group.addoption("--cycles", action="store_true", help="simulate modelled cycles: about 4 times slower")
    group.addoption("--hollow", action="store_true", help="empty compute kernels: for graph capture without dispatch")
    group.addoption("--card", action="store_true", help="use the card of this machine instead of a simulated one")
    group.addoption("--reports-to", type=Path, help="also write the reports, for a session that started this one")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"device_full: {FULL}")
    config.addinivalue_line(
        "markers", "simulator(grid, cycles, hollow): needs a simulated Blackhole with these settings"
    )
    settings = Settings(config.getoption("grid"), config.getoption("cycles"), config.getoption("hollow"))
    config.stash[STATE] = State(settings)
    if config.getoption("reports_to"):
        config.pluginmanager.register(ReportWriter(config, config.getoption("reports_to")))
    # Before any test imports ttnn, which reads its environment once. The fixture `device` says what is wrong, if it is.
    if not config.getoption("card"):
        with suppress(SimulatorError):
            activate(settings.grid, settings.cycles, settings.hollow)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    state = config.stash[STATE]
    if not config.getoption("device_full"):
        full = [item for item in items if item.get_closest_marker("device_full")]
        state.left_out = len(full)
        if full:
            items[:] = [item for item in items if not item.get_closest_marker("device_full")]
            config.hook.pytest_deselected(items=full)
    if config.getoption("card"):
        for item in items:
            if Settings.of(item) is not None:
                item.add_marker(pytest.mark.skip(reason="needs a simulated Blackhole, and --card was given"))
        return
    # Last, since a test that does not run here must not come between two of a module that shares fixtures.
    items.sort(key=lambda item: Settings.of(item) not in (None, state.settings))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash[STATE].left_out
    if left_out:
        terminalreporter.write_line(f"{left_out} tests left out: device_full {FULL}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Has tests that need other settings run in a child session."""
    state, wanted = item.config.stash[STATE], Settings.of(item)
    if wanted is None or wanted == state.settings or item.config.getoption("card"):
        return None
    if wanted not in state.children:
        tests = [other.nodeid for other in item.session.items if Settings.of(other) == wanted]
        state.children[wanted] = ChildSession.run(item.config, wanted, tests)
    state.children[wanted].replay(item)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.excinfo is not None and call.excinfo.errisinstance(SimulatedFailure):
        state = item.config.stash[STATE]
        state.hung = state.hung or item.nodeid
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    hung = item.config.stash[STATE].hung
    if hung is not None and "device" in getattr(item, "fixturenames", ()):
        pytest.fail(f"the simulated Blackhole hangs since {hung}; mend that first", pytrace=False)


class ReportWriter:
    """Writes each report as a line of JSON."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.config = config
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a") as reports:
            reports.write(json.dumps(data) + "\n")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[ttnn.MeshDevice]:
    """The session's open Blackhole: simulated, or with --card a real one."""
    if request.config.getoption("card"):
        import ttnn

        opened = ttnn.open_device(device_id=0, l1_small_size=L1_SMALL_BYTES)
        yield opened
        ttnn.close_device(opened)
        return
    settings = request.config.stash[STATE].settings
    with open_device(settings.grid, cost_model=settings.cycles, hollow_kernels=settings.hollow) as opened:
        yield opened
