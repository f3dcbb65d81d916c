"""Recovery after the loss of a machine: the last safe state, and the session that goes on from it."""
