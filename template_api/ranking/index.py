"""The index on disk or in memory: opened, written, reopened when another process has written it, replaced by a new one.

tantivy keeps an index as files that never change; a commit replaces the list of those that count, so a process that is
killed leaves the state of its last commit. A `KeptIndex` is a folder of such indexes, of which the file `current` names
the one in use: another one is built beside it and takes its place with one rename. One process at a time may write, by
a lock that ends with it; any number may read. Blocks on the disk. One thread calls the methods; any thread may take the
ranking.
"""

import ctypes
import fcntl
import json
import logging
import os
import shutil
import uuid
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

log = logging.getLogger(__name__)

# Documents in memory before a part is written out. With the least that tantivy takes, 15 MB, a part has 170 templates
# of 300 words and a commit of 1,000 writes 36 files; with this it writes 6, and takes no more memory.
_WRITER_BYTES: Final = 30_000_000
_LIST: Final = "meta.json"
_SUFFIXES: Final = ("term", "idx", "pos", "fast", "fieldnorm", "store")
_FOOTER_END: Final = 8  # each file ends with its footer (JSON), the footer's length and a magic number (4 bytes each)
_CHUNK: Final = 1 << 20
_PROBE_BYTES: Final = 65536
_DAMAGE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # other errors of the system may pass
_LIBC: Final = ctypes.CDLL(None) if os.name == "posix" else None


class KeptIndex:
    """The folder that keeps the index of a library, with the index in use; None keeps it in memory."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock: int | None = None
        self._index: SearchIndex | None = None
        self._name = ""  # of the open index

    def lock(self) -> bool:
        """Become the process that writes, until `close`; return False while another one is.

        Raises:
            DamagedIndexError: the folder cannot be used.
        """
        if self._folder is None:
            return True
        with _translated(self._folder):
            file = self._folder / "lock"
            if self._lock is not None:
                if file.exists() and os.path.samestat(file.stat(), os.fstat(self._lock)):
                    return True
                log.warning("the search index in %s was deleted; it is rebuilt", self._folder)
                self._unlock()
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._unlock()
                return False
            self._index, self._name = None, ""  # the one who wrote before may have committed since
            self._clear_but(self._named())  # what a killed process has begun
            return True

    def current(self) -> "SearchIndex | None":
        """Return the index in use, as it was last committed; None when there is none, or it is damaged.

        Raises:
            DamagedIndexError: it cannot be read now.
        """
        if self._folder is None:
            return self._index
        with _translated(self._folder):
            name = self._named()
        if name == self._name:
            if self._index is not None and self._lock is None:
                self._index.reload()
            return self._index
        self._index, self._name = None, ""
        try:
            if name:
                with _translated(self._folder):
                    (self._folder / name / _LIST).stat()  # else an empty one would be made
                self._index = SearchIndex(self._folder / name)
        except DamagedIndexError as exc:
            cause = exc.__cause__
            if isinstance(cause, OSError) and not isinstance(cause, _DAMAGE):
                raise  # such as too many open files
            if self._named() == name:  # else another process has replaced it
                log.warning("%s; it is rebuilt", exc)
                (self._folder / "current").unlink(missing_ok=True)  # the process that writes builds another one
            return None
        self._name = name
        return self._index

    def begin(self) -> "SearchIndex":
        """Return a new index, which is not in use until `use`; needs the lock.

        Raises:
            DamagedIndexError: it cannot be written.
        """
        return SearchIndex(None if self._folder is None else self._folder / uuid.uuid4().hex)

    def use(self, index: "SearchIndex") -> None:
        """Put an index that was begun in the place of the current one, which is deleted; needs the lock.

        Raises:
            DamagedIndexError: the folder cannot be written; the current one stays in use.
        """
        if self._folder is not None and index.folder is not None:
            name = index.folder.name
            with _translated(self._folder):
                new = self._folder / "current.new"
                new.write_text(name)
                new.replace(self._folder / "current")
            self._name = name
            self._clear_but(name)
        self._index = index

    def close(self) -> None:
        """Release the lock: another process may write. What was not committed is lost."""
        if self._index is not None:
            self._index.close()
        self._index, self._name = None, ""
        self._unlock()

    def _named(self) -> str:
        """Return the name of the index in use, empty when there is none."""
        try:
            name = (self._folder / "current").read_bytes().decode("ascii", "replace") if self._folder else ""
        except FileNotFoundError:
            return ""
        return name if name.isalnum() else "damaged"

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _clear_but(self, name: str) -> None:
        """Delete what belongs to no index in use; processes that have it open keep what they need of it."""
        for path in self._folder.iterdir() if self._folder is not None else ():
            if path.name not in {"lock", "current", name}:
                with suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


class SearchIndex:
    """Open the index in a folder, made when there is none; None keeps it in memory. One process at a time may write it.

    Raises:
        DamagedIndexError: the folder or what is in it cannot be used.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._writer: IndexWriter | None = None
        self._added: set[str] = set()  # words, since the last commit
        with _translated(folder):
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check(folder)
            self._index = Index(schema(), None if folder is None else str(folder))
            self._index.config_reader("manual")
            self._listed = b""
            self.reload()

    def reload(self) -> None:
        """Read what another process has committed since.

        Raises:
            DamagedIndexError: the index cannot be read.
        """
        with _translated(self.folder):
            listed = (self.folder / _LIST).read_bytes() if self.folder is not None else b"in memory"
            if listed != self._listed:
                self._index.reload()
                self._listed = listed
                searcher = self._index.searcher()
                self.ranking = Ranking(searcher, Vocabulary.of(searcher))
                self._is_new = self.ranking.state is None
                _release_memory()

    def put(self, document: Document) -> None:
        """Add a document, or replace the one with its key, from the next commit on."""
        kept, words = entry(document)
        if not self._is_new:
            self._added.update(words)
        with _translated(self.folder):
            self._writing().delete_documents_by_term("key", document.key)
            self._writing().add_document(kept)

    def remove(self, key: str) -> None:
        """Remove the document with this key, if there is one, from the next commit on."""
        with _translated(self.folder):
            self._writing().delete_documents_by_term("key", key)

    def commit(self, state: str) -> None:
        """Make what was put and removed count, together with a text that says how far the index is.

        Raises:
            DamagedIndexError: the index cannot be written; nothing of it counts.
        """
        with _translated(self.folder):
            self._writing().delete_documents_by_term("key", STATE_KEY)
            self._writing().add_document(state_entry(state))
            self._writing().commit()
            self._index.reload()
        searcher = self._index.searcher()
        known = self.ranking.vocabulary
        vocabulary = Vocabulary.of(searcher) if self._is_new else known.grown(searcher, self._added)
        self.ranking = Ranking(searcher, vocabulary)
        self._added, self._is_new = set(), False
        _release_memory()

    def close(self) -> None:
        """End writing; what was not committed is lost, and its ranking can still be used.

        An error on the disk keeps this object alive in frames until a garbage collection: seen with Python 3.13, where
        tantivy refused another writer of the folder meanwhile.
        """
        self._writer = None

    def _writing(self) -> IndexWriter:
        if self._writer is None:
            self._writer = self._index.writer(_WRITER_BYTES, 1)
        return self._writer


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
    listed = (folder / _LIST).read_bytes()
    try:
        for segment in json.loads(listed)["segments"]:
            name = segment["segment_id"].replace("-", "")
            files = [f"{name}.{suffix}" for suffix in _SUFFIXES]
            if segment["deletes"] is not None:
                files.append(f"{name}.{segment['deletes']['opstamp']}.del")
            for file in files:
                _check_file(folder / file)
    except FileNotFoundError:
        if (folder / _LIST).read_bytes() == listed:
            raise
        _check(folder)  # another process has committed meanwhile, and deleted what it has merged


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
