"""The pages: what they show, and that nothing which a run contains runs in them."""
