"""What a training will take of the memory."""
