"""`refold schemas compile`: the decoder in C, in a module of its own, since it needs no more than the extra `fast`."""

from __future__ import annotations

from refold.cli.platform import Printer
from refold.schemas import decoder


def compile_decoder(*, printer: Printer) -> None:
    """Compile the decoder in C. It becomes part of this installation: compile again after every upgrade.

    Needs the extra `fast` and a C compiler, and takes some seconds. Services and commands use it from their next start,
    unless REFOLD_DECODER is set; `refold doctor` shows the one in use.
    """
    path = decoder.build_decoder()
    decoder.load(path.parent)
    printer.tell({"path": str(path)}, f"compiled {path}")
