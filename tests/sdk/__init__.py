"""What agent authors import, tested without any service."""
