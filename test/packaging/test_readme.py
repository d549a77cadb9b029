"""What README.md and CONTRIBUTING.md say exists, exists, and is called so."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from ttsp_ros.ros.camera import OUTPUTS
from ttsp_ros.ros.dit_parameters import DIT_PARAMETERS
from ttsp_ros.ros.launch_arguments import NODE_ARGUMENTS, TOPIC_ARGUMENTS
from ttsp_ros.ros.parameters import Takes
from ttsp_ros.ros.superpoint_parameters import SUPERPOINT_PARAMETERS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
EVERYTHING = "\n".join(DOCUMENTS.values())
CHANGES = {Takes.NEXT_FRAME: "any time", Takes.CONFIGURE: "unconfigured", Takes.START: "start"}


def section(title):
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(title):
    """Rows of the first table of a section, as lists of cells."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_make_targets():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", EVERYTHING, re.MULTILINE))
    assert {"demo", "test", "bench", "lint"} <= named
    assert named <= targets, named - targets


def test_launch_files_and_their_arguments():
    files = set(re.findall(r"ros2 launch ttsp_ros (\S+\.launch\.py)", EVERYTHING))
    assert "superpoint.launch.py" in files
    assert all((ROOT / "launch" / name).is_file() for name in files)
    common = {argument.name for argument in NODE_ARGUMENTS}
    superpoint = common | {a.name for a in TOPIC_ARGUMENTS} | {p.name for p in SUPERPOINT_PARAMETERS}
    dit = common | {p.name for p in DIT_PARAMETERS}
    known = {"superpoint.launch.py": superpoint, "demo.launch.py": superpoint | {"bag"}, "dit.launch.py": dit}
    for name, arguments in re.findall(r"ros2 launch ttsp_ros (\S+)(.*)", EVERYTHING):
        used = set(re.findall(r"(\w+):=", arguments))
        assert used <= known[name], (name, used - known[name])
    used = set(re.findall(r"(\w+):=", README))
    assert used <= set().union(*known.values()), used


def test_executables():
    entry_points = set(re.findall(r'"(\w+) = ttsp_ros', (ROOT / "setup.py").read_text()))
    used = set(re.findall(r"ros2 run ttsp_ros (\w+)", EVERYTHING))
    assert used
    assert used <= entry_points


def test_python_modules():
    for name in set(re.findall(r"python -m (ttsp_ros[\w.]*)", EVERYTHING)):
        assert importlib.util.find_spec(name), name
    for name in set(re.findall(r"`(ttsp_ros(?:\.\w+)+)\(", EVERYTHING)):
        module, function = name.rsplit(".", 1)
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_paths(name):
    targets = [link for link in re.findall(r"\]\(([^)#]+)\)", DOCUMENTS[name]) if "://" not in link]
    targets += re.findall(r"`((?:ttsp_ros|config|kernels|launch|requirements|docs|test)/[\w./]*)`", DOCUMENTS[name])
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing


def test_the_picture_is_small():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    assert all((ROOT / picture).stat().st_size < 300 * 1024 for picture in pictures)


def test_the_parameter_table_is_the_node_s():
    def shown(default):
        if default in ("", [""]):
            return '""' if default == "" else '[""]'
        return yaml.safe_dump(default, default_flow_style=True).removesuffix("...\n").strip()

    expected = [[f"`{p.name}`", f"`{shown(p.default)}`", CHANGES[p.takes]] for p in SUPERPOINT_PARAMETERS]
    assert [row[:3] for row in table("Parameters")] == expected
    for parameter, row in zip(SUPERPOINT_PARAMETERS, table("Parameters"), strict=True):
        assert row[3]
        for choice in parameter.choices:
            assert choice in " ".join(row), f"{parameter.name}: {choice}"


def test_the_topic_table_has_every_output():
    text = " ".join(row[0] for row in table("Topics"))
    assert set(re.findall(r"~/(\w+)", text)) == {*OUTPUTS, "latency"}


def test_no_placeholder_is_left():
    assert not re.search(r"\b(TODO|TBD|FIXME|XXX|[A-Z]+_FIGURES)\b", EVERYTHING)
