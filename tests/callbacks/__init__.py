"""The callbacks for Keras: a training that goes on, and Keras's own."""
