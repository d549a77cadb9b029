"""For all tests: a simulated Blackhole and the markers of device tests (docs/simulator.md)."""

pytest_plugins = ["ttsp_ros.simulator.pytest_plugin"]
