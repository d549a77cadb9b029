"""Vision-language tokens as a sensor_msgs/PointCloud2: one point a token, so that any VLM node can send them.

Fields: `feature` FLOAT32 x width, `is_image` UINT8 (1 image, 0 text), `valid` UINT8 (0 padding; may be left out).
Messages are read by their field names only; no ROS is needed to import this.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from ttsp_ros.dit.policy import Tokens

# sensor_msgs/PointField
UINT8, FLOAT32 = 2, 7


def read_tokens(message: Any, width: int, needs_is_image: bool) -> Tokens:
    """The tokens of a message; a view into its data where it can be.

    Args:
        message: sensor_msgs/PointCloud2.
        width: of a token, as the model expects it.
        needs_is_image: whether the model tells image from text tokens.

    Raises:
        ValueError: a field is missing or of the wrong type or count, or the data are shorter than announced.
    """
    points = message.width * message.height
    if points == 0:
        raise ValueError("tokens: the message is empty")
    fields = {field.name: field for field in message.fields}
    order = ">" if message.is_bigendian else "<"
    formats: dict[str, Any] = {"feature": (f"{order}f4", (_check(fields, "feature", FLOAT32, width),))}
    if needs_is_image or "is_image" in fields:
        _check(fields, "is_image", UINT8, 1)
        formats["is_image"] = "u1"
    if "valid" in fields:
        _check(fields, "valid", UINT8, 1)
        formats["valid"] = "u1"
    table = _table(message, {name: fields[name].offset for name in formats}, formats)
    yes = np.ones(points, bool)
    return Tokens(
        np.asarray(table["feature"], np.float32),
        table["is_image"] != 0 if "is_image" in formats else yes,
        table["valid"] != 0 if "valid" in formats else yes,
    )


def _check(fields: dict[str, Any], name: str, datatype: int, count: int) -> int:
    kind = {UINT8: "UINT8", FLOAT32: "FLOAT32"}[datatype]
    if name not in fields:
        raise ValueError(f"tokens: no field '{name}' ({kind} x {count}); got {', '.join(fields) or 'none'}")
    field = fields[name]
    # A count of 0 means 1: older senders leave it out.
    if field.datatype != datatype or max(field.count, 1) != count:
        raise ValueError(
            f"tokens: field '{name}': got datatype {field.datatype} x {field.count}, "
            f"expected {kind} ({datatype}) x {count}"
        )
    return count


def _table(message: Any, offsets: dict[str, int], formats: dict[str, Any]) -> np.ndarray:
    """The points as a structured array [points]."""
    step, width, height = message.point_step, message.width, message.height
    row_step = message.row_step or step * width
    needed = row_step * (height - 1) + step * width
    data = np.frombuffer(message.data, np.uint8)
    if row_step < step * width or len(data) < needed:
        raise ValueError(
            f"tokens: {width} x {height} points of {step} bytes in rows of {row_step} need {needed} bytes, "
            f"got {len(data)}"
        )
    try:
        dtype = np.dtype(
            {
                "names": list(formats),
                "formats": list(formats.values()),
                "offsets": list(offsets.values()),
                "itemsize": step,
            }
        )
    except ValueError as error:
        raise ValueError(f"tokens: the fields do not fit into point_step {step}: {error}") from error
    rows = [data[row * row_step : row * row_step + step * width].view(dtype) for row in range(height)]
    return rows[0] if height == 1 else np.concatenate(rows)


def token_message(header: Any, tokens: Tokens) -> Any:
    """The message of these tokens; `read_tokens` gives them back."""
    from sensor_msgs.msg import PointCloud2, PointField

    count, width = tokens.features.shape
    # A whole number of floats a point, so that a reader can view the features where they are.
    step = 4 * width + 4
    dtype = np.dtype(
        {
            "names": ["feature", "is_image", "valid"],
            "formats": [("<f4", (width,)), "u1", "u1"],
            "offsets": [0, 4 * width, 4 * width + 1],
            "itemsize": step,
        }
    )
    table = np.zeros(count, dtype)
    table["feature"], table["is_image"], table["valid"] = tokens.features, tokens.is_image, tokens.valid
    data = array("B")
    data.frombytes(table.tobytes())
    return PointCloud2(
        header=header,
        height=1,
        width=count,
        fields=[
            PointField(name="feature", offset=0, datatype=FLOAT32, count=width),
            PointField(name="is_image", offset=4 * width, datatype=UINT8, count=1),
            PointField(name="valid", offset=4 * width + 1, datatype=UINT8, count=1),
        ],
        is_bigendian=False,
        point_step=step,
        row_step=step * count,
        data=data,
        is_dense=True,
    )
