"""The rules of the design, each in a sentence, and the planted bugs that break it."""

from __future__ import annotations

RULES: dict[str, tuple[str, ...]] = {
    # The log
    "A record counts if and only if its `prev` is the head of its run as folded so far.": ("last-wins-fold",),
    "The nonce is fresh for every send; the application never sends the same bytes twice.": ("same-bytes-twice",),
    "The record key is unique: with run and seq alone a loser would replace the winner.": ("key-without-event-id",),
    "A second start with other input is contradictory, and becomes a dead letter.": ("contradiction-swallowed",),
    "A large value is kept before the record that points to it is written.": ("record-before-value",),
    "Code gets what the log points to, and runs on when that was read.": (
        "values-of-the-past-unread",
        "overtakes-what-is-kept",
    ),
    "A second start with equal input changes nothing.": ("second-start-taken",),
    "An entry with a time that no log has counts for no reader.": ("entry-of-no-time",),
    # The planner
    "A decision is judged by a catalog that was read to an end captured after it came.": ("decided-by-an-old-catalog",),
    "Act only on accepted records.": ("act-before-acceptance",),
    "For every accepted record, own or foreign, emit the commands that it implies.": ("foreign-orders-ignored",),
    "The run log is the planner's outbox: its position is where commands are acknowledged.": ("orders-forgotten",),
    "A failed delivery has an unknown outcome: read back before going on.": ("no-read-back",),
    "Never derive the resume position from the highest cause seen in the log.": ("resume-at-highest-cause",),
    "Input offsets are a low-water mark: all at or below has been accepted or ignored.": (
        "commits-what-was-read",
        "input-done-when-read",
    ),
    "A log that got shorter is noticed at once, and folded again.": (
        "shorter-log-unnoticed",
        "own-loss-unnoticed",
        "own-mistake-kept",
    ),
    "Marks alone say how far inputs are answered: group offsets only mirror them.": ("committed-is-answered",),
    "Marks hold in the log in which they were written, and in no mirror of that.": ("marks-of-another-log",),
    "A run in trouble keeps itself out of the snapshot, and nothing else.": (
        "forked-run-stops-snapshots",
        "repaired-run-stops-snapshots",
    ),
    "A snapshot that lacks anything is not believed.": ("holed-snapshot-believed", "retry-lost-to-a-zombie"),
    "A run that is over has a row in the snapshot and nothing else, whoever wrote it.": ("zombies-block-kept",),
    "What the marks rely on is there: every topic goes on to where they say.": ("ends-not-compared",),
    "The outbox keeps a result until its publish is acknowledged.": ("unknown-is-published",),
    "What a topic has lost is asked for again.": ("lost-request-waited-for",),
    "A short order goes on from the very calls that it names, of its own run, or from nothing.": (
        "short-order-acted-on-in-part",
        "short-order-on-any-base",
        "short-order-digest-of-nothing",
    ),
    "An executor that lacks what a short order goes on from is sent the whole at once.": (
        "short-order-told-to-nobody",
    ),
    "Take over: rebuild timers.": ("timers-forgotten",),
    "The time of a lane is that of its run log.": ("time-by-snapshots",),
    "Every open call has a durable deadline: that keeps runs from sticking.": ("call-without-deadline",),
    "The planner owns all time, and nothing is due before its time.": ("timers-early",),
    "A request that lies in another partition is forwarded home, never processed where it fell.": (
        "stray-decided-where-it-fell",
    ),
    "Input for a run that is not known yet waits.": ("early-signal-buried",),
    "Cancel is legal from pending, running, suspended.": ("cancel-ignored",),
    "Of a run of somebody else operators alone say anything.": ("anybody-cancels",),
    "Contradictory or unreadable input goes to the dead letters with its position.": (
        "dropped-dead-letter",
        "unacknowledged-dead-letter",
    ),
    "The status of a run follows from what its events say.": ("waiting-untold", "waking-untold"),
    "Whoever waits for a run hears of its end.": ("outcome-untold",),
    "A request topic is also the table of what is open: what is settled is closed.": ("calls-never-closed",),
    # The ledger and the outbox
    "A lease that ends later than any lease lasts is none: the clock has been set right.": ("future-lease-believed",),
    "A process ends leases that its name has, of calls that may be repeated, and no others.": (
        "lease-of-another-ended",
        "waited-for-lease-ended",
    ),
    "What is refused leaves its topic: it is not said anew when positions are lost.": ("refused-comes-alive",),
    "Claim before the effect.": ("skip-the-claim", "effect-before-claim"),
    "Offsets are committed after the claim.": ("commit-before-claim",),
    "The idempotency key belongs to the call, never to the attempt.": ("key-per-attempt",),
    "A stored success answers every attempt, a stored failure only its own.": ("failure-for-good",),
    "A result names its source: the ledger or a status hook only where that has answered.": (
        "executed-is-stored",
        "executed-is-probed",
    ),
    "A settled call is withdrawn: nothing of it begins any more.": ("closed-too-early",),
    "What is lost with a partition, or has never shown in the log, is let go.": ("keeps-what-it-lost",),
    "A failed run goes on with all finished work kept.": ("done-again",),
    "While a run is paused no code of it is run, and no timer fires.": (
        "code-while-paused",
        "timer-while-paused",
    ),
    "Nothing new goes out of a run that is paused.": ("retry-while-paused", "decision-lets-out-while-paused"),
    "What ends with a run is paused with it.": ("child-not-reached",),
    "What a pause has kept back goes out when it is over.": ("kept-back-for-ever",),
    "A call whose attempts are used up, and that is held for that, goes out again by an operator's word alone.": (
        "held-goes-out-by-itself",
    ),
    "What is asked for anew is another call, for a tombstone has closed the first.": ("retried-under-a-closed-id",),
    "Of what a fork keeps of its source nothing follows, whoever reads it.": (
        "copies-are-told",
        "copies-are-billed",
    ),
    "A fork goes on when it has all that it is to keep, and nothing of another one.": (
        "half-a-copy-goes-on",
        "half-a-copy-is-all",
        "copied-onto-another-fork",
    ),
    "What a fork asks for anew has keys of its own, also by a retry.": (
        "fork-under-the-keys-of-its-source",
        "failed-under-the-key-of-its-source",
    ),
    "A fork has children of its own in the place of those that were open.": (
        "fork-without-its-children",
        "fork-leaves-no-children",
    ),
    "What waits in a fork has the time that was left.": ("fork-due-as-its-source",),
    "A second answer means a second request: it is closed again.": ("second-answer-left-open",),
    "What may not have arrived is sent again as it is by then.": ("unknown-sent-as-it-was",),
    "Who takes no more goes on when there is room.": ("executors-pause-for-good", "planners-pause-for-good"),
    "A lane works when something came for it, and when its own time has come.": (
        "lane-forgets-its-time",
        "record-touches-nobody",
    ),
    "Take over: bring every run to where its state calls for something.": ("nobody-driven",),
    # Effects
    "A timeout or an exception after something was sent is an unknown outcome, never a failure.": (
        "timeout-is-failure",
        "unknown-is-failure",
    ),
    "`once`: never run again, the call is in doubt and a human decides.": ("once-is-repeated",),
    "A result counts from any attempt and however late.": ("older-attempts-unheard",),
    "A late result is published, and never dropped.": ("late-result-dropped",),
    "Requests older than half the ledger's retention are dropped.": ("old-request-believed",),
    "After the receiver's key window nobody acts under the key.": ("key-window-unseen", "key-window-at-start"),
    # The claim chain
    "For `probed` and `once` calls the claim is also a record in the log.": ("claim-chain-skipped",),
    "The executor reads up to its own record before it acts; not the head: let go.": ("acts-unread",),
    "A claim of somebody else at the head: wait one whole lease since you first saw it.": (
        "lease-not-waited-for",
        "half-a-lease-waited-for",
    ),
    "A chain is linked by `prev`, wherever its records lie.": ("claims-in-offset-order",),
    "An effect begins only within a margin shorter than the lease.": ("margin-ignored", "margin-of-a-whole-lease"),
    "Nothing that may wait comes between the last look at the clock and a tool.": ("tools-start-last",),
    "Declaring doubt is itself a claim.": ("doubt-outside-the-chain",),
    "`probed` with any claim before it: ask the hook first.": (
        "probe-not-asked",
        "ledger-alone-unheard",
        "order-alone-unheard",
    ),
    "`once` with an owner of whom only the ledger knows: in doubt.": ("lost-claim-never-made",),
    "Only a record of this claim is knowledge of it.": ("any-claim-is-this-claim",),
    "Of two claims of one call under two keys the later lets go.": ("two-keys-two-owners",),
    "Whoever lets go of a claim leaves in the ledger what others had left there.": ("release-forgets-who-was-before",),
    # Who is told to end
    "A drain charges no attempt: what may be repeated goes on elsewhere as the same one.": (
        "drain-charges-an-attempt",
    ),
    "What has begun is not taken back, and what has not begun is.": (
        "drain-takes-back-what-has-begun",
        "drain-leaves-its-claims",
    ),
    "What is claimed is handed over, and never let go of unknown to others.": ("drain-forgets-what-it-claimed",),
    # Approval
    "The executor verifies a decision itself.": ("unsigned-decision", "boolean-approval"),
    "A decision is bound to the digest of the exact call.": (
        "decision-for-equal-calls",
        "order-says-its-class",
        "not-at-home",
    ),
    "A decision is good for the attempts that it names.": ("decision-for-any-attempt",),
    "A decision has an end.": ("expiry-by-own-clock", "expiry-ignored"),
    "The requester does not decide, where the policy says so.": ("requester-counted",),
    "What people make of a call by an edit is judged like any call.": ("edit-not-judged",),
    "Who was put on a list may not put others on it.": ("handed-on-again",),
    "Whoever may not decide any more has not decided.": ("revoked-people-decide",),
    "Whoever acts counts the votes again.": ("nobody-counts-again",),
    "A policy that wants it judges every call again.": ("policy-never-rechecked",),
    "What is judged again is taken back from executors, and not sent to them meanwhile.": (
        "taken-back-by-nobody",
        "sent-again-while-people-are-asked",
    ),
    "An order that is taken back does not begin, wherever it waits.": (
        "waits-across-a-ruling",
        "claimed-across-a-ruling",
    ),
    "The first valid decision wins.": ("decides-again",),
    "A call that needs a decision waits for it.": ("sent-before-decided",),
    "A vote is on one question, which is its digest.": ("votes-of-other-questions",),
    "A vote has its time: it is not of tomorrow, and not of last month.": ("votes-of-the-future", "votes-without-end"),
    "What is sent once goes out again when people have said that nothing came of it.": (
        "nothing-came-of-it",
        "any-word-settles",
    ),
    "Every vote that settles a doubt is younger than the attempt.": ("one-young-vote-settles",),
    "What people say of a doubt lets nothing out by itself.": ("doubt-settled-is-permission",),
    "A policy says how much of an approval is remembered.": ("grants-without-caps",),
    "A key that is bound to people speaks for them alone.": ("key-speaks-for-anybody",),
    # What runs wait for
    "A signal is taken once.": ("signal-taken-twice",),
    "A run keeps so much of what it is told, and says when that is full.": ("signals-without-end",),
    "Two equal waits never share an answer.": ("equal-waits-share-an-answer",),
    "A signal that came before the wait is kept for it.": ("kept-signal-passed-over",),
    # Who else may write
    "The catalog is what the root key has signed, and the higher counter is in force.": (
        "catalog-unsigned",
        "catalog-goes-back",
    ),
    "Redis orders nothing: what no executor of the pool has sealed means nothing.": ("anybody-fills-the-ledger",),
    "A pool's calls are its own: no other answers them, and none does them.": ("any-pool-answers", "any-pool-acts"),
    "What a letter says is not sent again, but what lies in the topic.": ("letters-believed",),
    # What code waits for
    "What nobody waits for any more is given up, and the log says so.": ("give-up-lost", "loser-left-open"),
    "What an order could depend on has a place in its run, and no address.": ("address-hashes",),
    # Families
    "How a child ends reaches whoever waits for it, and nobody else.": (
        "late-child-heard",
        "child-unheard",
    ),
    "What a run means for its family is owed through any crash.": ("family-debt-forgotten",),
    "When a parent is over, or gives a child up, that is over too.": ("given-up-child-goes-on", "orphans-go-on"),
    "What outlives its parent goes on.": ("abandoned-with-its-parent",),
    # Versions
    "A run goes on by the version that it began with, until an order that was taken says otherwise.": (
        "newest-takes-all",
    ),
    "A run whose version a planner does not have goes on when one has its lane that does.": (
        "never-tried-with-new-code",
    ),
    "A run is handed to a version whose code goes with its history, and to no other.": ("migrated-unrehearsed",),
    "An order that a later one has overruled is not taken again.": ("overruled-order-taken-again",),
    # Budgets
    "Every attempt is reserved before it goes out.": ("retry-unreserved",),
    "What an attempt took is billed, and what is not known stays booked.": (
        "bill-lost",
        "lost-answer-released",
        "paid-twice-booked-once",
        "usage-of-nothing-is-free",
        "other-try-forgotten",
        "two-lost-booked-once",
    ),
    "A family shares the budget of the first, and knows what all of it took.": (
        "family-not-counted",
        "child-unbilled",
        "ended-child-uncounted",
    ),
    "Nothing goes out beyond a limit, of whatever there is one.": ("tokens-unbounded", "calls-uncounted"),
    "Beyond a soft threshold a run says so, and asks or does it cheaper.": (
        "threshold-untold",
        "goes-on-unasked",
        "never-cheaper",
    ),
    "The same call is made so often, and then the agent hears of it.": ("repeats-as-wanted",),
    "A child that has used up its budget has failed for its parent.": ("spent-child-succeeds",),
    "A policy sees what a run has cost.": ("cost-of-bills-alone",),
    "No request is paid twice but where something has failed.": ("asks-once-more",),
    "A limit of a day counts what every lane lets out, once, whoever serves it.": (
        "limit-counted-twice",
        "limit-unheard",
    ),
    "A limit by label is one for each value of it.": ("tenants-share-a-limit",),
    "Of more values of a label than are counted those that came later share one limit.": ("made-up-values-gain",),
    "What other lanes have told a successor reads.": ("limit-of-others-forgotten",),
    "What a successor does not read it was told before.": ("limit-forgotten", "limit-kept-before-told"),
    # Erasure
    "A run is erased only when it is over, told, and its copy was read back and verified.": (
        "copy-unverified",
        "archived-in-name",
        "erased-untold",
    ),
    "A family is erased whole, and parents before what they have started.": (
        "family-erased-in-part",
        "children-erased-first",
    ),
    "A marker stands from before the first tombstone until nothing of its run lies in any topic.": (
        "tombstones-before-marker",
        "marker-gone-too-soon",
    ),
    "What is left of a run that has a marker counts as nothing, and its id is refused.": ("marker-ignored",),
    "By its row an erased run is known until the horizon: the same request starts nothing.": ("row-erased-too",),
    "No row goes of a run of which anything lies in the log.": ("horizon-over-what-lies",),
    "Whose claims were erased may have acted: its calls are probed, or in doubt.": ("claims-erased-too",),
    # Views
    "Rows and the position of the log are written in one transaction.": ("position-apart", "batch-sent-again"),
    "An entry is in a view if and only if it extends the head of its run.": ("loser-in-a-view",),
    "What fits in neither way has its run read whole.": ("jump-passed-over",),
    "A view knows an erased run by its head for as long as the marker stands.": ("erased-comes-back",),
    "A generation is in use once it has caught up with the one before.": ("switched-too-early",),
    "What erased runs have added to sums goes over to the next generation.": ("erased-sums-lost",),
    "A vote counts for a decision that names it.": ("vote-counted-when-said",),
    "A run has a hold from when it stalls until it goes on.": ("hold-never-over",),
    "No row of an erased run stays, in no table.": ("letters-outlast-erasure",),
    "Usage is priced where no bill says what a call has cost.": ("priced-though-billed",),
    "An operator's action is a row.": ("noted-twice",),
    "The topic has the last row of every run, whoever was writing it meanwhile.": ("older-row-over-newer",),
    "A tombstone follows in the topic when a run is erased, also behind a crash.": (
        "run-view-unburied",
        "run-view-forgets-the-erased",
        "run-view-note-of-a-zombie",
    ),
    # Models
    "What a model wants is a proposal: harm waits for a decision, however it is asked for.": ("harm-as-wanted",),
    "One run has no more steps and bytes than it may have.": ("limits-unread",),
    "One run starts no more others than it may, and none too deep.": ("starts-as-many-as-wanted",),
    "A run whose deadline has passed is over.": ("deadline-unseen",),
}
"""What is not here is broken without that the simulator sees it, or is kept by more than one rule."""
