"""`rest-bridge fmt`: write route files in the canonical layout. Main thread."""

import codecs
import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from amqtt_rest_bridge.cli import Paths, count, counted, listed
from amqtt_rest_bridge.errors import ConfigurationError, Fault, Severity, visible

DESCRIPTION = """\
Write route files in the canonical layout: keywords in upper case, a line for each statement, four spaces a level.

Only white space and the case of keywords change: comments, strings and the JSON around the cells of a notebook stay,
and routes read as before. A file with an error is left as it is, and the error is reported.
Folders are searched for *.lot and *.lotnb.
"""
EPILOG = """\
exit status:
  0  all files have the canonical layout (now)
  1  a file has an error; with --check also: a file would be written
  2  a path is missing, cannot be read or written, or the command is used wrongly

examples:
  rest-bridge fmt conf/routes
  rest-bridge fmt --check .      (in CI)
"""


def run(
    paths: Paths,
    only_check: Annotated[bool, typer.Option("--check", help="write nothing, exit 1 where it would")] = False,
) -> int:
    """Write the files that have no errors in the canonical layout."""
    from amqtt_rest_bridge.lot import parsed_texts, sources
    from amqtt_rest_bridge.tools.editor import layout  # which --help does not need

    faults: list[Fault] = []
    changed = unchanged = 0
    empty_folders: list[Fault] = []
    for path, content in sources.read_contents(paths):
        if content is None:
            empty_folders += [fault for source in sources.sources_of(path, content) for fault in source.faults]
            continue
        errors: list[Fault] = []  # what keeps its texts from being read as they are meant
        for source in sources.sources_of(path, content):
            found = [*source.faults, *parsed_texts.parse_text(source.text).faults]
            errors += [replace(one, path=source.path) for one in found if one.severity is Severity.ERROR]
        faults += errors
        after = content
        if not errors:
            mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
            after = mark + layout.laid_out_file(path, content.decode("utf-8-sig")).encode()
        if after != content:
            if not only_check:
                _replace(path, content, after)
            print(f"{'would format' if only_check else 'formatted'} {visible(path)}")
        changed += after != content
        unchanged += after == content and not errors
    shown, others = listed([*faults, *empty_folders])
    print(*shown, *filter(None, [others]), sep="\n", end="\n" if shown else "")
    verb = "would be formatted" if only_check else "formatted"
    print(f"{count(changed, 'file')} {verb}, {unchanged} unchanged{', ' if faults else ''}{counted(faults)}")
    return 1 if faults or (only_check and changed) else 0


def _replace(path: str, before: bytes, after: bytes) -> None:
    """Write a file beside its place, then rename it. It keeps mode and owner; a symbolic link is followed."""
    target = Path(os.path.realpath(path))
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".fmt-", delete=False) as staged:
            try:
                staged.write(after)
                staged.flush()
                os.fsync(staged.fileno())
                owner = target.stat()
                with contextlib.suppress(PermissionError):  # only root gives files away
                    os.chown(staged.name, owner.st_uid, owner.st_gid)
                shutil.copymode(target, staged.name)
                is_same = target.read_bytes() == before
                if is_same:
                    Path(staged.name).replace(target)
            finally:
                Path(staged.name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write {visible(path)}: {error.strerror or error}") from error
    if not is_same:
        raise ConfigurationError(f"{visible(path)} was changed meanwhile: it is left as it is")
