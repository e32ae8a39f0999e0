"""Finds the route of a path: exact paths by one look-up, paths with parameters by one for each place of parameters."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

from codeq.server.request import HttpRequest
from codeq.server.routes import Route
from codeq.wire.errors import NoRoute, WrongMethod


class _Shape(NamedTuple):
    """Paths of one length that have their parameters at the same places."""

    fixed: tuple[int, ...]
    """The places of the other segments."""
    fixed_of: Callable[[list[str]], tuple[str, ...]]
    patterns: dict[tuple[str, ...], tuple[list[tuple[str, int]], dict[str, Route]]]
    """By the other segments: the parameters' names and places, and the routes by method."""


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._shapes: dict[int, list[_Shape]] = {}
        for route in routes:
            self._add(route)

    def find(self, request: HttpRequest) -> Route:
        """Returns the route for the request's path and method; path parameters are stored in `request.params`."""
        methods = self._exact.get(request.path)
        if methods is None:
            methods = self._match(request)
        route = methods.get(request.method)
        if route is None and request.method == "HEAD":
            route = methods.get("GET")  # RFC 9110, 9.3.2: the same response; the connection leaves the body out
        if route is None:
            allowed = {*methods, "HEAD"} if "GET" in methods else methods
            raise WrongMethod(f"this path takes: {', '.join(sorted(allowed))}")
        return route

    def _match(self, request: HttpRequest) -> dict[str, Route]:
        segments = request.path.split("/")
        for shape in self._shapes.get(len(segments), ()):
            found = shape.patterns.get(shape.fixed_of(segments))
            if found is not None:
                params, methods = found
                request.params = {name: segments[place] for name, place in params}
                return methods
        raise NoRoute("there is nothing at this path; see /docs")

    def _add(self, route: Route) -> None:
        if "{" not in route.path:
            self._exact.setdefault(route.path, {})[route.method] = route
            return
        pattern = route.path.split("/")
        fixed = tuple([place for place, part in enumerate(pattern) if part[:1] != "{"])
        shapes = self._shapes.setdefault(len(pattern), [])
        shape = next((known for known in shapes if known.fixed == fixed), None)
        if shape is None:
            shape = _Shape(fixed, itemgetter(*fixed), {})
            shapes.append(shape)
        params = [(part[1:-1], place) for place, part in enumerate(pattern) if place not in fixed]
        _, methods = shape.patterns.setdefault(shape.fixed_of(pattern), (params, {}))
        methods[route.method] = route
