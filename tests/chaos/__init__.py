"""Real processes under real faults: what a crash, a stop, a lost Redis may not break.

**Parts**: `recorder` is the outside world (a process of its own, with a file of its own), `app` the tools and agents
that act on it, `load` the user who starts runs, `human` the operator who settles what is in doubt, `faults` what is
done to the processes, `points` the kills at exact boundaries, `judge` the verdict from raw topics and the recorder's
file, `campaign` all of it for so many minutes.

`make chaos` runs 15 minutes of it, `make soak` hours, `make test` a slice.
"""
