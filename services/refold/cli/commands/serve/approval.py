"""`refold serve approval`."""

import secrets
from pathlib import Path
from typing import Annotated

from refold.cli.commands.serve.process import DevOption, Member, Part, ServedApp, served
from refold.core.errors import UsageError
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.approval.service import ApprovalService
from refold.engine.approval.settings import ApprovalLimits, ApprovalSettings
from refold.engine.runtime import keys
from refold.engine.runtime.host import Host


def approval(
    *,
    app: ServedApp,
    member: Member = "",
    key: Annotated[str, "FILE", "Key that signs decisions.  \\[default: REFOLD_APPROVAL__KEY]"] = "",
    data: DevOption = "",
) -> None:
    """Count votes on approvals, and sign decisions."""
    process = served("approval", member, data)
    options = process.where.settings
    own = ApprovalSettings(
        partitions=options.kafka.partitions,
        member=process.member,
        environment=options.environment,
        limits=ApprovalLimits(payload_bytes=options.max_payload_bytes),
        trust=process.trust(),
    )
    event_log = KafkaEventLog(options.kafka, own.membership)
    if not (path := key or options.approval.key):
        hint = "`refold keys new NAME --use decision` makes one; give its file as --key or REFOLD_APPROVAL__KEY"
        raise UsageError("the approval service has no key to sign decisions with", hint=hint)
    signing = keys.load(Path(path), "decision")
    service = ApprovalService(process.load(app), own, key=signing, nonce=lambda: secrets.token_hex(16))
    process.lock_member()
    process.run(Part("approval", Host([service], event_log)))
