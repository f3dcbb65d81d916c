"""The callbacks for Keras: a training that goes on, and the plan in TensorBoard; and Keras's own."""
