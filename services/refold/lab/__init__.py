"""The lab: recorded runs, continued with other code or proved to others, without any effect.

`forks` continues a run in a process that cannot act, `processes` starts such processes, `pure` allows them calls that
are `pure`, `back_test` asks a policy about the past, `evidence` bundles records that are verified without Kafka."""
