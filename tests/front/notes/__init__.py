"""What the plan notes of layers, losses and metrics that treat the examples of a batch together."""
