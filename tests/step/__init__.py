"""Steps as graphs."""
