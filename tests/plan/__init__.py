"""What a plan says."""
