"""What keeps a traced step from being distributed: each module looks for one obstacle and names its remedy."""
