#!/usr/bin/env bash
# codex-cli 0.171.0 (npm, @openai/codex): comments of a stream, which are the heartbeats of server-sent events and which
# browsers and most clients wait on by, do not count for its stream_idle_timeout_ms (300,000 by default). A server that
# reads a long prompt and sends a comment each second is given up, and asked again from the beginning; one that sends
# events of type response.in_progress is waited for.
#
# Seen on 29 November 2026, on Linux, with a limit of 4 seconds and an answer after 10:
#   comments: idle timeout waiting for SSE
#   events: DONE
# Exits with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix "$folder" @openai/codex@0.171.0 >/dev/null
cat >server.py <<'PYTHON'
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RESPONSE = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "m", "output": []}
ITEM = {
    **{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"},
    "content": [{"type": "output_text", "text": "DONE", "annotations": []}],
}
USAGE = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("application/json")
        self.wfile.write(b'{"data": []}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer("text/event-stream")
        for _ in range(10):
            if "comments" in self.path:
                self.wfile.write(b": waiting\n\n")
            else:
                self.send("response.in_progress", response=RESPONSE)
            time.sleep(1)
        self.send("response.created", response=RESPONSE)
        self.send("response.output_item.done", output_index=0, item=ITEM)
        self.send("response.completed", response=RESPONSE | {"status": "completed", "output": [ITEM], "usage": USAGE})

    def answer(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def send(self, kind, **fields):
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
PYTHON
python3 server.py >port 2>/dev/null &
until [ -s port ]; do sleep 0.1; done
for kind in comments events; do
    provider="{name=\"x\", base_url=\"http://127.0.0.1:$(cat port)/$kind\", wire_api=\"responses\""
    provider="$provider, stream_idle_timeout_ms=4000, stream_max_retries=0}"
    output=$(HOME=$folder CODEX_HOME=$folder timeout 60 node_modules/.bin/codex exec --skip-git-repo-check \
        -c 'model="m"' -c 'model_provider="x"' -c "model_providers.x=$provider" "Say hi" 2>&1 </dev/null || true)
    echo "$kind: $(grep -o 'idle timeout waiting for SSE\|^DONE' <<<"$output" | head -1)"
done | tee seen
diff seen - <<'SEEN'
comments: idle timeout waiting for SSE
events: DONE
SEEN
