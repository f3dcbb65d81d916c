"""Splitting variables along one axis: how a split is written. Training split variables comes later in the flow."""

from autodist_core.strategy.partition import PartitionerConfig

__all__ = ["PartitionerConfig"]
