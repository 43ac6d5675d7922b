"""`refold serve approval`."""

import secrets
from pathlib import Path
from typing import Annotated

from refold.cli.commands.serve.process import DevOption, Member, Part, Served, ServedApp, served
from refold.core.errors import UsageError
from refold.engine.approval.service import ApprovalService
from refold.engine.approval.settings import ApprovalLimits, ApprovalSettings
from refold.engine.runtime import keys
from refold.engine.runtime.handover import Handover
from refold.engine.runtime.host import Host
from refold.sdk.app import App


def approval(
    *,
    app: ServedApp,
    member: Member = "",
    key: Annotated[str, "FILE", "Key that signs decisions.  \\[default: REFOLD_APPROVAL__KEY]"] = "",
    data: DevOption = "",
) -> None:
    """Count votes on approvals, and sign decisions."""
    process = served("approval", member, data)
    process.run(approval_part(process, process.load(app), key))


def approval_part(process: Served, loaded: App, key: str = "", handover: Handover | None = None) -> Part:
    """Approval service, beside the planner of this process if there is a `handover`."""
    options = process.where.settings
    own = ApprovalSettings(
        partitions=options.kafka.partitions,
        member=process.member,
        environment=options.environment,
        limits=ApprovalLimits(payload_bytes=options.max_payload_bytes),
        trust=process.trust(),
    )
    event_log = process.event_log(own.membership)
    if not (path := key or options.approval.key):
        hint = "`refold keys new NAME --use decision` makes one; give its file as --key or REFOLD_APPROVAL__KEY"
        raise UsageError("the approval service has no key to sign decisions with", hint=hint)
    signing = keys.load(Path(path), "decision")
    service = ApprovalService(loaded, own, key=signing, nonce=lambda: secrets.token_hex(16))
    process.lock_member()
    host = Host([service], event_log)
    if handover:
        host.take_handed(handover, frozenset())
    return Part("approval", host)
