"""From an input to an entry: answers, admission, and effects of runs on each other."""
