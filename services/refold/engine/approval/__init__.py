"""The approval service: counts votes on calls and signs decisions.

**Consumes** `approval-requested` (its group), and by hand the same partitions of `catalog`, `approval-decided` and
`approval-voted`, in this order, from the start. **Produces** `approval-decided`; unusable records go to
`dead-letter-approval`.

**Guarantees** A decision rests on a quorum of entitled people, by votes with good signatures on the very question that
it answers. One lane never makes two decisions of one approval. Nothing is decided after its expiry. A grant decides the
same call again, only in its run.

**When it dies** its successor reads everything again, keeps all decisions, and decides each question with a quorum: the
verdict is a function of the set of votes, so it is the same. **When it is a zombie** there may be two decisions of one
approval; both rest on votes that count, and the planner takes the first. The service keeps no positions; the planner
owns expiry.

`inputs` checks records, `question` is one open approval, `granting` has grants, `outbox` writes until the log has it,
`lane` is one partition. The judgement is `core.approval.ballot`.
"""
