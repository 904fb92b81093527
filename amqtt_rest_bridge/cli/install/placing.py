"""Several files into one folder: all of them or none, and never outside of it.

They are written into a hidden folder beside their places first, which the search for route files passes over, and
linked to their names then: a link fails where there is a file already, so another program's file is never replaced.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.cli.install.library import InstallError
from amqtt_rest_bridge.errors import visible

_LONGEST_NAME: Final = 255
_SUFFIX: Final = ".lotnb"
_OVERWRITE: Final = "--force replaces it, --into names another folder"


def check_names(names: Sequence[str]) -> None:
    """Check that names from outside are names of notebooks, without a path.

    Raises:
        InstallError: one is not, or comes twice.
    """
    for name in names:
        separated = any(char in name for char in "/\\:")
        too_long = len(name.encode(errors="replace")) > _LONGEST_NAME
        if separated or too_long or not name.isprintable() or name != name.strip() or name.startswith("."):
            raise InstallError(
                f"the notebook {visible(name[:_LONGEST_NAME])!r} has a name that is not the plain name of a file",
                "tell the template's author; nothing was written",
            )
        if not name.lower().endswith(_SUFFIX):
            raise InstallError(f"the notebook {name!r} does not end in {_SUFFIX}", "tell the template's author")
    if len({name.casefold() for name in names}) < len(names):  # one file, where a file system ignores case
        raise InstallError("two notebooks of the template have one name", "tell the template's author")


def refuse_present(folder: Path, names: Iterable[str]) -> None:
    """Raise `InstallError` when one of these files exists."""
    if present := [name for name in names if os.path.lexists(folder / name)]:
        raise InstallError(f"{folder / present[0]} exists", _OVERWRITE)


def place(folder: Path, files: Mapping[str, bytes], *, force: bool) -> None:
    """Write files into a folder, which is made when it is missing.

    Args:
        folder: Where they go.
        files: Their contents, by names that `check_names` has passed.
        force: Replace those that exist; a symbolic link is replaced, not followed.

    Raises:
        InstallError: a file exists.
        OSError: they cannot be written. In both cases the folder is as before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not force:
        refuse_present(folder, files)
    staging = Path(tempfile.mkdtemp(prefix=".install-", dir=folder))
    undo = contextlib.ExitStack()
    try:
        for name, content in files.items():
            with (staging / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        with undo:
            for name in files:
                _put(staging, folder / name, undo, force=force)
            undo.pop_all()
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _put(staging: Path, target: Path, undo: contextlib.ExitStack, *, force: bool) -> None:
    staged = staging / target.name
    if force and os.path.lexists(target):
        kept = staging / f"{target.name}.kept"
        os.link(target, kept, follow_symlinks=False)
        staged.replace(target)
        undo.callback(kept.replace, target)
        return
    try:
        os.link(staged, target)
    except FileExistsError as error:
        raise InstallError(f"{target} exists", _OVERWRITE) from error
    undo.callback(target.unlink)
