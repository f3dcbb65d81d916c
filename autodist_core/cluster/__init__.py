"""Other machines: how they are reached and how programs are run there. Importing it imports no TensorFlow."""
