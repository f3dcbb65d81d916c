"""Changes to a captured graph before anything else reads it: each module changes one construct into plain nodes."""
