"""Tokens as a PointCloud2."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sensor_msgs", reason="needs ROS: source an installation, or install the wheels (make setup)")

from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import Header

from ttsp_ros.dit.policy import Tokens
from ttsp_ros.ros.token_table import FLOAT32, UINT8, read_tokens, token_message

WIDTH = 6


def some_tokens(count: int = 5) -> Tokens:
    random = np.random.default_rng(0)
    features = random.standard_normal((count, WIDTH)).astype(np.float32)
    return Tokens(features, random.random(count) < 0.5, random.random(count) < 0.8)


def equal(tokens: Tokens, other: Tokens) -> bool:
    return all(
        np.array_equal(getattr(tokens, name), getattr(other, name)) for name in ("features", "is_image", "valid")
    )


def by_hand(tokens: Tokens, order: str = "<", height: int = 1, gap: int = 0, padding: int = 3) -> PointCloud2:
    """As another sender might lay it out: masks first, odd offsets, several rows with gaps between them."""
    count = len(tokens.features)
    step = 2 + 4 * WIDTH + padding
    rows = np.zeros((height, count // height * step + gap), np.uint8)
    for index in range(count):
        row, column = divmod(index, count // height)
        point = rows[row, column * step :]
        point[0], point[1] = 7 * tokens.valid[index], tokens.is_image[index]
        point[2 : 2 + 4 * WIDTH] = tokens.features[index].astype(f"{order}f4").view(np.uint8)
    fields = [
        PointField(name="valid", offset=0, datatype=UINT8, count=0),
        PointField(name="is_image", offset=1, datatype=UINT8, count=1),
        PointField(name="feature", offset=2, datatype=FLOAT32, count=WIDTH),
    ]
    return PointCloud2(
        height=height,
        width=count // height,
        fields=fields,
        is_bigendian=order == ">",
        point_step=step,
        row_step=rows.shape[1],
        data=array("B", rows.tobytes()),
    )


def test_there_and_back() -> None:
    tokens = some_tokens()
    header = Header(frame_id="camera")
    message = token_message(header, tokens)
    assert message.header == header and message.width == 5
    assert equal(read_tokens(message, WIDTH, needs_is_image=True), tokens)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("height", "gap"), [(1, 0), (1, 9), (2, 0), (2, 9)])
def test_other_layouts(order: str, height: int, gap: int) -> None:
    tokens = some_tokens(6)
    assert equal(read_tokens(by_hand(tokens, order, height, gap), WIDTH, needs_is_image=True), tokens)


def test_masks_that_are_left_out() -> None:
    message = token_message(Header(), some_tokens())
    message.fields = message.fields[:1]
    tokens = read_tokens(message, WIDTH, needs_is_image=False)
    assert tokens.valid.all()
    with pytest.raises(ValueError, match=r"no field 'is_image' \(UINT8 x 1\); got feature"):
        read_tokens(message, WIDTH, needs_is_image=True)


def broken(**changes: Any) -> PointCloud2:
    message = token_message(Header(), some_tokens())
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "the message is empty"),
        ({"width": 6}, "6 x 1 points of 28 bytes .* got 140"),
        ({"row_step": 100}, "in rows of 100"),
        ({"data": array("B", bytes(139))}, "need 140 bytes, got 139"),
        ({"fields": []}, r"no field 'feature' \(FLOAT32 x 6\); got none"),
        ({"point_step": 20, "row_step": 0}, "do not fit into point_step 20"),
    ],
)
def test_broken_messages(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tokens(broken(**changes), WIDTH, needs_is_image=True)


def test_wrong_width_and_type() -> None:
    message = broken()
    with pytest.raises(ValueError, match=r"'feature': got datatype 7 x 6, expected FLOAT32 \(7\) x 2048"):
        read_tokens(message, 2048, needs_is_image=True)
    message.fields[1].datatype = FLOAT32
    with pytest.raises(ValueError, match="'is_image': got datatype 7 x 1, expected UINT8"):
        read_tokens(message, WIDTH, needs_is_image=True)
