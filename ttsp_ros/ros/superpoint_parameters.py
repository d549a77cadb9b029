"""The parameters of superpoint_node, and what they mean to the code below it."""

from __future__ import annotations

import re
from pathlib import Path

from ttsp_ros.backends import BACKENDS, NETWORKS, ExtractorOptions
from ttsp_ros.ros.overlay import COLORMAPS, OverlaySettings
from ttsp_ros.ros.parameters import AUTOSTART, ParameterSpec, Takes, Values
from ttsp_ros.superpoint.features import DetectionSettings

TRANSPORTS = ("raw", "compressed")
PRECISIONS = ("auto", "float32", "bfloat16")
NO_RESIZE = [0, 0]
ONE_CAMERA = [""]

_DETECTION = DetectionSettings()
_OVERLAY = OverlaySettings()
_CAMERA_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)*")

SUPERPOINT_PARAMETERS = (
    AUTOSTART,
    ParameterSpec(
        "backend",
        "auto",
        "What computes the features: 'ttnn' the Tenstorrent card, 'torch' the CPU, 'auto' the card where there is one.",
        Takes.CONFIGURE,
        choices=BACKENDS,
    ),
    ParameterSpec(
        "weights",
        "",
        "Path of a SuperPoint weight file (.pth, .pt, .safetensors); empty: the default one, fetched at set-up.",
        Takes.CONFIGURE,
    ),
    ParameterSpec(
        "precision",
        "auto",
        "Number format of the network; 'auto' is bfloat16 where the hardware has it.",
        Takes.CONFIGURE,
        choices=PRECISIONS,
    ),
    ParameterSpec(
        "network",
        "device",
        "Of backend 'ttnn': 'device' runs the network on the card; 'host' runs it on the CPU, and only NMS and "
        "descriptor sampling on the card, to find out which half is at fault.",
        Takes.CONFIGURE,
        choices=NETWORKS,
    ),
    ParameterSpec(
        "resize",
        NO_RESIZE,
        "[height, width] that every image is resized to before detection; [0, 0] keeps its size. Keypoints are in "
        "pixels of the image as received either way.",
        Takes.CONFIGURE,
    ),
    ParameterSpec(
        "threads", 0, "CPU threads of the torch backend; 0: one per core.", Takes.CONFIGURE, minimum=0, maximum=256
    ),
    ParameterSpec(
        "transport",
        "raw",
        "'raw' takes sensor_msgs/Image from 'image', 'compressed' sensor_msgs/CompressedImage from 'image/compressed'.",
        Takes.CONFIGURE,
        choices=TRANSPORTS,
    ),
    ParameterSpec(
        "cameras",
        ONE_CAMERA,
        "Names of several cameras that share one network. Camera 'left' has the topics left/image, left/camera_info, "
        "~/left/keypoints and so on; one empty name is a single camera without a prefix.",
        Takes.CONFIGURE,
    ),
    ParameterSpec(
        "threshold",
        _DETECTION.threshold,
        "A keypoint's score is greater than this; less than 1.",
        minimum=0.0,
        maximum=1.0,
    ),
    ParameterSpec(
        "max_keypoints",
        _DETECTION.max_keypoints,
        "At most this many keypoints of an image are kept, best first.",
        minimum=1,
        maximum=65536,
    ),
    ParameterSpec(
        "border",
        _DETECTION.border,
        "Keypoints closer than this to an edge are left out (pixels of the image that the network sees).",
        minimum=0,
        maximum=1024,
    ),
    ParameterSpec(
        "nms_radius",
        _DETECTION.nms_radius,
        "A keypoint is the best of the (2 r + 1) x (2 r + 1) pixels around it.",
        minimum=1,
        maximum=8,
    ),
    ParameterSpec(
        "rectified",
        False,
        "The images are rectified: bearings use P of camera_info and no distortion, instead of K and D.",
    ),
    ParameterSpec(
        "overlay_radius",
        _OVERLAY.radius,
        "Radius of the circles in the debug image (pixels).",
        minimum=1,
        maximum=50,
    ),
    ParameterSpec(
        "overlay_colormap",
        _OVERLAY.colormap,
        "Colours of the debug image, from the lowest to the highest score.",
        choices=tuple(COLORMAPS),
    ),
    ParameterSpec(
        "overlay_keypoints",
        _OVERLAY.max_keypoints,
        "At most this many keypoints are drawn in the debug image, best first.",
        minimum=1,
        maximum=65536,
    ),
    ParameterSpec(
        "input_timeout",
        5.0,
        "Warn when somebody wants features and no image has come for so long (seconds); 0 never warns.",
        minimum=0.0,
        maximum=3600.0,
    ),
    ParameterSpec(
        "diagnostics_period",
        1.0,
        "Seconds between two messages on /diagnostics.",
        Takes.START,
        minimum=0.05,
        maximum=60.0,
    ),
)


def check_values(values: Values) -> None:
    """Raise ValueError for values that the specs alone can't refuse."""
    detection_settings(values)
    extractor_options(values)
    camera_names(values)


def detection_settings(values: Values) -> DetectionSettings:
    """What may change with every frame."""
    return DetectionSettings(
        threshold=values["threshold"],
        nms_radius=values["nms_radius"],
        border=values["border"],
        max_keypoints=values["max_keypoints"],
    )


def overlay_settings(values: Values) -> OverlaySettings:
    """How the debug image looks."""
    return OverlaySettings(
        radius=values["overlay_radius"],
        colormap=values["overlay_colormap"],
        max_keypoints=values["overlay_keypoints"],
    )


def extractor_options(values: Values) -> ExtractorOptions:
    """What the extractor is made with."""
    return ExtractorOptions(
        backend=values["backend"],
        weights=Path(values["weights"]).expanduser() if values["weights"] else None,
        precision=values["precision"],
        resize=_resize(values["resize"]),
        threads=values["threads"] or None,
        network=values["network"],
    )


def camera_names(values: Values) -> list[str]:
    """Names of the cameras; [""] for one without a prefix."""
    names: list[str] = values["cameras"]
    if names == ONE_CAMERA:
        return names
    for name in names:
        if not _CAMERA_NAME.fullmatch(name):
            raise ValueError(f"cameras: got '{name}', allowed are names like left or front/left")
    if len(set(names)) != len(names):
        raise ValueError(f"cameras: got {', '.join(names)}, and a name can be there only once")
    return names


def _resize(sides: list[int]) -> tuple[int, int] | None:
    if sides == NO_RESIZE:
        return None
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"resize: got {sides}, allowed is [height, width] in pixels, or [0, 0] to keep the size")
    return sides[0], sides[1]
