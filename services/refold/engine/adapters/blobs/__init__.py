"""Large values in a folder or an object store."""
