"""Random agent programs: trees of asyncio that a seed makes up, and plain asyncio as the judge of what they must do."""
