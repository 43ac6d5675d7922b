"""File tools for an app, with their effect classes and probes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from refold.contrib.files.folder import FileText, Folder, FolderList, Hits, Paths, Written
from refold.contrib.files.jail import Jail
from refold.sdk.app import App
from refold.sdk.tool import DID_NOT_HAPPEN, ApprovalNeed

FILE_BYTES = 262_144
"""Size limit of a file: both texts of an edit fit into a record of the default size, 1 MiB."""
VERSION = "1"


@dataclass(frozen=True, slots=True)
class FileTools:
    """File tools for `ctx.call(files.read_file, path="a.txt")`; the app registers them by name, too."""

    read_file: Callable[..., FileText]
    list_files: Callable[..., FolderList]
    find_files: Callable[..., Paths]
    search_files: Callable[..., Hits]
    write_file: Callable[..., Written] | None = None
    edit_file: Callable[..., Written] | None = None


def file_tools(
    app: App,
    root: str | Path,
    *,
    write: bool = False,
    approval: ApprovalNeed = "policy",
    hidden: bool = False,
    max_bytes: int = FILE_BYTES,
    pool: str = "default",
    prefix: str = "",
) -> FileTools:
    """Give an app tools on the files below the folder `root` of its executors.

    `write` adds write_file and edit_file, with this `approval`. `hidden` permits names that begin with a dot. `prefix`
    precedes the tools' names, for apps with several folders. Tags are `files`, and `read` or `write`. **Raises**
    UsageError if the system cannot confine paths to a folder.
    """
    folder = Folder(Jail(Path(root), hidden=hidden), max_bytes)

    def add(function: Callable[..., Any], **options: Any) -> Any:
        own: dict[str, Any] = {"name": prefix + function.__name__, "pool": pool, "version": VERSION}
        return app.tool(timeout=timedelta(minutes=1), **own, **options)(function)

    # Models get the docstrings of these functions.
    def read_file(path: str) -> FileText:
        """The text of a file, and the digest that names it for write_file and edit_file."""
        return folder.read(path)

    def list_files(path: str = ".") -> FolderList:
        return folder.list(path)

    def find_files(pattern: str) -> Paths:
        """The files of which the path fits a pattern: `**/*.py`, `docs/*`."""
        return folder.find(pattern)

    def search_files(text: str, pattern: str = "**", ignore_case: bool = False) -> Hits:
        """The lines that have a text, as it is, in files of which the path fits a pattern."""
        return folder.search(text, pattern, ignore_case=ignore_case)

    def write_file(path: str, content: str, expect: str = "") -> Written:
        """Replaces a file whole, if it is the one that `expect` names, a digest of read_file.

        Without it, makes a new file, if there is none.
        """
        return folder.write(path, content, expect)

    def edit_file(path: str, before: str, after: str, expect: str) -> Written:
        """Puts one text in the place of another, which stands once in the file.

        `expect` names the file, a digest of read_file: another one is not touched.
        """
        return folder.edit(path, before, after, expect)

    def written(path: str, content: str, expect: str) -> object:
        return folder.written(path, content, expect) or DID_NOT_HAPPEN

    def edited(path: str, before: str, after: str, expect: str) -> object:
        return folder.edited(path, before, after, expect) or DID_NOT_HAPPEN

    functions = (read_file, list_files, find_files, search_files)
    tools = [add(function, effect="pure", tags=("files", "read")) for function in functions]
    if write:
        options: dict[str, Any] = {"effect": "probed", "tags": ("files", "write"), "approval": approval}
        tools += [add(write_file, probe=written, **options)]
        tools += [add(edit_file, probe=edited, shown_as="edit", **options)]
    return FileTools(*tools)
