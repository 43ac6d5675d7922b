"""Tools on the files of one folder for agents: read, list, find, search, write and edit.

**Consumes** paths, possibly invented by a model. **Produces** files of this folder alone: `jail` opens paths step by
step and follows no link, `folder` works within limits, `tools` declares effects and probes. **Guarantees**: a file is
replaced whole or not at all, and only while it is as it was read. **Fails** with TerminalError if a retry is
pointless, with NotDone if it may help; nothing happened in either case.
"""

from refold.contrib.files.tools import FileTools, file_tools

__all__ = ["FileTools", "file_tools"]
