"""What finds out why a cluster does not start."""
