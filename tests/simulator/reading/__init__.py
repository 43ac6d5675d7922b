"""A second reading of the raw topics, written without the product's own fold: what the checkers trust."""
