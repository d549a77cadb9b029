"""A ROS node and an open device live in one process, as in the ttnn backend of the nodes."""

import os
import time

import rclpy
import torch
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import String


def test_messages_pass_while_the_device_is_open(device, monkeypatch):
    import ttnn

    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    context = Context()
    rclpy.init(context=context, domain_id=os.getpid() % 100 + 1)
    try:
        node = rclpy.create_node("beside", context=context)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        got = []

        def on_message(message):
            values = torch.tensor([[float(message.data)] * 32] * 32).bfloat16()
            tensor = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=device)
            got.append(ttnn.to_torch(tensor)[0, 0].item())

        publisher = node.create_publisher(String, "number", 1)
        node.create_subscription(String, "number", on_message, 1)
        deadline = time.monotonic() + 20
        while not got and time.monotonic() < deadline:
            publisher.publish(String(data="3"))
            executor.spin_once(timeout_sec=0.1)
        executor.shutdown()
        node.destroy_node()
    finally:
        rclpy.shutdown(context=context)
    assert got[0] == 3.0
