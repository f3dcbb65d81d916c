"""What a user reads before and after training: the plan, and the comparison with one device."""
