"""What the log accepts, what that orders from others, and what it takes of shared limits."""
