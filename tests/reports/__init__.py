"""What compares with one device and measures."""
