"""What runs while a model trains: the driver, the step functions that Keras's loops call, and the model's state."""
