"""A server that forgets past answers on request, so that each way of drafting is measured from the same start.

    python -m benchmarks.device.forgetting_server PACKAGE THREADS

It is a process of its own, and writes its port to standard output.
"""

import sys

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reader_edge.server.app import make_app
from reader_edge.server.listening import listen, open_socket
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, DraftSources, Engine, EngineConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.remote_source import RemoteSource

FORGET = "/forget"


def main() -> None:
    package, threads = sys.argv[1], int(sys.argv[2])
    engine = Engine.load(package, EngineConfig(threads=threads), sources=DraftSources(extra=[RemoteSource()]))
    drafter = engine.decoder.drafter
    assert isinstance(drafter, RetrievalDrafter)
    drafter.wait()
    served = AsyncEngine(engine)
    app = make_app(served, ServerSettings("model"))

    def forget(request: Request) -> Response:
        learned = drafter.loaded_core().parameters.copy()
        engine.forget()
        drafter.loaded_core().parameters[:] = learned
        return Response()

    app.router.routes.insert(0, Route(FORGET, forget, methods=["POST"]))
    with open_socket("127.0.0.1", 0) as place:
        print(place.getsockname()[1], flush=True)
        listen(app, place, served)


if __name__ == "__main__":
    main()
