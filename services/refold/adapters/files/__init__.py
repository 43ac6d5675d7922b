"""Tools on the files of one folder, ready to be given to an agent: read, list, find, search, write and edit.

**Consumes** paths that a model may have made up. **Produces** what is in the folder, and nothing else: `jail` opens
every path step by step, from the folder down, and follows no link; `folder` does the work within limits; `tools` says
what each of it is worth after a crash.

**Guarantees**: a file is replaced whole or not at all, and only while it is what somebody has looked at. **Fails** by
TerminalError where nothing has happened and trying again is pointless, by NotDone where it is not."""

from refold.adapters.files.tools import FileTools, file_tools

__all__ = ["FileTools", "file_tools"]
