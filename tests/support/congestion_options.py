"""Lines of an OpenSM configuration that switch InfiniBand's congestion control on."""

from __future__ import annotations

# from the threshold at which switches mark to the adapters that slow down by service level
MARKING = """cc_sw_cong_setting_threshold 0x0f
cc_sw_cong_setting_packet_size 8
cc_sw_cong_setting_credit_starvation_threshold 0x05
cc_sw_cong_setting_credit_starvation_return_delay 1:20
cc_sw_cong_setting_marking_rate 7
cc_ca_cong_setting_port_control 0x1
"""
