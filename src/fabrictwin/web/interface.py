"""Operations of the HTTP interface: each declared once, for the route that answers it and for OpenAPI."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fabrictwin.base.errors import ConfigError, FabrictwinError, SimulatedError
from fabrictwin.base.records import record
from fabrictwin.base.validation_errors import config_errors
from fabrictwin.base.version import __version__
from fabrictwin.runs.worker_process import WorkerEndedError
from fabrictwin.web.declarations import Problem, Problems
from fabrictwin.web.guard import TOO_LONG, TOO_SLOW, TooLongError, TooSlowError
from fabrictwin.web.jobs import FullError

JSON = "application/json"
REFS = "#/components/schemas/{model}"
RETRY_S = 2
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class UnknownError(FabrictwinError):
    """There is nothing of that name."""


@record
class Asked:
    """A request, checked."""

    request: Request
    given: Any  # the parameters, as the operation's model
    body: Any  # the body, as the operation's model, or the bytes of a file


Handler = Callable[[Asked], Awaitable[Any]]


@record
class Takes:
    """What a request carries."""

    method: str
    path: str
    parameters: type[BaseModel] | None = None  # of the path and of the query
    body: Any = None  # a model or a union of such; bytes for a file


@record
class Gives:
    """What comes back."""

    answer: Any = None  # a model; None where the answer is of `media` or empty
    media: Sequence[str] = ()
    status: int = 200
    errors: Sequence[int] = (422, 503)


@record
class Operation:
    """One thing that can be asked."""

    name: str
    summary: str
    handler: Handler
    takes: Takes
    gives: Gives


MEANINGS = {
    404: "There is nothing of that name.",
    409: "Not yet, or not any more: the job is not over, or did not end well.",
    413: "The body is too long.",
    422: "Something in the request is wrong; `errors` says what and where.",
    503: "The queue is full; ask again later.",
    504: "It took too long.",
}


def refused(status: int, errors: Sequence[ConfigError | str], **headers: str) -> JSONResponse:
    """An answer that says what is wrong."""
    problems = [
        Problem(message=one)
        if isinstance(one, str)
        else Problem(message=one.message, key=one.key, line=one.line, file=one.file)
        for one in errors
    ]
    return JSONResponse(Problems(errors=problems).model_dump(), status, headers=headers)


def routes(operations: Sequence[Operation]) -> list[Route]:
    """A route for each operation."""
    return [Route(one.takes.path, _endpoint(one), methods=[one.takes.method], name=one.name) for one in operations]


def _endpoint(operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    adapter = None if operation.takes.body in (None, bytes) else TypeAdapter[Any](operation.takes.body)

    async def endpoint(request: Request) -> Response:
        try:
            given = None
            if operation.takes.parameters is not None:
                given = _validated(operation.takes.parameters, {**request.query_params, **request.path_params})
            body: Any = None
            if operation.takes.body is bytes:
                body = await request.body()
            elif adapter is not None:
                body = _validated(adapter, _json(await request.body()))
            answer = await operation.handler(Asked(request, given, body))
        except TooLongError:
            return refused(413, [TOO_LONG], connection="close")
        except (TooSlowError, ClientDisconnect):
            return refused(408, [TOO_SLOW], connection="close")
        except _InvalidError as error:
            return refused(422, error.errors)
        except ConfigError as error:
            return refused(422, [error])
        except SimulatedError as error:
            return refused(422, [str(error)])
        except UnknownError as error:
            return refused(404, [str(error)])
        except NotReadyError as error:
            return refused(409, [str(error)])
        except FullError as error:
            return refused(503, [str(error)], **{"retry-after": str(RETRY_S)})
        except WorkerEndedError:
            return refused(504, ["it took too long, or too much memory, and was ended"])
        if isinstance(answer, Response):
            return answer
        return JSONResponse(answer, operation.gives.status)

    return endpoint


class NotReadyError(FabrictwinError):
    """The job is not over, or has no answer."""


class _InvalidError(Exception):
    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__(str(errors))
        self.errors = errors


def _json(content: bytes) -> Any:
    """Plain data of a body that an answer can repeat: no infinity, no half a character. Raises ConfigError."""
    try:
        found = json.loads(content, parse_constant=_no_constant, parse_float=_finite)
        if _SURROGATE.search(content):
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ConfigError("expected JSON") from None
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _validated(model: Any, data: Any) -> Any:
    try:
        if isinstance(model, TypeAdapter):
            return model.validate_python(data)
        return model.model_validate(data)
    except ValidationError as error:
        raise _InvalidError(config_errors(error, BaseModel, data=data)) from None


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI document of operations, written from what validates their requests."""
    models = _models(operations)
    _, definitions = models_json_schema(models, ref_template=REFS)
    paths: dict[str, Any] = {}
    for one in operations:
        path = re.sub(r":\w+}", "}", one.takes.path)
        paths.setdefault(path, {})[one.takes.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fabrictwin",
            "version": __version__,
            "description": (
                "Predict what a job gets on a cluster. Times, rates and sizes have their units in their names; "
                "utilisation is from 0 to 1."
            ),
        },
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _models(operations: Sequence[Operation]) -> list[tuple[type[BaseModel], Any]]:
    found: dict[tuple[type[BaseModel], str], None] = {(Problems, "serialization"): None}
    for one in operations:
        for model in _members(one.takes.body):
            found[model, "validation"] = None
        for model in _members(one.gives.answer):
            found[model, "serialization"] = None
    return list(found)


def _members(declared: Any) -> list[type[BaseModel]]:
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        return [declared]
    from typing import get_args

    return [model for inner in get_args(declared) for model in _members(inner)]


def _schema(declared: Any, mode: Any) -> dict[str, Any]:
    found = TypeAdapter(declared).json_schema(ref_template=REFS, mode=mode)
    found.pop("$defs", None)
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        return {"$ref": REFS.format(model=declared.__name__)}
    return found


def _operation(one: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"operationId": one.name, "summary": one.summary, "responses": {}}
    if one.takes.parameters is not None:
        described["parameters"] = _parameters(one)
    if one.takes.body is bytes:
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        described["requestBody"] = {"required": True, "content": content}
    elif one.takes.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": _schema(one.takes.body, "validation")}},
        }
    answer: dict[str, Any] = {"description": one.summary}
    if one.gives.answer is not None or one.gives.media:
        schema = {} if one.gives.answer is None else _schema(one.gives.answer, "serialization")
        answer["content"] = {
            media: {"schema": schema if media == JSON else {}} for media in one.gives.media or (JSON,)
        }
    described["responses"][str(one.gives.status)] = answer
    for status in one.gives.errors:
        described["responses"][str(status)] = {
            "description": MEANINGS[status],
            "content": {JSON: {"schema": {"$ref": REFS.format(model="Problems")}}},
        }
    return described


def _parameters(one: Operation) -> list[dict[str, Any]]:
    assert one.takes.parameters is not None
    schema = one.takes.parameters.model_json_schema(ref_template=REFS)
    required = schema.get("required", [])
    found = []
    for name, its in schema["properties"].items():
        in_path = f"{{{name}}}" in one.takes.path
        its.pop("title", None)
        found.append(
            {
                "name": name,
                "in": "path" if in_path else "query",
                "required": in_path or name in required,
                "description": its.pop("description", name),
                "schema": its,
            }
        )
    return found
