"""The runtime of one machine: the distributed graph is a function on the user's own variables."""
