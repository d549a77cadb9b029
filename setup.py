"""The ament_python package: nodes and tools go to lib/ttsp_ros, their data to share/ttsp_ros."""

from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = "ttsp_ros"
SHARED_FOLDERS = ("launch", "config", "kernels")


def tree(folder: str) -> list[tuple[str, list[str]]]:
    """Every file below `folder`, to the same place below share/ttsp_ros."""
    parents = sorted({path.parent for path in Path(folder).rglob("*") if path.is_file()})
    return [
        (f"share/{PACKAGE}/{parent}", sorted(str(path) for path in parent.iterdir() if wanted(path)))
        for parent in parents
        if parent.name != "__pycache__"
    ]


def wanted(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc"


setup(
    name=PACKAGE,
    version="0.1.0",
    packages=find_packages(include=[PACKAGE, f"{PACKAGE}.*"]),
    package_data={PACKAGE: ["**/*"]},
    exclude_package_data={"": ["*.pyc", "__pycache__/*"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{PACKAGE}"]),
        (f"share/{PACKAGE}", ["package.xml", "LICENSE"]),
        *(entry for folder in SHARED_FOLDERS for entry in tree(folder)),
    ],
    install_requires=["setuptools"],
    zip_safe=False,
    maintainer="The ttsp_ros developers",
    maintainer_email="ttsp-ros@users.noreply.github.com",
    description="SuperPoint features and GR00T DiT actions for ROS 2, on a Tenstorrent Blackhole card or on the CPU",
    license="Apache-2.0",
    entry_points={
        "console_scripts": [
            "superpoint_node = ttsp_ros.ros.main:superpoint_node",
            "dit_node = ttsp_ros.ros.main:dit_node",
            "ttsp_replay = ttsp_ros.tools.replay:main",
            "ttsp_bench = ttsp_ros.tools.bench:main",
            "ttsp_weights = ttsp_ros.tools.weights:main",
        ],
    },
)
