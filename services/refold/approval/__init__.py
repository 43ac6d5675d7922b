"""The approval service: counts what people say of a call and signs what they have decided.

**Consumes** `approval-requested` (its group), and by hand the same partitions of `catalog`, `approval-decided` and
`approval-voted`, in this order; all of them from the start. **Produces** `approval-decided`; what nobody can use goes
to `dead-letter-approval`.

**Guarantees** A decision rests on a quorum of people who were entitled, by votes with good signatures on the very
question that it answers. One lane never makes two decisions of one approval. Nothing is decided after its expiry. A
grant decides the same call again, in the run that it was given in and nowhere else.

**When it dies** its successor reads everything again, keeps what is decided, and decides at once what has its quorum:
the verdict is a function of the set of votes, so it is the same. **When it is a zombie** there may be two decisions of
one approval; both rest on votes that count, and the planner takes the one that comes first. The service keeps no
positions and has no timer that matters: the planner owns expiry.

Where to look: `inputs` says which records can be used, `hearing` is where votes are on their way, `question` is one
approval that is open, `granting` is what holds for the same call again, `outbox` writes until the log has it, `lane` is
one partition, `service` is all lanes of a process, `settings` how it works. The judgement is `core.approval.ballot`.
"""
