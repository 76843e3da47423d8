"""`/v1/draft`: devices that draft for a server, over a WebSocket. Frames are those of `reader_edge.remote`."""
