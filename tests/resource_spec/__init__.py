"""The cluster as a file describes it."""
