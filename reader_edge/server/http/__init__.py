"""How the server listens: sockets, bodies, streams of events, who may ask, and the page at `/`."""
