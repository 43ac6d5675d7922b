"""Tools on the files of one folder, ready to be given to an agent: read, list, find, search, write and edit.

**Consumes** paths, possibly invented by a model. **Produces** files of this folder alone: `jail` opens each path step
by step, from the folder down, and follows no link; `folder` does the work within limits; `tools` states the effect of
each tool after a crash. **Guarantees**: a file is replaced whole or not at all, and only if its content is still the
one that was read. **Fails** by TerminalError if nothing has happened and a retry is pointless, by NotDone if a retry
may help."""

from refold.adapters.files.tools import FileTools, file_tools

__all__ = ["FileTools", "file_tools"]
