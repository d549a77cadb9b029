"""SuperPoint features and GR00T DiT actions for ROS 2, computed on a Tenstorrent Blackhole card."""
