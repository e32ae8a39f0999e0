"""How the arguments of a function become the payload of a task, and its result a value: by its annotations.

A function without parameters has no payload. One parameter that may be a JSON object (a dataclass, a TypedDict, a
msgspec.Struct, a pydantic model, a dict, or not annotated) is the payload. Otherwise the payload is an object with the
arguments by name; a payload that is no object is the first argument. The job is no argument: it is the parameter that
is annotated as RunningJob, or that is called `job` and has no annotation.
"""

import inspect
import types
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from codeq.domain.errors import InvalidRequest
from codeq.sdk.jobs import Job, PayloadInvalid, ResultInvalid
from codeq.sdk.json_encoding import encode_json, make_decoder
from codeq.sdk.new_tasks import ENQUEUE_OPTIONS

JOB = "job"
_MISSING: Any = object()
_NOT_OBJECTS = (
    msgspec.inspect.StrType, msgspec.inspect.IntType, msgspec.inspect.FloatType, msgspec.inspect.BoolType,
    msgspec.inspect.NoneType, msgspec.inspect.BytesType, msgspec.inspect.ByteArrayType, msgspec.inspect.DateTimeType,
    msgspec.inspect.DateType, msgspec.inspect.TimeType, msgspec.inspect.TimeDeltaType, msgspec.inspect.UUIDType,
    msgspec.inspect.DecimalType, msgspec.inspect.EnumType, msgspec.inspect.LiteralType, msgspec.inspect.ListType,
    msgspec.inspect.TupleType, msgspec.inspect.VarTupleType, msgspec.inspect.SetType, msgspec.inspect.FrozenSetType,
)  # fmt: skip
"""JSON values of these types are never objects, so that an object can only be the arguments by name."""

Bound = tuple[Sequence[Any], dict[str, Any]]


class TaskSignature:
    """The parameters and the result of one function. Types are read at first use, when all names are defined."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises InvalidRequest if the function cannot be a handler."""
        self.name = getattr(function, "__qualname__", repr(function))
        self._function = function
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidRequest(f"a handler returns its result; {self.name} yields")
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError) as fault:
            raise InvalidRequest(
                f"a handler is a function whose parameters can be read; {self.name} is not: {fault}"
            ) from None
        if next(iter(self._signature.parameters), "") == "self":
            raise InvalidRequest(
                f"a handler is called without `self`; {self.name} is a method: register that of an object,"
                " as worker.task()(shop.resize)"
            )
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidRequest(
                    f"a handler names its arguments; {self.name} takes {parameter}"
                    " (a decorator keeps those of its function with functools.wraps)"
                )

    @cached_property
    def job_name(self) -> str | None:
        """The parameter that gets the job, if there is one."""
        job_type = _worker().RunningJob
        for name, parameter in self._signature.parameters.items():
            hint = self._hints.get(name)
            is_job = hint is None and name == JOB and parameter.annotation is parameter.empty
            if is_job or hint is job_type or job_type in get_args(hint):
                return name
            if hint is Job or Job in get_args(hint):
                raise InvalidRequest(f"{self.name} gets a codeq.RunningJob, not a codeq.Job: annotate {name} as that")
        return None

    @cached_property
    def takes_whole(self) -> bool:
        """Whether the payload is the value of the only parameter."""
        if len(self._arguments) != 1:
            return False
        self._decoder(self._kind_of(self._arguments[0]))  # refuses what the next line would
        kind = msgspec.inspect.type_info(self._kind_of(self._arguments[0]))
        options = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
        return not all(isinstance(option, _NOT_OBJECTS) for option in options)

    def check(self) -> None:
        """Reads all types. Raises InvalidRequest if one of them cannot be read, or has no JSON form."""
        _ = self.job_name, self.takes_whole, self._decode, self._decode_first, self._decode_result

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Returns the payload for a call with these arguments. Raises PayloadInvalid if the function could not be
        called with what a worker would decode."""
        try:
            bound = self._parameters.bind(*args, **kwargs).arguments
        except TypeError as fault:
            options = sorted(ENQUEUE_OPTIONS & kwargs.keys() - set(self._arguments))
            hint = f"; options of enqueue are given with .options({options[0]}=...)" if options else ""
            raise PayloadInvalid(f"{self.name}: {fault}{hint}") from None
        takes_whole = self.takes_whole  # reads the types, whose faults are not those of the arguments
        try:
            payload = encode_json(next(iter(bound.values())) if takes_whole and bound else bound)
        except InvalidRequest as fault:
            raise PayloadInvalid(f"{self.name}: an argument {fault}") from None
        self.decode(payload)
        return payload

    def decode(self, payload: bytes) -> Bound:
        """Returns the arguments to call the function with, without the job. Raises PayloadInvalid."""
        try:
            if self.takes_whole:
                value = self._decode(payload)
                return ((value,), {}) if self._positional else ((), {self._arguments[0]: value})
            if payload[:1] == b"{" or (payload == b"null" and not self._arguments):
                return self._bound(self._by_name(payload))
            if not self._takes_value:
                raise ValueError("it is no object with the arguments by name")
            return self._bound({self._arguments[0]: self._decode_first(payload)})
        except (msgspec.DecodeError, ValueError, RecursionError, NotImplementedError) as fault:
            raise PayloadInvalid(f"the payload does not fit {self.name}{self._parameters}: {_in_line(fault)}") from None

    def decode_whole(self, payload: bytes) -> Any:
        """The value of the only parameter. Raises PayloadInvalid."""
        args, kwargs = self.decode(payload)
        return args[0] if args else next(iter(kwargs.values()))

    def decode_result(self, result: bytes | None) -> Any:
        """Returns the result as the type that the function says it returns. Raises ResultInvalid."""
        if result is None:
            return None
        try:
            return self._decode_result(result)
        except (msgspec.DecodeError, ValueError, RecursionError, NotImplementedError) as fault:
            raise ResultInvalid(f"the result does not fit what {self.name} returns: {_in_line(fault)}") from None

    # -- types, read once ----------------------------------------------------------------------------------------

    @cached_property
    def _hints(self) -> dict[str, Any]:
        function = self._function
        while not isinstance(function, (types.FunctionType, types.MethodType, type)):
            # What wraps a function (a partial, functools.cache, a static method) has no annotations of its own.
            inner = function.func if isinstance(function, partial) else getattr(function, "__wrapped__", None)
            function = type(function).__call__ if inner is None else inner
            if inner is None:
                break
        try:
            return get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError) as fault:
            raise InvalidRequest(
                f"the annotations of {self.name} cannot be read: {fault}; import what they name,"
                " not only if TYPE_CHECKING"
            ) from None

    @cached_property
    def _arguments(self) -> Sequence[str]:
        return [name for name in self._signature.parameters if name != self.job_name]

    @cached_property
    def _parameters(self) -> inspect.Signature:
        """Without the job, which no producer passes."""
        return self._signature.replace(
            parameters=[self._signature.parameters[name] for name in self._arguments],
            return_annotation=inspect.Signature.empty,
        )

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        """Decodes the payload: as the only argument, or as all of them by name."""
        if self.takes_whole:
            return self._decode_first
        fields = []
        for name in self._arguments:
            has_default = self._signature.parameters[name].default is not inspect.Parameter.empty
            fields.append((name, self._kind_of(name), _MISSING) if has_default else (name, self._kind_of(name)))
        return self._decoder(msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True))

    @cached_property
    def _decode_first(self) -> Callable[[bytes], Any]:
        return self._decoder(self._kind_of(self._arguments[0]) if self._arguments else None)

    @cached_property
    def _decode_result(self) -> Callable[[bytes], Any]:
        outcomes = (_worker().Retry, _worker().Fail, _worker().Bury, _worker().Snooze)
        return self._decoder(_without(self._hints.get("return", Any), outcomes))

    def _decoder(self, kind: Any) -> Callable[[bytes], Any]:
        try:
            return make_decoder(kind)
        except TypeError as fault:
            raise InvalidRequest(f"the types of {self.name} have no JSON form: {fault}") from None

    def _kind_of(self, name: str) -> Any:
        found = self._hints.get(name, Any)
        return Any if found is object else found

    @cached_property
    def _takes_value(self) -> bool:
        """Whether a payload that is no object can be the first argument: no other one is needed."""
        others = [self._signature.parameters[name] for name in self._arguments[1:]]
        return bool(self._arguments) and all(other.default is not other.empty for other in others)

    @cached_property
    def _positional(self) -> Sequence[str]:
        """The arguments that are passed by position: those that must be, or the only one, as wrappers may rename it."""
        kinds = {name: self._signature.parameters[name].kind for name in self._arguments}
        if len(kinds) == 1 and next(iter(self._signature.parameters)) in kinds:
            return [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY]
        return [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]

    def _by_name(self, payload: bytes) -> dict[str, Any]:
        if not self._arguments and payload == b"null":
            return {}
        arguments = self._decode(payload)
        found = {name: getattr(arguments, name) for name in self._arguments}
        return {name: value for name, value in found.items() if value is not _MISSING}

    def _bound(self, arguments: dict[str, Any]) -> Bound:
        if not self._positional:
            return (), arguments
        given = max((place for place, name in enumerate(self._positional, 1) if name in arguments), default=0)
        parameters = self._signature.parameters
        # One that was left out before others has its default.
        args = [arguments.pop(name, parameters[name].default) for name in self._positional[:given]]
        return args, arguments

    def __reduce__(self) -> tuple[type, tuple[Callable[..., Any]]]:
        return type(self), (self._function,)  # decoders cannot be sent to another process


class BatchSignature(TaskSignature):
    """Of a function that takes the payloads of many tasks as a list, and returns a list of their results, or None."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        if len(self._signature.parameters) != 1:
            raise InvalidRequest(f"a handler of batches takes one list of payloads; {self.name} does not")

    job_name = None
    takes_whole = True

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The types of one task: of an item of the parameter, and of an item of the returned list."""
        hints = {name: _without(hint, (type(None),)) for name, hint in super()._hints.items()}
        return {name: next(iter(get_args(hint)), Any) for name, hint in hints.items()}


def _worker() -> Any:
    """Imported at first use: workers import definitions of tasks."""
    return import_module("codeq.sdk.worker")


def _without(kind: Any, unwanted: tuple[type, ...]) -> Any:
    """The type without members of its union that are no results."""
    if get_origin(kind) is Annotated or get_origin(kind) not in (Union, types.UnionType):
        return Any if kind in unwanted or kind is object else kind
    kept = [each for each in get_args(kind) if each not in unwanted]
    return Union[tuple(kept)] if kept else Any  # noqa: UP007 - made of a list


def _in_line(fault: Exception) -> str:
    return " ".join(str(fault).split())
