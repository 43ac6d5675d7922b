"""`refold schemas compile`: the decoder in C, in a module of its own, since it needs no more than the extra `fast`."""

from __future__ import annotations

from refold.cli.platform import Teller
from refold.schemas import decoder


def compile_decoder(*, teller: Teller) -> None:
    """Compile the decoder in C. It becomes part of this installation: compile again after every upgrade.

    It needs refold[fast] and a C compiler, and takes some seconds. Services and commands that start afterwards use it,
    unless REFOLD_DECODER says otherwise; `refold doctor` shows which one is in use.
    """
    path = decoder.build_decoder()
    decoder.load(path.parent)
    teller.tell({"path": str(path)}, f"compiled {path}")
