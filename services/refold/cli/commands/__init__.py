"""The catalogue of all commands: where each is, by group and panel of the help, with the first sentence of its help."""

from __future__ import annotations

from refold.cli.groups import Command, Group

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Of commands that hand all arguments to a program of the checkout, `--help` too."""

_DEV = Group(
    "Run a broker, Valkey and every service on this machine, each restarted when it dies.",
    {
        "Commands": {
            "status": Command("processes:status", "Show the processes of a running `refold dev`."),
            "kill": Command("processes:kill_processes", "Kill processes of a running `refold dev`, as `kill -9` does."),
        }
    },
    itself="dev:dev",
)
_RUN = Group(
    "Start runs, look at them, steer them, and repair them.",
    {
        "Start and look": {
            "start": Command("run:begin_run", "Start a run."),
            "show": Command("run:show_run", "Show a run: its status, its steps, and what waits for people."),
            "list": Command("run:list_runs", "List runs, the oldest first."),
            "watch": Command("run:watch_run", "Show a run live until it is over."),
            "events": Command("run:print_events", "Print the history of a run, one event a line."),
            "stream": Command("run:stream_run", "Print a run's live output, such as the tokens of a model."),
        },
        "Steer": {
            "signal": Command("signalling:signal_run", "Send a signal that a run waits for, or will wait for."),
            "pause": Command("saying:pause_run", "Pause a run and the runs it has started."),
            "resume": Command("saying:resume_run", "Resume a paused run."),
            "cancel": Command("saying:cancel_run", "Cancel a run and the runs it has started."),
        },
        "Repair": {
            "retry": Command("redriving:retry_run", "Retry a failed run where it failed, or a stalled one."),
            "resolve": Command("resolving:resolve_call", "Settle a call in doubt: record the outcome of its effect."),
            "fail": Command("run:fail_run", "End a stalled run whose code will never agree with its history."),
            "repair": Command("run:repair_run", "Rewrite a run's records in order after a tool has duplicated some."),
            "erase": Command("erasing:erase_run", "Erase a finished run from every topic at once."),
        },
        "Check": {
            "verify": Command("run:verify_runs", "Check the log from its raw bytes: chains, folds, other topics."),
            "replay": Command("replaying:replay_run", "Replay a run's decisions from its history."),
        },
    },
)
_CALLBACK = Group(
    "Complete or fail a callback by its token.",
    {
        "Commands": {
            "resolve": Command("signalling:resolve_callback", "Complete a callback with its result."),
            "fail": Command("signalling:fail_callback", "Fail a callback: the agent sees a failure."),
        }
    },
)
_APPROVAL = Group(
    "Decide on calls that wait for people.\n\nExit codes of a vote: 0 it counts or is recorded, 2 it is void or wrong,"
    " 4 the approval is decided or closed already, 6 no answer within the timeout.",
    {
        "Look": {
            "list": Command("approval:list_approvals", "List approvals, the oldest first."),
            "show": Command("approval:show_approval", "Show an approval: the call, who may decide, and the votes."),
            "grants": Command("approval:list_grants", "List grants: calls that pass again without being asked about."),
        },
        "Decide": {
            "approve": Command("approval:approve", "Approve the call as it is."),
            "edit": Command("approval:edit", "Approve the call with other arguments."),
            "answer": Command("approval:answer", "Give the result in the tool's place: the call never goes out."),
            "reject": Command("approval:reject", "Reject the call: the agent sees your message."),
        },
        "Discuss": {
            "comment": Command("approval:comment", "Add a comment, which decides nothing."),
            "remind": Command("approval:remind", "Remind the people who may decide."),
            "delegate": Command("approval:delegate", "Let another person decide in your place."),
            "reassign": Command("approval:reassign", "Replace the list of people who may decide."),
            "withdraw": Command("approval:withdraw", "Withdraw your own vote while nothing is decided."),
            "revoke-grant": Command("approval:revoke_grant", "End a grant: the same call is asked about again."),
        },
    },
)
_POLICY = Group(
    "Write, test and publish the rules that judge every call.",
    {
        "Commands": {
            "check": Command("policy:check_policy", "Report errors in policy files, and rules that no call can reach."),
            "test": Command("policy:try_policy", "Compare the decisions of a draft with those in the log."),
            "publish": Command("policy:publish_policy", "Put a policy in force for new runs, and roles for all runs."),
            "show": Command("policy:show_policy", "Show what is in force: the policy of new runs, roles, keys."),
            "explain": Command("policy:explain_judgement", "Show which rule judged a call, and with which values."),
            "drop": Command("policy:drop_policy", "Remove an old policy from the catalog."),
        }
    },
)
_SERVE = Group(
    "Run one service in this process: planner, executor, approval or archivist.",
    {
        "Commands": {
            "planner": Command("serve.planner:planner", "Decide: read inputs, append to the run log, order calls."),
            "executor": Command("serve.executor:executor", "Act: claim calls, run tools, record results."),
            "approval": Command("serve.approval:approval", "Judge: count votes on calls that wait for people."),
            "archivist": Command("serve.archivist:archivist", "Archive and erase runs whose retention is over."),
        }
    },
)
_TOPICS = Group(
    "Create topics and ACLs, and compare both with the broker.",
    {
        "Commands": {
            "apply": Command("topics:apply_topics", "Create missing topics and correct their settings."),
            "diff": Command("topics:diff_topics", "Show what `apply` would change; exit code 1 if anything."),
            "list": Command("topics:list_topics", "List the topics on the broker."),
            "acls": Command("acls:compare_acls", "Show who may do what, and compare it with the broker."),
        }
    },
)
_KEYS = Group(
    "Create, publish, retire and revoke signing keys.",
    {
        "Commands": {
            "init": Command("keys:init_root", "Create the root key, which signs policies, roles and keys."),
            "new": Command("keys:new_key", "Create a key: the private half in a file, the public half in the catalog."),
            "list": Command("keys:list_keys", "List the keys in the catalog."),
            "rotate": Command("keys:rotate_key", "Create a key that succeeds another."),
            "revoke": Command("keys:revoke_key", "Revoke a key: nothing that it ever signed holds any more."),
        }
    },
)
_VERSIONS = Group(
    "List which versions of agents have live runs, and migrate runs.",
    {
        "Commands": {
            "list": Command("versions:list_versions", "List the versions that live runs need, and stalled runs."),
            "migrate": Command("versions:migrate_runs", "Migrate runs to another version of their agent."),
        }
    },
)
_DEADLETTER = Group(
    "Look at dead letters, and replay them.",
    {
        "Commands": {
            "list": Command("deadletter:list_letters", "List dead letters, the oldest first."),
            "show": Command("deadletter:show_letter", "Show a dead letter in full."),
            "replay": Command("deadletter:replay_letter", "Publish the input of a dead letter again."),
        }
    },
)
_ARCHIVE = Group(
    "List, verify and restore archived runs.",
    {
        "Commands": {
            "list": Command("archive:list_archived", "List archived runs, by the time they ended."),
            "status": Command(
                "archive:archive_status", "Show what the archivist's next pass erases, and which runs it leaves."
            ),
            "verify": Command("archive:verify_archive", "Check archived copies by their bytes alone."),
            "restore": Command("archive:restore_run", "Write a run to files that need no Refold to read."),
        }
    },
)
_REPLAY = Group(
    "Check code against recorded runs.",
    {"Commands": {"check": Command("replaying:check_app", "Check new code against recorded runs.")}},
)
_SCHEMAS = Group(
    "Export the Avro schemas, and check them.",
    {
        "Commands": {
            "export": Command("schemas:append_changes", "Append changed classes as new schema versions."),
            "check": Command("schemas:compare_schemas", "Compare the classes with the exported schemas."),
        }
    },
)

COMMANDS = Group(
    "Durable AI agents as event-sourced services on Kafka: a crash is a non-event.",
    {
        "Start": {
            "init": Command("init:init", "Create a project: an agent, tools, a policy, and a test that passes."),
            "dev": _DEV,
            "run": _RUN,
            "callback": _CALLBACK,
        },
        "Look": {
            "doctor": Command("doctor:doctor", "Check this machine, Kafka, Redis and an app."),
            "versions": _VERSIONS,
            "limits": Command("limits:limits", "List what runs have spent of the limits per day and month."),
            "deadletter": _DEADLETTER,
            "archive": _ARCHIVE,
        },
        "Decide": {
            "approval": _APPROVAL,
            "policy": _POLICY,
            "halt": Command("halting:halt", "Halt a tool, an agent, a pool, a requester or everything."),
            "unhalt": Command("halting:unhalt", "Lift a halt."),
        },
        "Operate": {
            "setup": Command("provision:setup", "Create topics, keys and a default policy on an existing Kafka."),
            "serve": _SERVE,
            "topics": _TOPICS,
            "keys": _KEYS,
        },
        "Develop": {
            "replay": _REPLAY,
            "schemas": _SCHEMAS,
            "demo": Command("checkout:demo", "Deploy while processes are killed (checkout only).", _PASS_ON),
            "bench": Command("checkout:bench", "Measure the figures on this machine (checkout only).", _PASS_ON),
            "sim": Command("checkout:sim", "Simulate the platform with faults (checkout only).", _PASS_ON),
            "version": Command("checkout:version", "Print the version."),
        },
    },
)
