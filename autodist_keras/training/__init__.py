"""What runs while a Keras model trains: the driver, its batches, and the step functions of Keras's loops."""
