"""How the library's database is opened, created and upgraded, and its transactions.

Blocks on the database. Engines are safe to share between threads. Errors of their drivers are raised as
`DatabaseUnavailableError`, but that of a broken constraint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext, make_url
from sqlmodel import Session, col, select

from template_api.errors import DatabaseUnavailableError, StartError
from template_api.library.models import SCHEMA_VERSION, FacetRow, LibraryRow, Table, TemplateRow, facet_keys, now_text

_LOCK_KEY = 0x7E3A1A7E  # any constant: the advisory lock under which PostgreSQL's tables are made
_SQLITE_WAIT_SECONDS = 30
_JSON: dict[str, Any] = {"json_deserializer": msgspec.json.decode}
_AT_ONCE = 500  # templates that an upgrade reads at once


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """Open the library's database; make its tables when it has none, upgrade those of an older version.

    Raises:
        StartError: the URL cannot be used, or the database was written by a newer version of this software.
        DatabaseUnavailableError: the database does not answer.
    """
    engine = connected(url)
    try:
        with writing(engine) as session:
            prepare_tables(session)
            session.commit()
        yield engine
    finally:
        engine.dispose()


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """Open a session that writes; on SQLite its transactions take the write lock at once: they never fail half-way."""
    with engine.execution_options(writes=True).connect() as connection, Session(connection) as session:
        yield session


def connected(url: str | None) -> Engine:
    """Return the engine of a database, without a URL of one in memory; nothing is connected yet.

    Args:
        url: a SQLAlchemy URL, `sqlite:///path` or `postgresql+psycopg://user:password@host/database`.

    Raises:
        StartError: the URL cannot be used, or its driver is not installed.
    """
    parsed = make_url("sqlite://") if url is None else parsed_url(url)
    try:
        if parsed.get_backend_name() == "postgresql":
            from template_api.library import postgres  # its driver is an extra

            engine = sa.create_engine(parsed, connect_args=postgres.ARGUMENTS, pool_pre_ping=True, **_JSON)
            sa.event.listen(engine, "do_connect", postgres.connect)
        else:
            engine = _sqlite_engine(parsed)
    except (ModuleNotFoundError, sa.exc.NoSuchModuleError) as exc:
        brings = "pip install 'amqtt-rest-bridge[postgres]' brings postgresql+psycopg"
        raise StartError(f"database_url: {parsed.drivername} is not supported here; {brings}") from exc

    @sa.event.listens_for(engine, "handle_error")
    def translate(context: ExceptionContext) -> None:
        error, cause = context.sqlalchemy_exception, context.original_exception
        if error is None or isinstance(error, sa.exc.IntegrityError) or context.is_pre_ping:
            return
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise DatabaseUnavailableError(f"database {shown_url(parsed)}: {reason}") from cause

    return engine


def _sqlite_engine(url: URL) -> Engine:
    """Return an engine whose readers never wait for writers (WAL), and whose transactions begin where ours do."""
    # By itself sqlite3 begins transactions late, after the first read.
    engine = sa.create_engine(url, connect_args={"timeout": _SQLITE_WAIT_SECONDS, "isolation_level": None}, **_JSON)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


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
        if not parsed.database or parsed.database == ":memory:":
            # A database in memory would be empty in the next process, so it is refused.
            raise StartError("database_url names no file; write for example sqlite:///template-library.db")
        file = Path(parsed.database).absolute()
        if file.is_dir() or not file.parent.is_dir():
            raise StartError(f"database_url: {file} is not a file in a folder that exists")
    elif parsed.get_backend_name() != "postgresql":
        raise StartError(f"database_url: {parsed.drivername} is not supported; use sqlite or postgresql+psycopg")
    return parsed


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


def prepare_tables(session: Session) -> None:
    """Make the tables where there are none, or upgrade them; raise `StartError` for those of a newer version."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_KEY)))
    found = None
    if sa.inspect(connection).has_table(str(LibraryRow.__tablename__)):
        found = session.execute(sa.select(col(LibraryRow.schema_version))).scalar()
    if found is None:
        Table.metadata.create_all(connection)
        session.add(LibraryRow(id=1, schema_version=SCHEMA_VERSION, version=1))
    elif found > SCHEMA_VERSION:
        raise StartError(
            f"the library's database has schema version {found}, this software supports up to {SCHEMA_VERSION}: "
            "install the newer version that wrote it, or use another database"
        )
    elif found < SCHEMA_VERSION:
        _upgrade(session)


def mark_changed(session: Session, row: TemplateRow) -> None:
    """Note that a template changes, in a new version of the library, by which readers notice it."""
    row.changed, row.updated_at = next_version(session), now_text()


def next_version(session: Session) -> int:
    """Add one to the library's version and return it; other writers wait until the transaction ends."""
    statement = sa.update(LibraryRow).values(version=LibraryRow.version + 1).returning(col(LibraryRow.version))
    return int(session.connection().execute(statement).scalar_one())


def _upgrade(session: Session) -> None:
    """Add the tables and columns that an older database lacks, and fill them. New columns must allow NULL.

    What only older versions used stays, but for two tables whose references would keep templates from being deleted.
    """
    connection = session.connection()
    for name in ("template_tags", "template_routes"):
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ALTER TABLE templates ALTER COLUMN facets TYPE JSON USING facets::JSON")
    Table.metadata.create_all(connection)
    for table in Table.metadata.sorted_tables:
        known = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    library = session.exec(select(LibraryRow)).one()
    # Each template counts as changed at the upgrade, so that no change is missed.
    library.schema_version, library.version = SCHEMA_VERSION, library.version + 1
    last, some = "", select(TemplateRow).order_by(TemplateRow.id).limit(_AT_ONCE)
    while rows := session.exec(some.where(TemplateRow.id > last)).all():
        for row in rows:
            row.updated_at = row.updated_at or now_text()
            if row.prepared is None:
                row.prepare()
            keys = facet_keys(row.facets, row.difficulty)
            session.add_all(FacetRow(facet=key, template_id=row.id) for key in keys)
        last = rows[-1].id
        session.flush()
        session.expunge_all()
