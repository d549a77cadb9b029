"""requirements/lock.txt is a whole, installable closure of requirements/direct.in, and it is what runs here."""

import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
PINNED_BY_SETUP = {"setuptools"}  # scripts/setup.sh installs the one that colcon needs


def lines(name: str) -> list[str]:
    texts = (re.sub(r"\s*#.*", "", line).strip() for line in (REQUIREMENTS / name).read_text().splitlines())
    return [text for text in texts if text]


def locked() -> dict[str, str]:
    pairs = (line.split("==") for line in lines("lock.txt"))
    return {canonicalize_name(name): version for name, version in pairs}


def direct() -> list[Requirement]:
    return [Requirement(line) for line in lines("direct.in")]


def test_every_line_of_the_lock_is_one_exact_version():
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines("lock.txt"))
    assert len(locked()) == len(lines("lock.txt"))


@pytest.mark.parametrize("requirement", direct(), ids=lambda requirement: requirement.name)
def test_the_lock_is_inside_the_range_that_was_asked_for(requirement):
    version = locked()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version, prereleases=True), f"{requirement} but the lock has {version}"


def test_the_lock_is_closed():
    """Each installed package's own requirements are in the lock, in a version that it accepts."""
    if "ROS_DISTRO" in os.environ:
        ros = {name for name in locked() if name.startswith("ros-") or name == "cv-bridge"}
    else:
        ros = set()
    versions = {name: version for name, version in locked().items() if name not in ros}
    extras = {canonicalize_name(requirement.name): requirement.extras for requirement in direct()}
    broken = []
    for name in versions:
        for text in distribution(name).requires or []:
            needed = Requirement(text)
            wanted = [{"extra": extra} for extra in extras.get(name, ())] or [{"extra": ""}]
            if needed.marker and not any(needed.marker.evaluate(environment) for environment in wanted):
                continue
            have = versions.get(canonicalize_name(needed.name))
            if canonicalize_name(needed.name) in PINNED_BY_SETUP | ros:
                continue
            if have is None or not needed.specifier.contains(have, prereleases=True):
                broken.append(f"{name} needs {needed}, the lock has {have}")
    assert not broken, "\n".join(broken)


def test_the_environment_is_the_lock():
    different = []
    for name, version in locked().items():
        if "ROS_DISTRO" in os.environ and (name.startswith("ros-") or name == "cv-bridge"):
            continue
        try:
            installed = distribution(name).version
        except PackageNotFoundError:
            installed = "nothing"
        if installed != version:
            different.append(f"{name}: locked {version}, installed {installed}")
    assert not different, "\n".join(different)
