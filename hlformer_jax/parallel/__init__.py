"""Devices and processes: sharding, distributed start, compilation."""
