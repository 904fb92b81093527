"""The index on disk or in memory: opened, written, and reopened when another process has written it.

tantivy keeps an index as files that never change; a commit replaces the list of those that count, so a process that is
killed leaves the state of its last commit. One process at a time may write, by a lock that ends with it; any number may
read. Blocks on the disk. One thread calls the methods; any thread may take the ranking.
"""

import ctypes
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tantivy import Index, IndexWriter

from template_api.errors import DamagedIndexError
from template_api.ranking.engine import Ranking
from template_api.ranking.fields import STATE_KEY, Document, entry, schema, state_entry
from template_api.ranking.vocabulary import Vocabulary

# Documents in memory before a part is written out. With the least that tantivy takes, 15 MB, a part has 170 templates
# of 300 words and a commit of 1,000 writes 36 files; with this it writes 6, and takes no more memory.
_WRITER_BYTES: Final = 30_000_000
_LIST: Final = "meta.json"
_SUFFIXES: Final = ("term", "idx", "pos", "fast", "fieldnorm", "store")
_FOOTER_END: Final = 8  # each file ends with its footer (JSON), the footer's length and a magic number (4 bytes each)
_CHUNK: Final = 1 << 20
_PROBE_BYTES: Final = 65536
_LIBC: Final = ctypes.CDLL(None) if os.name == "posix" else None


class SearchIndex:
    """Open the index in a folder, made when there is none; None keeps it in memory.

    Raises:
        DamagedIndexError: the folder or what is in it cannot be used.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writer: IndexWriter | None = None
        self._added: set[str] = set()
        self._cleared = False
        with _translated(folder):
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check(folder)
            self._index = Index(schema(), None if folder is None else str(folder))
            self._index.config_reader("manual")
            self._inode = self._found_inode()
            self._listed = b""
            self.reload()

    def is_intact(self) -> bool:
        """Return whether its files are still in their place."""
        return self._found_inode() == self._inode and (self._folder is None or (self._folder / _LIST).exists())

    @property
    def is_locked(self) -> bool:
        """Whether this process is the one that writes."""
        return self._writer is not None

    def lock(self) -> bool:
        """Become the one that writes this index, until `close`; return False when another one is.

        Raises:
            DamagedIndexError: the index cannot be written.
        """
        if self._writer is not None:
            return True
        with _translated(self._folder):
            try:
                self._writer = self._index.writer(_WRITER_BYTES, 1)
            except ValueError as exc:
                if "LockBusy" in str(exc):
                    return False
                raise
            self.reload()
        return True

    def reload(self) -> None:
        """Read what another process has committed since.

        Raises:
            DamagedIndexError: the index cannot be read.
        """
        with _translated(self._folder):
            listed = (self._folder / _LIST).read_bytes() if self._folder is not None else b"in memory"
            if listed != self._listed:
                self._index.reload()
                self._listed = listed
                searcher = self._index.searcher()
                self.ranking = Ranking(searcher, Vocabulary.of(searcher))
                _release_memory()

    def put(self, document: Document) -> None:
        """Add a document, or replace the one with its key, from the next commit on."""
        kept, words = entry(document)
        self._added.update(words)
        with _translated(self._folder):
            self._locked.delete_documents_by_term("key", document.key)
            self._locked.add_document(kept)

    def remove(self, key: str) -> None:
        """Remove the document with this key, if there is one, from the next commit on."""
        with _translated(self._folder):
            self._locked.delete_documents_by_term("key", key)

    def clear(self) -> None:
        """Remove all documents from the next commit on."""
        self._cleared = True
        with _translated(self._folder):
            self._locked.delete_all_documents()

    def commit(self, state: str) -> None:
        """Make what was put and removed count, together with a text that says how far the index is.

        Raises:
            DamagedIndexError: the index cannot be written; nothing of it counts.
        """
        with _translated(self._folder):
            self._locked.delete_documents_by_term("key", STATE_KEY)
            self._locked.add_document(state_entry(state))
            self._locked.commit()
            self._index.reload()
        searcher = self._index.searcher()
        known = self.ranking.vocabulary
        vocabulary = Vocabulary.of(searcher) if self._cleared else known.grown(searcher, self._added)
        self.ranking = Ranking(searcher, vocabulary)
        self._added, self._cleared = set(), False
        _release_memory()

    def close(self) -> None:
        """Release the lock; what was not committed is lost."""
        self._writer = None

    @property
    def _locked(self) -> IndexWriter:
        if self._writer is None:
            raise DamagedIndexError("the search index is not locked by this process")
        return self._writer

    def _found_inode(self) -> int | None:
        try:
            return None if self._folder is None else self._folder.stat().st_ino
        except OSError:
            return -1


@contextmanager
def _translated(folder: Path | None) -> Iterator[None]:
    """Turn what tantivy and the file system raise into `DamagedIndexError`."""
    try:
        yield
    except (ValueError, OSError, KeyError, TypeError) as exc:
        reason = (None if folder is None else _system_reason(folder)) or exc
        raise DamagedIndexError(f"the search index in {folder or 'memory'} cannot be used: {reason}") from exc


def _system_reason(folder: Path) -> str | None:
    """Return why nothing can be written, as on a full disk, of which tantivy only says that a thread was killed."""
    probe = folder / f".{os.getpid()}.probe"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError as exc:
        return exc.strerror
    finally:
        with suppress(OSError):
            probe.unlink()
    return None


def _check(folder: Path) -> None:
    """Compare the files that count with their checksums: tantivy itself trusts what it finds.

    Raises:
        ValueError, OSError, KeyError, TypeError: a file is missing or not what was written.
    """
    if not (folder / _LIST).exists():
        return
    for segment in json.loads((folder / _LIST).read_bytes())["segments"]:
        name = segment["segment_id"].replace("-", "")
        files = [f"{name}.{suffix}" for suffix in _SUFFIXES]
        if segment["deletes"] is not None:
            files.append(f"{name}.{segment['deletes']['opstamp']}.del")
        for file in files:
            _check_file(folder / file)


def _check_file(file: Path) -> None:
    """Compare one file with the checksum in its footer, 1 GB a second."""
    size = file.stat().st_size
    with file.open("rb") as read:
        read.seek(max(0, size - _FOOTER_END))
        length = int.from_bytes(read.read(4), "little")
        left = size - _FOOTER_END - length
        if left < 0:
            raise ValueError(f"{file.name} is cut off")
        read.seek(left)
        footer: Any = json.loads(read.read(length))
        read.seek(0)
        checksum = 0
        while left and (chunk := read.read(min(left, _CHUNK))):
            checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
    if checksum != footer["crc"]:
        raise ValueError(f"{file.name} is not what was written")


def _release_memory() -> None:
    """Return freed memory to the system, where the C library can (glibc).

    It kept 5 MB after the words of 10,000 templates were read, and 28 MB after 1,000 templates were committed.
    """
    if _LIBC is not None and hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
