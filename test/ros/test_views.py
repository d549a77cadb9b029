"""The viewers' layouts show topics that the node has."""

from __future__ import annotations

import json
import re

import yaml

from ttsp_ros.ros.camera import OUTPUTS

TOPIC = re.compile(r"/superpoint/(\w+)")


def test_rviz_shows_topics_of_the_node(request):
    config = yaml.safe_load((request.config.rootpath / "config" / "superpoint.rviz").read_text())
    displays = {display["Name"]: display for display in config["Visualization Manager"]["Displays"]}
    topics = {name: display["Topic"]["Value"] for name, display in displays.items() if "Topic" in display}
    assert topics == {"Debug image": "/superpoint/debug_image", "Bearings": "/superpoint/bearings"}
    assert displays["Bearings"]["Channel Name"] == "score"


def test_foxglove_shows_topics_of_the_node_and_places_every_panel(request):
    text = (request.config.rootpath / "config" / "foxglove_layout.json").read_text()
    layout = json.loads(text)
    assert set(TOPIC.findall(text)) == {"debug_image", "bearings", "keypoints"} <= set(OUTPUTS)

    def leaves(place):
        return {place} if isinstance(place, str) else leaves(place["first"]) | leaves(place["second"])

    assert leaves(layout["layout"]) == set(layout["configById"])
