"""Real processes under real faults: what a crash, a stop, a lost Redis may not break.

**Parts**: `recorder` is the outside world (a process of its own, with a file of its own), `app` the tools and agents
that act on it, `rules` who has to be asked before which of them, and the rulers who change that meanwhile, `world` the
user who starts runs, `human` the operator who settles what is in doubt, `people` those who decide on what is dangerous,
`echo` what brings their decisions a second time, `faults` what is done to the processes, `points` the kills at exact
boundaries, `judge` and `consent` the verdict from raw topics and the recorder's file, `campaign` all of it for so many
minutes.

`make chaos` runs 15 minutes of it, `make soak` hours, `make test` a slice.
"""
