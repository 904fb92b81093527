"""Schema files to texts that are known to be schemas, with all that they refer to. Blocks for small files.

A `$ref` leads to a place in its file, or to a file of the schema's folder: nothing is fetched, and no link of the file
system leads out. What is wrong with a schema is found here, not with the first payload.
"""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema_specifications import REGISTRY
from referencing import Registry
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from amqtt_rest_bridge.lot.schemas import SchemaFileError
from amqtt_rest_bridge.lot.schemas.texts import fault_of, parse, pointer_of, search_of, shown
from amqtt_rest_bridge.system import FileState, file_state, regular_file

_MOST_BYTES: Final = 1 << 20  # of a file
_MOST_FILES: Final = 64
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_OUTSIDE: Final = "a $ref is looked up in the file itself and in files of its folder; nothing is fetched"


class SchemaReader:
    """Read a schema; `seen` gets each file that was looked at, as it was then."""

    def __init__(self, path: str, seen: set[FileState]) -> None:
        self._path = Path(path)
        self._folder = self._path.absolute().parent.resolve()
        self._seen = seen
        self._texts: dict[str, str] = {}
        self._resources: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # of files, by their contents
        self._applied: dict[int, set[int]] = {}  # schemas that a value is checked against because it is by another

    def documents(self) -> tuple[tuple[str, str], ...]:
        """Return URI and text of each file, the schema's own first; raises `SchemaFileError`."""
        text, contents = self._read(self._path, "it")
        # What it refers to is beside its $id, where it has one.
        own = contents.get("$id", "") if isinstance(contents, dict) else ""
        uri = urljoin(self._folder.joinpath(self._path.name).as_uri(), own)
        root = self._keep(uri, text, contents, "")
        empty: Any = Registry(retrieve=self._retrieve)  # type: ignore[call-arg]  # of a class that attrs makes
        try:
            self._follow(REGISTRY.combine(empty).with_resource(uri, root).resolver(base_uri=uri), root)
            TopologicalSorter(self._applied).prepare()
        except CycleError:
            raise SchemaFileError("its $ref leads back to itself, so that no check would end") from None
        except RecursionError:  # hundreds of $ref, each of which leads to the next
            raise SchemaFileError("it is nested too deeply") from None
        return tuple(self._texts.items())

    def _retrieve(self, uri: str) -> Any:
        """Return what a `$ref` leads to that is not in its file; the library asks."""
        if uri in self._resources:
            return self._resources[uri]
        file = Path(unquote(urlsplit(uri).path)).resolve() if uri.startswith("file:") else self._folder
        if not file.is_relative_to(self._folder) or file == self._folder or len(self._texts) >= _MOST_FILES:
            raise NoSuchResource(uri)
        name = shown(str(file.relative_to(self._folder)))
        return self._keep(uri, *self._read(file, name), f" of {name}")

    def _keep(self, uri: str, text: str, contents: Any, name: str) -> Any:
        self._names[id(contents)] = name
        self._texts[uri], self._resources[uri] = text, DRAFT202012.create_resource(contents)
        return self._resources[uri]

    def _read(self, file: Path, name: str) -> tuple[str, Any]:
        text = self._text_of(file, name)
        try:
            contents = parse(text)
            Draft202012Validator.check_schema(contents, format_checker=FormatChecker(formats=()))
        except (ValueError, RecursionError) as error:
            raise SchemaFileError(f"{name} is not JSON: {fault_of(error)}") from None
        except SchemaError as error:
            fault = f"{pointer_of(error.absolute_path)}: {shown(error.message)}"
            raise SchemaFileError(f"{name} is not a JSON Schema: {fault}") from None
        dialect = contents.get("$schema", _DIALECT) if isinstance(contents, dict) else _DIALECT
        if dialect.rstrip("#") != _DIALECT:
            raise SchemaFileError(f"{name} is written for {shown(dialect)}", f'write "$schema": "{_DIALECT}"')
        return text, contents

    def _text_of(self, file: Path, name: str) -> str:
        self._seen.add(file_state(str(file)))
        try:
            regular_file(file)
            with file.open("rb") as opened:
                content = opened.read(_MOST_BYTES + 1)
            text = content.decode()
        except UnicodeDecodeError:
            raise SchemaFileError(f"{name} is not UTF-8 text") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = str(getattr(error, "strerror", None) or error).lower()
            is_missing = name == "it" and isinstance(error, FileNotFoundError)
            hint = "relative paths begin at the working directory" if is_missing else None
            raise SchemaFileError(f"{name} cannot be read: {reason}", hint) from None
        if len(content) > _MOST_BYTES:
            raise SchemaFileError(f"{name} is larger than 1 MiB")
        return text

    def _follow(self, resolver: Any, resource: Any) -> None:
        """Look up whatever a schema refers to, and compile its patterns."""
        contents = resource.contents
        if not isinstance(contents, dict) or id(contents) in self._applied:
            return
        applied = self._applied[id(contents)] = {id(one) for one in contents.get("allOf", ())}
        for pattern in (*filter(None, [contents.get("pattern")]), *contents.get("patternProperties", ())):
            search_of(pattern)
        for name in ("$ref", "$dynamicRef"):
            if name in contents:
                found = self._lookup(resolver, contents[name])
                if name == "$ref":
                    applied.add(id(found.contents))
                self._follow(found.resolver, DRAFT202012.create_resource(found.contents))
        for inner in resource.subresources():
            self._follow(resolver.in_subresource(inner), inner)

    def _lookup(self, resolver: Any, ref: str) -> Any:
        try:
            return resolver.lookup(ref)
        except Unresolvable as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, SchemaFileError):  # of a file that was found
                    raise cause from None
                cause = cause.__cause__ or cause.__context__
        of_file = self._names.get(id(resolver.lookup("#").contents), "")
        raise SchemaFileError(f"{'the' if of_file else 'its'} $ref {shown(ref)}{of_file} leads nowhere", _OUTSIDE)
