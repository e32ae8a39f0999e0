"""Finds the route of a path: exact paths by one look-up, paths with parameters by their number of segments."""

from collections.abc import Sequence

from codeq.server.request import HttpRequest
from codeq.server.routes import Route
from codeq.wire.errors import NoRoute, WrongMethod


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[int, list[tuple[list[str], dict[str, Route]]]] = {}
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
        for pattern, methods in self._patterns.get(len(segments), ()):
            if all(part == text or part[:1] == "{" for part, text in zip(pattern, segments, strict=True)):
                request.params = {
                    part[1:-1]: text for part, text in zip(pattern, segments, strict=True) if part[:1] == "{"
                }
                return methods
        raise NoRoute("there is nothing at this path; see /docs")

    def _add(self, route: Route) -> None:
        if "{" not in route.path:
            self._exact.setdefault(route.path, {})[route.method] = route
            return
        pattern = route.path.split("/")
        candidates = self._patterns.setdefault(len(pattern), [])
        for known, methods in candidates:
            if known == pattern:
                methods[route.method] = route
                return
        candidates.append((pattern, {route.method: route}))
