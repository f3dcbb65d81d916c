"""What runs on the nodes."""
