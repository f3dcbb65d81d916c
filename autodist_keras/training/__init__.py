"""What runs while a model trains: the driver, the sessions, the step functions of Keras's loops, and the state."""
