"""The forecast: what a training step takes in the memory of each device, and whether it fits.

In: a captured step and a compiled strategy. Out: a `DeviceMemory` for each machine and GPU. Nothing is computed.
"""
