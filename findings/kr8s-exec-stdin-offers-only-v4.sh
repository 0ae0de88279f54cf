#!/bin/bash
# Python package kr8s, version 0.20.15: Pod.exec with standard input.
# What one would guess: a client that needs the sub-protocol v5.channel.k8s.io (only v5 can close standard input) offers it.
# What happens: the WebSocket handshake offers v4.channel.k8s.io alone, and when the server chooses v4, kr8s raises an error that
# asks for v5. A server must choose from what is offered, so exec with standard input works with no server. Exec without standard
# input works.
# Who is hit: a server's operator who reads the error looks for a fault on the server.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv v
v/bin/pip -q install kr8s==0.20.15 websockets==15.0.1 2>/dev/null
cat > finding.py <<'PY'
import asyncio, http, json, os, threading
from websockets.asyncio.server import serve

offers = []

def plain(connection, request):
    if "/exec" in request.path:
        offers.append(request.headers.get("Sec-WebSocket-Protocol"))
        return None
    body = {"gitVersion": "v1.35.0"} if request.path.strip("/").startswith("version") else None
    if body is None:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]}}
    if request.path.split("?")[0].endswith("/pods"):
        body = {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [body]}
    answer = connection.respond(http.HTTPStatus.OK, json.dumps(body))
    answer.headers["Content-Type"] = "application/json"
    return answer

async def session(socket):
    # Channel 1 is standard output, 3 the status.
    await socket.send(b"\x01hello\n")
    await socket.send(b"\x03" + json.dumps({"status": "Success"}).encode())
    await socket.close()

ready = threading.Event()

def server():
    async def run():
        async with serve(session, "127.0.0.1", 0, process_request=plain, subprotocols=["v5.channel.k8s.io", "v4.channel.k8s.io"]) as s:
            global port
            port = s.sockets[0].getsockname()[1]
            ready.set()
            await asyncio.Future()
    asyncio.run(run())

threading.Thread(target=server, daemon=True).start()
ready.wait()
with open("kubeconfig", "w") as f:
    f.write(f"""apiVersion: v1
kind: Config
current-context: c
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
""")
os.environ["KUBECONFIG"] = "kubeconfig"
import io
from kr8s.objects import Pod
pod = Pod.get("p", namespace="default")
print("without stdin:", pod.exec(["cat"]).stdout)
try:
    pod.exec(["cat"], stdin=io.BytesIO(b"x"))
    print("with stdin: no error")
except Exception as error:
    while hasattr(error, "exceptions"):
        error = error.exceptions[0]
    print("with stdin:", type(error).__name__, "v5.channel.k8s.io" in str(error))
print("offered:", offers)
PY
out=$(timeout 60 v/bin/python finding.py 2>/dev/null)
echo "$out"
want=$(printf "%s\n" "without stdin: b'hello\\n'" "with stdin: ExecError True" "offered: ['v4.channel.k8s.io', 'v4.channel.k8s.io']")
[ "$out" = "$want" ] || { echo "this has changed" >&2; exit 1; }
