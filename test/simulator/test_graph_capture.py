"""Whole ttnn operations are checked without running: shapes, programs, memory."""

import pytest
import torch

from ttsp_ros.tenstorrent.graph_capture import capture


def convolve_and_pool(device, height, width, channels):
    """conv2d 3x3 with ReLU, then max_pool2d 2x2, of an image that a capture uploads."""
    import ttnn

    image = ttnn.from_torch(torch.zeros(1, 1, height * width, channels).bfloat16())
    weight = ttnn.from_torch(torch.zeros(64, channels, 3, 3).bfloat16())
    bias = ttnn.from_torch(torch.zeros(1, 1, 1, 64).bfloat16())
    relu = ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)

    def network():
        made, (rows, columns) = ttnn.conv2d(
            input_tensor=ttnn.to_device(image, device),
            weight_tensor=weight,
            bias_tensor=bias,
            device=device,
            in_channels=channels,
            out_channels=64,
            batch_size=1,
            input_height=height,
            input_width=width,
            kernel_size=(3, 3),
            stride=(1, 1),
            padding=(1, 1),
            return_output_dim=True,
            conv_config=ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16, activation=relu),
        )
        return ttnn.max_pool2d(
            input_tensor=made,
            batch_size=1,
            input_h=rows,
            input_w=columns,
            channels=64,
            kernel_size=[2, 2],
            stride=[2, 2],
            padding=[0, 0],
            dilation=[1, 1],
        )

    return network


def test_shapes_programs_and_memory(device):
    small = capture(convolve_and_pool(device, 48, 64, 64), device)
    assert [operation.name for operation in small.operations] == ["ttnn.to_device", "ttnn.conv2d", "ttnn.max_pool2d"]
    upload, convolution, pool = small.operations
    assert upload.programs == ()
    assert upload.outputs[0].memory.startswith("MemoryConfig(memory_layout=TensorMemoryLayout::INTERLEAVED")
    assert "Conv2dDeviceOperation" in convolution.programs
    assert convolution.outputs[0].shape == (1, 1, 48 * 64, 64)
    assert "Pool2D" in pool.programs
    assert pool.outputs[0].shape == tuple(small.result.shape) == (1, 1, 24 * 32, 64)
    assert (pool.outputs[0].dtype, pool.outputs[0].layout) == ("BFLOAT16", "ROW_MAJOR")
    large = capture(convolve_and_pool(device, 480, 640, 64), device)
    assert 0 < small.peak.total < large.peak.total
    assert small.fits and large.fits
    assert small.peak.buffers > 0 and small.peak.programs > 0


def test_what_does_not_fit_is_seen(device):
    import ttnn

    image = ttnn.from_torch(torch.zeros(1, 1, 110 * 1024, 1024).bfloat16())  # 2 MiB a core
    upload = capture(lambda: ttnn.to_device(image, device, memory_config=ttnn.L1_MEMORY_CONFIG), device)
    assert upload.peak.buffers == upload.peak.total == 2 * 1024 * 1024
    assert not upload.fits


def test_what_ttnn_refuses_fails_and_ends_the_capture(device):
    import ttnn

    network = convolve_and_pool(device, 48, 64, 64)
    with pytest.raises(RuntimeError, match="must be tile"):  # of the pool's 7 rows a core
        capture(lambda: ttnn.add(network(), 1.0), device)
    assert capture(lambda: None, device).operations == ()
