"""Tools for proving that the product's promises hold; nothing here runs in production."""
