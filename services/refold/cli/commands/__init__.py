"""The catalogue of all commands: where each is, by group and panel of the help, with the first sentence of its help."""

from __future__ import annotations

from refold.cli.groups import CommandGroup, Verb

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Of commands that hand all arguments to a program of the checkout, `--help` too."""

_DEV = CommandGroup(
    "Run a broker, Valkey and every service on this machine, each restarted when it dies.",
    {
        "Commands": {
            "status": Verb("processes:status", "Show the processes of a running `refold dev`."),
            "kill": Verb("processes:kill_processes", "Kill processes of a running `refold dev`, as `kill -9` does."),
        }
    },
    itself="dev:dev",
)
_RUN = CommandGroup(
    "Start runs, look at them, steer them, and repair them.",
    {
        "Start and look": {
            "start": Verb("run:begin_run", "Start a run."),
            "show": Verb("run:show_run", "Show a run: its status, its steps, and what waits for people."),
            "list": Verb("run:list_runs", "List runs, the oldest first."),
            "watch": Verb("run:watch_run", "Show a run live until it is over."),
            "events": Verb("run:print_events", "Print the history of a run, one event a line."),
            "stream": Verb("run:stream_run", "Print a run's live output, such as the tokens of a model."),
        },
        "Steer": {
            "signal": Verb("signalling:signal_run", "Send a signal that a run waits for, or will wait for."),
            "pause": Verb("saying:pause_run", "Pause a run and the runs it has started."),
            "resume": Verb("saying:resume_run", "Resume a paused run."),
            "cancel": Verb("saying:cancel_run", "Cancel a run and the runs it has started."),
        },
        "Repair": {
            "retry": Verb("redriving:retry_run", "Retry a failed run where it failed, or a stalled one."),
            "resolve": Verb("resolving:resolve_call", "Settle a call in doubt: record the outcome of its effect."),
            "fail": Verb("run:fail_run", "End a stalled run whose code will never agree with its history."),
            "repair": Verb("run:repair_run", "Rewrite a run's records in order after a tool has duplicated some."),
            "erase": Verb("erasing:erase_run", "Erase a finished run from every topic at once."),
        },
        "Check": {
            "verify": Verb("run:verify_runs", "Check the log from its raw bytes: chains, folds, other topics."),
            "replay": Verb("replaying:replay_run", "Replay a run's decisions from its history."),
        },
    },
)
_CALLBACK = CommandGroup(
    "Complete or fail a callback by its token.",
    {
        "Commands": {
            "resolve": Verb("signalling:resolve_callback", "Complete a callback with its result."),
            "fail": Verb("signalling:fail_callback", "Fail a callback: the agent sees a failure."),
        }
    },
)
_APPROVAL = CommandGroup(
    "Decide on calls that wait for people.\n\nExit codes of a vote: 0 it counts or is recorded, 2 it is void or wrong,"
    " 4 the approval is decided or closed already, 6 no answer within the timeout.",
    {
        "Look": {
            "list": Verb("approval:list_approvals", "List approvals, the oldest first."),
            "show": Verb("approval:show_approval", "Show an approval: the call, who may decide, and the votes."),
            "grants": Verb("approval:list_grants", "List grants: calls that pass again without being asked about."),
        },
        "Decide": {
            "approve": Verb("approval:approve", "Approve the call as it is."),
            "edit": Verb("approval:edit", "Approve the call with other arguments."),
            "answer": Verb("approval:answer", "Give the result in the tool's place: the call never goes out."),
            "reject": Verb("approval:reject", "Reject the call: the agent sees your message."),
        },
        "Discuss": {
            "comment": Verb("approval:comment", "Add a comment, which decides nothing."),
            "remind": Verb("approval:remind", "Remind the people who may decide."),
            "delegate": Verb("approval:delegate", "Let another person decide in your place."),
            "reassign": Verb("approval:reassign", "Replace the list of people who may decide."),
            "withdraw": Verb("approval:withdraw", "Withdraw your own vote while nothing is decided."),
            "revoke-grant": Verb("approval:revoke_grant", "End a grant: the same call is asked about again."),
        },
    },
)
_POLICY = CommandGroup(
    "Write, test and publish the rules that judge every call.",
    {
        "Commands": {
            "check": Verb("policy:check_policy", "Report errors in policy files, and rules that no call can reach."),
            "test": Verb("policy:try_policy", "Compare the decisions of a draft with those in the log."),
            "publish": Verb("policy:publish_policy", "Put a policy in force for new runs, and roles for all runs."),
            "show": Verb("policy:show_policy", "Show what is in force: the policy of new runs, roles, keys."),
            "explain": Verb("policy:explain_judgement", "Show which rule judged a call, and with which values."),
            "drop": Verb("policy:drop_policy", "Remove an old policy from the catalog."),
        }
    },
)
_SERVE = CommandGroup(
    "Run one service in this process: planner, executor, approval or archivist.",
    {
        "Commands": {
            "planner": Verb("serve.planner:planner", "Decide: read inputs, append to the run log, order calls."),
            "executor": Verb("serve.executor:executor", "Act: claim calls, run tools, record results."),
            "approval": Verb("serve.approval:approval", "Judge: count votes on calls that wait for people."),
            "archivist": Verb("serve.archivist:archivist", "Archive and erase runs whose retention is over."),
        }
    },
)
_TOPICS = CommandGroup(
    "Create topics and ACLs, and compare both with the broker.",
    {
        "Commands": {
            "apply": Verb("topics:apply_topics", "Create missing topics and correct their settings."),
            "diff": Verb("topics:diff_topics", "Show what `apply` would change; exit code 1 if anything."),
            "list": Verb("topics:list_topics", "List the topics on the broker."),
            "acls": Verb("acls:compare_acls", "Show who may do what, and compare it with the broker."),
        }
    },
)
_KEYS = CommandGroup(
    "Create, publish, retire and revoke signing keys.",
    {
        "Commands": {
            "init": Verb("keys:init_root", "Create the root key, which signs policies, roles and keys."),
            "new": Verb("keys:new_key", "Create a key: the private half in a file, the public half in the catalog."),
            "list": Verb("keys:list_keys", "List the keys in the catalog."),
            "rotate": Verb("keys:rotate_key", "Create a key that succeeds another."),
            "revoke": Verb("keys:revoke_key", "Revoke a key: nothing that it ever signed holds any more."),
        }
    },
)
_VERSIONS = CommandGroup(
    "List which versions of agents have live runs, and migrate runs.",
    {
        "Commands": {
            "list": Verb("versions:list_versions", "List the versions that live runs need, and stalled runs."),
            "migrate": Verb("versions:migrate_runs", "Migrate runs to another version of their agent."),
        }
    },
)
_DEADLETTER = CommandGroup(
    "Look at dead letters, and replay them.",
    {
        "Commands": {
            "list": Verb("deadletter:list_letters", "List dead letters, the oldest first."),
            "show": Verb("deadletter:show_letter", "Show a dead letter in full."),
            "replay": Verb("deadletter:replay_letter", "Publish the input of a dead letter again."),
        }
    },
)
_ARCHIVE = CommandGroup(
    "List, verify and restore archived runs.",
    {
        "Commands": {
            "list": Verb("archive:list_archived", "List archived runs, by the time they ended."),
            "status": Verb("archive:archive_status", "Show what the archivist's next pass erases and leaves."),
            "verify": Verb("archive:verify_archive", "Check archived copies by their bytes alone."),
            "restore": Verb("archive:restore_run", "Write a run to files that need no Refold to read."),
        }
    },
)
_REPLAY = CommandGroup(
    "Check code against recorded runs.",
    {"Commands": {"check": Verb("replaying:check_app", "Check new code against recorded runs.")}},
)
_SCHEMAS = CommandGroup(
    "Export the Avro schemas, and check them.",
    {
        "Commands": {
            "export": Verb("schemas:append_changes", "Append changed classes as new schema versions."),
            "check": Verb("schemas:compare_schemas", "Compare the classes with the exported schemas."),
        }
    },
)

COMMANDS = CommandGroup(
    "Durable AI agents as event-sourced services on Kafka: a crash is a non-event.",
    {
        "Start": {
            "init": Verb("init:init", "Create a project: an agent, tools, a policy, and a test that passes."),
            "dev": _DEV,
            "run": _RUN,
            "callback": _CALLBACK,
        },
        "Look": {
            "doctor": Verb("doctor:doctor", "Check this machine, Kafka, Redis and an app."),
            "versions": _VERSIONS,
            "limits": Verb("limits:limits", "List what runs have spent of the limits per day and month."),
            "deadletter": _DEADLETTER,
            "archive": _ARCHIVE,
        },
        "Decide": {
            "approval": _APPROVAL,
            "policy": _POLICY,
            "halt": Verb("halting:halt", "Halt a tool, an agent, a pool, a requester or everything."),
            "unhalt": Verb("halting:unhalt", "Lift a halt."),
        },
        "Operate": {
            "setup": Verb("provision:setup", "Create topics, keys and a default policy on an existing Kafka."),
            "serve": _SERVE,
            "topics": _TOPICS,
            "keys": _KEYS,
        },
        "Develop": {
            "replay": _REPLAY,
            "schemas": _SCHEMAS,
            "demo": Verb("checkout:demo", "Deploy while processes are killed (checkout only).", _PASS_ON),
            "bench": Verb("checkout:bench", "Measure the figures on this machine (checkout only).", _PASS_ON),
            "sim": Verb("checkout:sim", "Simulate the platform with faults (checkout only).", _PASS_ON),
            "version": Verb("checkout:version", "Print the version."),
        },
    },
)
