"""The Avro schemas as a read-only Confluent Schema Registry. Ids are those in records; a subject is a topic with prefix
and `-value`, or as in `schemas/schemas.lock`."""

from functools import partial

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from refold.client.reading.api import RegistryConfig, RegistryError, RegistrySchema, RegistryVersion
from refold.console.gateway.site import Site
from refold.core.topics import kind_of
from refold.core.wire.resources import resource
from refold.core.wire.schemas import Registered, file_name, locked

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_SUFFIX = "-value"


class RegistryAnswer(JSONResponse):
    media_type = MEDIA_TYPE


def registry_routes(site: APIRouter) -> None:
    errors = {"model": RegistryError, "description": "Not Found"}
    get = partial(site.get, response_class=RegistryAnswer)
    find = partial(get, responses={404: errors})

    @get("/registry/schemas/types", summary="List the kinds of schemas")
    def list_schema_types() -> list[str]:
        """Return the only type, Avro."""
        return ["AVRO"]

    @find("/registry/schemas/ids/{number}", summary="Show a schema by its id", response_model=RegistrySchema)
    def show_schema(number: str) -> RegistryAnswer:
        """Return a schema by its id. A record carries the id in its first five bytes, after a zero byte."""
        for line in locked():
            if str(line.id) == number:
                return RegistryAnswer({"schema": _schema_text(line)})
        return _registry_error(40403, f"Schema {number[:40]} not found")

    @get("/registry/subjects", summary="List the subjects")
    def list_subjects(shared: Site) -> list[str]:
        """Return the subjects: topics with the prefix of this platform and `-value`, without the names of pools."""
        prefix = shared.platform.settings.kafka.prefix
        return list(dict.fromkeys(f"{prefix}{line.subject}{_SUFFIX}" for line in locked()))

    @find("/registry/subjects/{subject}/versions", summary="List the versions of a subject", response_model=list[int])
    def list_schema_versions(shared: Site, subject: str) -> RegistryAnswer:
        """Return the versions, from 1."""
        lines = _versions_of(shared.platform.settings.kafka.prefix, subject)
        return RegistryAnswer([line.version for line in lines]) if lines else _unknown_subject(subject)

    @find(
        "/registry/subjects/{subject}/versions/{version}",
        summary="Show a version of a subject",
        response_model=RegistryVersion,
    )
    def show_schema_version(shared: Site, subject: str, version: str) -> RegistryAnswer:
        """Return a version by its number, or the `latest`, with its schema id."""
        lines = _versions_of(shared.platform.settings.kafka.prefix, subject)
        if not lines:
            return _unknown_subject(subject)
        for line in lines[-1:] if version in ("latest", "-1") else lines:
            if version in ("latest", "-1", str(line.version)):
                row = {"subject": subject, "id": line.id, "version": line.version, "schema": _schema_text(line)}
                return RegistryAnswer(RegistryVersion.model_validate(row).dump())
        return _registry_error(40402, f"Version {version[:40]} not found.")

    @get("/registry/config", summary="Show which changes of schemas there may be")
    def show_registry_config() -> RegistryConfig:
        """Return the rule: the newest version of a schema reads records of all older versions."""
        return RegistryConfig(compatibilityLevel="BACKWARD_TRANSITIVE")


def _versions_of(prefix: str, subject: str) -> list[Registered]:
    name = subject.removesuffix(_SUFFIX).removeprefix(prefix)
    subjects = {line.subject for line in locked()}
    name = name if name in subjects else kind_of(name)
    return [line for line in locked() if line.subject == name]


def _schema_text(line: Registered) -> str:
    return resource("schemas", file_name(line)).read_text()


def _unknown_subject(subject: str) -> RegistryAnswer:
    return _registry_error(40401, f"Subject {subject[:80]!r} not found.")


def _registry_error(code: int, message: str) -> RegistryAnswer:
    return RegistryAnswer(RegistryError(error_code=code, message=message).dump(), code // 100)
