"""The catalogue of all commands, by group."""

from refold.cli.groups import CommandGroup, Verb

_DEV = CommandGroup(
    "Run a broker, Valkey and every service on this machine, each restarted when it dies.",
    {
        "status": Verb("dev:status", "Show the processes of a running `refold dev`.", "--json"),
        "kill": Verb("dev:kill_processes", "Kill processes of a running `refold dev` by SIGKILL.", "executor"),
    },
    itself=Verb("dev:dev", "Run a broker, Valkey and every service on this machine.", "app.py"),
)
_RUN = CommandGroup(
    "Start, show, steer and repair runs.",
    {
        "start": Verb("run:begin_run", "Start a run.", 'hello --input \'{"name": "Ada"}\' --wait'),
        "show": Verb("run:show_run", "Show a run: its status, its steps, and its open questions to people.", "r-7"),
        "list": Verb("run:list_runs", "List runs, the oldest first.", "--status failed --agent order"),
        "watch": Verb("run:watch_run", "Show a run live until it is over.", "r-7"),
        "events": Verb("run:print_events", "Print the history of a run, one event a line.", "r-7 --since 10m"),
        "value": Verb("run:print_values", "Print the values that a run exposes.", "r-7 cart --json"),
        "diff": Verb("run:diff_run", "Compare two points of a run, or two runs.", "r-7 19 36"),
        "signal": Verb(
            "steering:signal_run", "Send a signal that a run waits for, now or later.", "r-7 shipped --payload 7"
        ),
        "update": Verb("steering:update_run", "Send an update to a run.", "r-7 add --payload '{\"item\": 7}'"),
        "callback": Verb(
            "steering:answer_callback",
            "Complete or fail a callback by its token.",
            "cb_7Qx --payload '{\"paid\": true}'",
        ),
        "pause": Verb("steering:pause_run", "Pause a run and the runs it has started.", "--session shop-7 --yes"),
        "resume": Verb("steering:resume_run", "Resume a paused run.", "r-7"),
        "annotate": Verb("steering:annotate_run", "Add a note to the history of a run that goes on.", "r-7 'see #4'"),
        "cancel": Verb("steering:cancel_run", "Cancel a run and the runs it has started.", "r-7 --reason withdrawn"),
        "retry": Verb(
            "steering:retry_run", "Retry a failed run where it failed, or a stalled one.", "r-7 --tokens 9000"
        ),
        "resolve": Verb("approval:resolve", "Settle a call in doubt: record its outcome.", "r-7/3 --did-not-happen"),
        "migrate": Verb("steering:migrate_runs", "Migrate runs to another version of their agent.", "r-7 --to 2"),
        "repair": Verb("steering:repair_run", "Rewrite a run's records in order where a tool has mixed them.", "r-7"),
        "erase": Verb("archive:erase_run", "Erase a finished run from every topic at once.", "r-7 --no-archive"),
    },
    panels={
        "Start and look": "start show list watch events value diff",
        "Steer": "signal update callback pause resume cancel annotate",
        "Repair": "retry resolve migrate repair erase",
    },
)
_SCHEDULE = CommandGroup(
    "Run agents by the clock.",
    {
        "list": Verb("schedule:list_schedules", "List schedules: their next tick, and their last run."),
        "show": Verb(
            "schedule:show_schedule", "Show a schedule: its next ten ticks, and its last ten runs.", "nightly"
        ),
        "apply": Verb("schedule:apply_schedules", "Begin the schedules of an app.", "--app app.py"),
        "pause": Verb("schedule:pause_schedule", "Pause a schedule. Its runs go on.", "nightly --reason holidays"),
        "resume": Verb("schedule:resume_schedule", "Resume a paused schedule.", "nightly"),
        "trigger": Verb("schedule:trigger_schedule", "Start the agent of a schedule now.", "nightly"),
        "backfill": Verb(
            "schedule:backfill_schedule", "Start the agent of a schedule for ticks of the past.", "nightly --from 2d"
        ),
        "remove": Verb("schedule:remove_schedule", "End a schedule. Its runs go on.", "nightly"),
    },
    panels={"Look": "list show", "Change": "apply pause resume remove", "Start": "trigger backfill"},
)
_WORKER = CommandGroup(
    "List planners, executors and approval services.",
    {"list": Verb("workers:list_workers", "List planners, executors and approval services.", "--pool mail")},
)
_DEADLETTER = CommandGroup(
    "Show and replay dead letters.",
    {
        "list": Verb("deadletter:list_letters", "List dead letters, the oldest first.", "--code malformed"),
        "show": Verb("deadletter:show_letter", "Show a dead letter in full.", "0/17"),
        "replay": Verb("deadletter:replay_letter", "Publish the input of a dead letter again.", "0/17 --dry-run"),
    },
)
_ARCHIVE = CommandGroup(
    "List, verify and restore archived runs.",
    {
        "list": Verb("archive:list_archived", "List archived runs, by the time they ended.", "--since 30d"),
        "verify": Verb("archive:verify_archive", "Check archived copies from their bytes alone.", "r-7"),
        "restore": Verb("archive:restore_run", "Write a run to files that need no Refold to read.", "r-7 --to r-7"),
    },
)
_PROJECTION = CommandGroup(
    "Show, check and rebuild the tables that are filled from the log.",
    {
        "list": Verb("projection:list_projections", "List projections, their generations and progress.", "refold"),
        "verify": Verb("projection:verify_projection", "Compare every row with a fold of the log.", "refold"),
        "rebuild": Verb(
            "projection:rebuild_projection",
            "Build a projection from the start of the log, then switch to it.",
            "refold",
        ),
        "drop": Verb("projection:drop_projection", "Remove all tables of a projection.", "refunds --yes"),
    },
)
_APPROVAL = CommandGroup(
    "Decide on calls that wait for people.\n\nExit codes of a vote: 0 counted or recorded, 2 void or invalid, "
    "4 already decided or closed, 6 no answer within the timeout.",
    {
        "list": Verb("approval:list_approvals", "List approvals, the oldest first.", "--mine"),
        "show": Verb("approval:show_approval", "Show an approval: the call, its people, their votes.", "r-7/3"),
        "approve": Verb(
            "approval:approve", "Approve the call, as it is or with other arguments.", "r-7/3~8f14 -m 'as agreed'"
        ),
        "answer": Verb("approval:answer", "Give the result in the tool's place.", "r-7/3~8f14 '{\"paid\": false}'"),
        "reject": Verb("approval:reject", "Reject the call: the agent sees your message.", "r-7/3 -m expensive"),
        "comment": Verb("approval:comment", "Add a comment, without a vote.", "r-7/3 'who knows him?'"),
        "remind": Verb("approval:remind", "Remind the approvers.", "r-7/3"),
        "delegate": Verb(
            "approval:delegate", "Let another person decide in your place, or other people.", "r-7/3 grace"
        ),
        "withdraw": Verb("approval:withdraw", "Withdraw your own vote while nothing is decided, or a grant.", "r-7/3"),
    },
    panels={"Look": "list show", "Decide": "approve answer reject", "Discuss": "comment remind delegate withdraw"},
)
_POLICY = CommandGroup(
    "Check, publish and show the rules that judge every call.",
    {
        "check": Verb("policy:check_policy", "Report errors in policy files, and dead rules.", "policies --app app.py"),
        "publish": Verb("policy:publish_policy", "Put a policy in force for new runs, and roles for all.", "policies"),
        "show": Verb("policy:show_policy", "Show the policy, roles and keys in force, or the rule that judged a call."),
    },
)
_SERVE = CommandGroup(
    "Run one service in this process: planner, executor, approval, archivist, projections, gateway, "
    "telemetry, insights or sources; or `all` that a step needs.",
    {
        "all": Verb("serve.all:serve_all", "Run planner, executors and relay in one process.", "--app app.py"),
        "planner": Verb("serve.planner:planner", "Decide: read inputs, write the log, request calls.", "--app app.py"),
        "executor": Verb("serve.executor:executor", "Claim calls, run tools, record results.", "--app app.py"),
        "approval": Verb("serve.approval:approval", "Count votes on approvals, and sign decisions.", "--app app.py"),
        "archivist": Verb("serve.archivist:archivist", "Archive and erase runs after their retention.", "--app app.py"),
        "gateway": Verb("serve.gateway:gateway", "Serve the HTTP API over the views.", "--port 8321"),
        "telemetry": Verb("serve.telemetry:telemetry", "Export traces from the views by OTLP.", "--from-start"),
        "insights": Verb(
            "serve.insights:insights", "Count events and raise alerts, with Faust.", "--state sqlite:///figures.db"
        ),
        "projections": Verb("serve.projections:projections", "Keep tables up to date with the log.", "--app app.py"),
        "sources": Verb("serve.sources:sources", "Map records of other topics to runs and signals.", "--app app.py"),
    },
)
_TOPICS = CommandGroup(
    "Create topics and ACLs, and compare both with the broker.",
    {
        "apply": Verb("topics:apply_topics", "Create missing topics and correct their settings.", "--app app.py"),
        "list": Verb("topics:list_topics", "List the topics on the broker."),
        "acls": Verb("topics:compare_acls", "Show the ACLs of each role, and compare them with the broker.", "--apply"),
        "manifests": Verb(
            "topics:print_manifests", "Print topics, users, ACLs and quotas as resources of Strimzi.", "--app app.py"
        ),
    },
)
_KEYS = CommandGroup(
    "Create, publish, retire and revoke signing keys, and API keys of the gateway.",
    {
        "init": Verb("keys:init_root", "Create the root key, which signs policies, roles and keys.", "--root r.json"),
        "new": Verb("keys:new_key", "Create a key: a file, and a catalog entry.", "ada --use vote --actor ada"),
        "list": Verb("keys:list_keys", "List the keys in the catalog, or the API keys in a file."),
        "revoke": Verb("keys:revoke_key", "Revoke a key and everything it ever signed.", "ada-8f14 --reason stolen"),
    },
)

COMMANDS = CommandGroup(
    "Durable AI agents as event-sourced services on Kafka: a crash is a non-event.",
    {
        "init": Verb("init:init", "Create a project: an agent, tools, a policy, and a test that passes.", "shop"),
        "dev": _DEV,
        "run": _RUN,
        "schedule": _SCHEDULE,
        "why": Verb("evidence:why_event", "Show why something happened", "inc-1.3/30 --bundle why.jsonl"),
        "verify": Verb(
            "evidence:verify",
            "Check a bundle by its bytes alone, without Kafka; or, without BUNDLE, the log.",
            "why.jsonl",
        ),
        "doctor": Verb("doctor:doctor", "Check this machine, Kafka, Redis and an app.", "--app app.py"),
        "status": Verb("status:status", "Show live services, their backlogs, and problems that need people.", "--json"),
        "worker": _WORKER,
        "limits": Verb("run:limits", "List the spending under limits per day and month.", "--agent order"),
        "deadletter": _DEADLETTER,
        "archive": _ARCHIVE,
        "projection": _PROJECTION,
        "approval": _APPROVAL,
        "policy": _POLICY,
        "halt": Verb("halting:halt", "Halt a tool, agent, pool, requester, or all.", "--tool pay --reason broken"),
        "setup": Verb("provision:setup", "Create topics, keys and a policy on an existing Kafka.", "--app app.py"),
        "serve": _SERVE,
        "topics": _TOPICS,
        "keys": _KEYS,
        "replay": Verb("forks:replay", "Replay recorded runs with local code.", "r-7 --app app.py"),
        "fork": Verb(
            "forks:fork",
            "Fork runs: run today's code from one of their events, with changes, in a process without effects.",
            "r-7 --at 19 --app app.py",
        ),
        "schemas": Verb("schemas:print_document", "Print the OpenAPI or the AsyncAPI document.", "openapi"),
        "docs": Verb("docs:print_docs", "List the pages of the documentation, or print one.", "schedules"),
        "completion": Verb("completion:print_completion", "Print the completion script of a shell.", "bash"),
    },
    panels={
        "Start": "init dev run schedule docs completion",
        "Look": "status why verify doctor worker limits deadletter archive projection",
        "Decide": "approval policy halt",
        "Operate": "setup serve topics keys",
        "Develop": "replay fork schemas",
    },
)

RENAMED = {
    "run verify": "refold verify --run",
    "run replay": "refold replay",
    "replay check": "refold replay --app",
    "run fork": "refold fork",
    "run bundle": "refold why --bundle",
    "agents list": "refold worker list --agents",
    "tools list": "refold worker list --tools",
    "versions list": "refold worker list --versions",
    "versions migrate": "refold run migrate",
    "callback resolve": "refold run callback",
    "callback fail": "refold run callback --fail",
    "run stream": "refold run watch --tokens",
    "run audit": "refold run events --audit",
    "run fail": "refold run cancel --as-failed",
    "policy test": "refold policy check --recorded",
    "policy explain": "refold policy show",
    "policy drop": "refold policy publish --drop",
    "approval edit": "refold approval approve --args",
    "approval grants": "refold approval list --grants",
    "approval revoke-grant": "refold approval withdraw --grant",
    "approval reassign": "refold approval delegate --replace",
    "keys api new": "refold keys new --api",
    "keys api list": "refold keys list --api",
    "keys api revoke": "refold keys revoke --api",
    "keys rotate": "refold keys new --replaces",
    "demo": "make demo",
    "bench": "make bench",
    "sim": "make sim",
    "version": "refold --version",
    "unhalt": "refold halt --lift",
    "topics diff": "refold topics apply --check",
    "projection status": "refold projection list",
    "archive status": "refold archive list --pending",
    "schemas export": "make schemas",
    "schemas check": "make schemas CHECK=1",
}
"""New names by old ones, which for one release answer with the new name and do nothing else."""
