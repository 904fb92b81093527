"""How the library's database is opened, created and upgraded, and its transactions.

Blocks on the database. Engines are safe to share between threads.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlmodel import Session, col

from template_api.errors import DatabaseUnavailableError, StartError, TemplateApiError
from template_api.library.models import SCHEMA_VERSION, LibraryRow, Table, TemplateRow, columns, now_text, prepared_text

_LOCK_KEY = 0x7E3A1A7E  # any constant: the advisory lock under which PostgreSQL's tables are made
_SQLITE_WAIT_SECONDS = 30
_POOL_SECONDS = 5  # the longest wait for one of the pool's connections
_AT_ONCE = 500  # templates that an upgrade reads at once


def open_database(url: str, *, as_it_is: bool = False) -> Engine:
    """Open the library's database; make its tables when it has none, upgrade them when they are of an older version.

    Args:
        url: a SQLAlchemy URL, `sqlite:///path` or `postgresql+psycopg://user:password@host/database`.
        as_it_is: neither make nor upgrade tables.

    Raises:
        StartError: the URL cannot be used, the database was written by a newer version of this software, or it would
            have to be changed and must not.
        DatabaseUnavailableError: the database does not answer.
    """
    engine = _engine(parsed_url(url))
    try:
        with translated(engine), writing(engine) as session:
            if engine.dialect.name == "postgresql":
                session.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
            _bring_up(session.connection(), as_it_is=as_it_is)
            session.commit()
    except TemplateApiError:
        engine.dispose()
        raise
    return engine


@contextmanager
def opened(url: str, *, as_it_is: bool = False) -> Iterator[Engine]:
    """Open a library's database as `open_database` does, for one task; raise the errors of its driver translated."""
    engine = open_database(url, as_it_is=as_it_is)
    try:
        with translated(engine):
            yield engine
    finally:
        engine.dispose()


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a connection for SELECTs; raise the errors of its driver translated."""
    with translated(engine), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """Open a session that writes; on SQLite its transactions take the write lock at once: they never fail half-way."""
    with engine.execution_options(writes=True).connect() as connection, Session(connection) as session:
        yield session


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Raise errors of the database drivers as `DatabaseUnavailableError`, without passwords in the message."""
    try:
        yield
    except sa.exc.IntegrityError:
        raise
    except sa.exc.SQLAlchemyError as exc:
        cause = str(getattr(exc, "orig", None) or exc).strip().splitlines()
        reason = cause[0] if cause else type(exc).__name__
        advice = ""  # some faults pass, such as a lock and a full disk
        if engine.dialect.name == "postgresql":
            advice = "; see that the server runs, and has the user, password and database of database_url"
        elif "not a database" in reason:
            advice = "; name another file, or move this one away"
        raise DatabaseUnavailableError(f"database {shown_url(engine.url)}: {reason}{advice}") from exc


def shown_url(url: URL) -> str:
    """Return a database URL for messages: without its password and its query, where drivers take passwords too."""
    return url.set(query={}).render_as_string(hide_password=True)


def parsed_url(url: str) -> URL:
    """Parse a database URL; raise `StartError` for a fault before anything is connected."""
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError) as exc:
        raise StartError("database_url is not a database URL; write for example sqlite:///template-library.db") from exc
    if "@" in (parsed.host or ""):  # the rest of a password, which messages would show as the host
        raise StartError("database_url: an @ in the user name or password must be percent-encoded, as %40")
    if parsed.drivername in {"postgres", "postgresql"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() == "sqlite":
        _check_sqlite(parsed)
    elif parsed.get_backend_name() != "postgresql":
        raise StartError(f"database_url: {parsed.drivername} is not supported; use sqlite or postgresql+psycopg")
    return parsed


def check_url(url: str) -> None:
    """Raise `StartError` for a URL that `open_database` refuses, a missing driver included; connects to nothing."""
    _engine(parsed_url(url)).dispose()


def _check_sqlite(url: URL) -> None:
    """Refuse what SQLite cannot write: WAL mode needs two files beside the database's, for readers as well."""
    if not url.database or url.database == ":memory:":
        # A database in memory would be empty in the next process, so it is refused.
        raise StartError("database_url names no file; write for example sqlite:///template-library.db")
    file = Path(url.database).absolute()
    if not file.parent.is_dir():
        raise StartError(f"database_url: the folder {file.parent} does not exist; make it, or name another")
    if file.is_dir():
        raise StartError(f"database_url: {file} is a folder; name a file in it: sqlite:///{file / 'library.db'}")
    for place in (file.parent, file):
        if place.exists() and not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise StartError(
                f"database {file}: {place} cannot be written, but SQLite (WAL mode) writes to the file and beside it, "
                "also to read: give this user write access, or name a copy elsewhere with --database-url"
            )


def is_missing(url: str) -> bool:
    """Return whether a URL names an SQLite file that does not exist; raise `StartError` when it cannot be used."""
    parsed = parsed_url(url)
    return parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists()


def require_database(url: str) -> None:
    """Raise `StartError` for an SQLite file that does not exist, for commands that need a library with templates."""
    if is_missing(url):
        raise StartError(
            f"there is no library: {parsed_url(url).database} does not exist (working directory {Path.cwd()}); fill "
            "one with template-api import PATH, or name another with --database-url"
        )


def _engine(url: URL) -> Engine:
    """Return the engine; on SQLite readers never wait for writers (WAL), and transactions begin where ours do."""
    try:
        if url.get_backend_name() == "postgresql":
            from template_api.library import postgres  # its driver is an extra

            engine = sa.create_engine(
                url, connect_args=postgres.ARGUMENTS, pool_pre_ping=True, pool_timeout=_POOL_SECONDS
            )
            sa.event.listen(engine, "do_connect", postgres.connect)
            return engine
        engine = sa.create_engine(url, connect_args={"timeout": _SQLITE_WAIT_SECONDS})
    except ModuleNotFoundError as exc:
        raise StartError("PostgreSQL needs its driver: pip install 'amqtt-rest-bridge[postgres]'") from exc
    except (sa.exc.NoSuchModuleError, sa.exc.ArgumentError) as exc:
        raise StartError(f"database_url: {url.drivername} is not supported; use sqlite or postgresql+psycopg") from exc

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # sqlite3 would begin transactions late, after the first read
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _bring_up(connection: Connection, *, as_it_is: bool) -> None:
    """Make the tables, or upgrade them."""
    found = None
    if sa.inspect(connection).has_table(str(LibraryRow.__tablename__)):
        found = connection.execute(sa.select(col(LibraryRow.schema_version))).scalar()
    if as_it_is and (found is None or found < SCHEMA_VERSION):
        raise StartError(f"the database has no tables of schema version {SCHEMA_VERSION}; a dry run does not make them")
    if found is None:
        Table.metadata.create_all(connection)
        row = {"id": 1, "schema_version": SCHEMA_VERSION, "version": 1, "identity": str(uuid4())}
        connection.execute(sa.insert(LibraryRow).values(is_filling=False, **row))
    elif found > SCHEMA_VERSION:
        raise StartError(
            f"the library's database has schema version {found}, this software supports up to {SCHEMA_VERSION}: "
            "install the newer version that wrote it, or use another database"
        )
    elif found < SCHEMA_VERSION:
        _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    """Add the tables, indexes and columns of the models that a database lacks, and fill the columns.

    So a column that is new must be one that may be NULL.
    """
    found = sa.inspect(connection)
    for table in Table.metadata.sorted_tables:
        if not found.has_table(table.name):
            table.create(connection)
            continue
        known = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    row = TemplateRow
    nameless, undated = col(LibraryRow.identity).is_(None), col(row.updated_at).is_(None)
    connection.execute(sa.update(LibraryRow).where(nameless).values(identity=str(uuid4())))
    # Each template counts as changed at the upgrade, so that no change is missed.
    connection.execute(sa.update(row).where(undated).values(updated_at=now_text()))
    texts = sa.select(*columns(row.id, row.title, row.labels, row.short_description, row.content, row.cells_text))
    texts = texts.where(col(row.prepared).is_(None)).limit(_AT_ONCE)
    update = sa.update(row).where(col(row.id) == sa.bindparam("known")).values(prepared=sa.bindparam("prepared"))
    while rows := connection.execute(texts).all():
        connection.execute(update, [{"known": one.id, "prepared": prepared_text(*one[1:])} for one in rows])
    connection.execute(sa.update(LibraryRow).values(schema_version=SCHEMA_VERSION, version=LibraryRow.version + 1))
