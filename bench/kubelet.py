"""The measurements of bench/kubelet, over the API alone: URL TOKEN AGENT_PID SCRATCH KUBECTL NETNS."""
import http.client, json, os, re, ssl, statistics, subprocess, sys, threading, time

url, token, agent, scratch, kubectl, netns = sys.argv[1:7]
host, port = re.match(r"https://(.*):(\d+)", url).groups()
rest_s, pods_max = int(os.environ.get("REST_S", "120")), int(os.environ.get("PODS", "110"))
exec_mb = int(os.environ.get("EXEC_MB", "2048"))
context = ssl._create_unverified_context()
IMAGE = "kelson.local/test/busybox:1"
PATH = "/api/v1/namespaces/bench/pods"


def row(what, value):
    print(f"| {what:<44} | {value:<24} |", flush=True)


def connection(timeout=120):
    return http.client.HTTPSConnection(host, int(port), context=context, timeout=timeout)


def ask(method, path, body=None, raw=False, fail=True):
    c = connection()
    c.request(method, path, json.dumps(body) if body is not None else None,
              {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
    answer = c.getresponse()
    text = answer.read().decode()
    c.close()
    if answer.status >= 300 and fail:
        sys.exit(f"bench/kubelet: {method} {path}: {answer.status} {text[:300]}")
    return text if raw else json.loads(text or "{}")


def wait(what, check, limit=300):
    """Waits until it holds, and says every ten seconds for what: a node that takes nobody is not waited for in silence."""
    began = told = time.time()
    while True:
        found = check()
        if found is True:
            return
        if time.time() - told > 10:
            told = time.time()
            print(f"waiting {told - began:.0f} s for {what}: {found} {conditions()}", file=sys.stderr, flush=True)
        if time.time() - began > limit:
            sys.exit(f"bench/kubelet: {what}: not within {limit} s: {found}")
        time.sleep(0.2)


def conditions():
    node = ask("GET", "/api/v1/nodes/bench", fail=False)
    if node.get("kind") != "Node":
        return "no such node"
    bad = [f"{c['type']}={c['status']} ({c.get('message', '')})" for c in node.get("status", {}).get("conditions", [])
           if (c["type"] == "Ready") != (c["status"] == "True")]
    return "; ".join(bad)


def pod(name, command, probe=False, more=None):
    container = {"name": "c", "image": IMAGE, "command": command}
    if probe:
        container["livenessProbe"] = container["readinessProbe"] = {"httpGet": {"port": 8080, "path": "/"}}
    spec = {"nodeName": "bench", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
            "containers": [container], **(more or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Watch(threading.Thread):
    """When each pod was first seen running, ended and gone, by this machine's clock."""

    def __init__(self):
        super().__init__(daemon=True)
        self.running, self.ended, self.gone, self.changed = {}, {}, {}, threading.Condition()
        self.started = threading.Event()

    def run(self):
        c = connection(timeout=None)
        c.request("GET", PATH + "?watch=true", headers={"Authorization": "Bearer " + token})
        answer = c.getresponse()
        self.started.set()
        for line in answer:
            now, event = time.time(), json.loads(line)
            name = event["object"]["metadata"]["name"]
            states = [s["state"] for s in event["object"].get("status", {}).get("containerStatuses", [])]
            with self.changed:
                if event["type"] == "DELETED":
                    self.gone[name] = now
                if any("running" in s for s in states):
                    self.running.setdefault(name, now)
                if any("terminated" in s for s in states):
                    self.ended.setdefault(name, now)
                self.changed.notify_all()

    def until(self, where, name, limit=120):
        with self.changed:
            if not self.changed.wait_for(lambda: name in where, limit):
                sys.exit(f"bench/kubelet: pod {name}: nothing within {limit} s; node: {conditions()}")
            return where[name]


def rss():
    with open(f"/proc/{agent}/status") as f:
        text = f.read()
    return [int(re.search(key + r":\s+(\d+)", text).group(1)) / 1024 for key in ("VmRSS", "RssAnon", "RssFile")]


def ticks():
    with open(f"/proc/{agent}/stat") as f:
        fields = f.read().rsplit(") ", 1)[1].split()
    return int(fields[11]) + int(fields[12])


STARTS = ("run_podsandbox", "create_container", "start_container")


def in_runtime():
    """Seconds that the runtime took so far for what starts a pod, as the kubelet measures its calls."""
    text = ask("GET", "/api/v1/nodes/bench/proxy/metrics", raw=True)
    found = re.findall(r'kubelet_runtime_operations_duration_seconds_sum\{operation_type="(\w+)"\} ([\d.e+-]+)', text)
    return sum(float(n) for name, n in found if name in STARTS)


def ready(count, running_only=False):
    def check():
        items = ask("GET", PATH)["items"]
        good = 0
        for p in items:
            if running_only:
                good += any("running" in s["state"] for s in p.get("status", {}).get("containerStatuses", []))
            else:
                good += any(c["type"] == "Ready" and c["status"] == "True" for c in p.get("status", {}).get("conditions", []))
        return good >= count or f"{good} of {count}"
    wait(f"{count} pods", check, 600)


def empty():
    wait("no pods", lambda: len(ask("GET", PATH)["items"]) == 0 or "some are there", 300)


wait("the node", lambda: conditions() == "" or "not ready")
ask("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
wait("the account of pods", lambda: "metadata" in ask("GET", "/api/v1/namespaces/bench/serviceaccounts/default", fail=False)
     and True or "absent")
watch = Watch()
watch.start()
watch.started.wait(30)

# At rest, each pod with two probes of HTTP at the usual ten seconds. First of all on a kubelet that has done nothing else yet, then
# with the larger number, and then with what is left of them, which tells what a kubelet keeps of pods that are gone.
serves = ["sh", "-c", "mkdir /w; echo ok > /w/index.html; exec httpd -f -p 8080 -h /w"]
# The kubelet gives back every 30 seconds what it does not use: the memory is read after two of them.
SETTLE_S = 65


def at_rest(count, watched_s, when=""):
    time.sleep(SETTLE_S)
    used = ticks()
    time.sleep(watched_s)
    share = (ticks() - used) / os.sysconf("SC_CLK_TCK") / watched_s * 100
    # What is of files is the program itself, all of it that was mapped once: the kernel's cache, which all processes of the
    # binary share and which goes when memory is short. What is anonymous is the node's alone.
    all_mb, anonymous_mb, files_mb = rss()
    row(f"node: memory with {count} pods{when}", f"{all_mb:.0f} MB ({anonymous_mb:.0f} + {files_mb:.0f} of files)")
    row(f"node: CPU at rest with {count} probed pods{when}", f"{share:.2f} % of a core")


made = 0
for count, watched_s in ((10, 30), (pods_max, rest_s)):
    while made < count:
        ask("POST", PATH, pod(f"web-{made}", serves, probe=True))
        made += 1
    ready(count)
    at_rest(count, watched_s)
for n in range(10, pods_max):
    ask("DELETE", f"{PATH}/web-{n}")
wait("10 pods", lambda: (n := len(ask("GET", PATH)["items"])) == 10 or f"{n} are there", 300)
at_rest(10, 30, ", after more")

# Bytes of one stream, from the runtime through kubelet and API server to kubectl, which takes its share of the processors; and beside
# it what the runtime's own streaming server gives a client that throws them away. A program that writes by its library's buffers (4 KB)
# gives the runtime more work than one that writes all it has.
config = f"{scratch}/data/admin.kubeconfig"
container = ask("GET", PATH + "/web-0")["status"]["containerStatuses"][0]["containerID"].split("//")[1]
writers = {"4 KB": ["head", "-c", f"{exec_mb}m", "/dev/zero"], "1 MB": ["dd", "if=/dev/zero", "bs=1M", f"count={exec_mb}"]}
for size, writer in writers.items():
    for how in ("websocket", "spdy"):
        env = {**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true" if how == "websocket" else "false"}
        began = time.time()
        done = subprocess.run([kubectl, "--kubeconfig", config, "-n", "bench", "exec", "web-0", "--", *writer],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        if done.returncode:
            sys.exit(f"bench/kubelet: kubectl exec ended with {done.returncode}")
        ours = exec_mb / (time.time() - began)
        alone = subprocess.run(["nsenter", f"--net=/run/netns/{netns}", sys.executable, f"{os.path.dirname(__file__)}/runtime_exec.py",
                                f"{scratch}/node/containerd/containerd.sock", container, how, str(exec_mb), *writer],
                               stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        row(f"node: exec, one stream, {how}, by {size}", f"{ours:.0f} MB/s (runtime {alone})")
for n in range(10):
    ask("DELETE", f"{PATH}/web-{n}")
empty()

# One at a time: from the binding (the pod is made bound) to Running, and what of it was the runtime's.
beyond, whole = [], []
for n in range(22):
    before, began = in_runtime(), time.time()
    ask("POST", PATH, pod(f"one-{n}", ["sleep", "1000000"]))
    took = watch.until(watch.running, f"one-{n}") - began
    spent = in_runtime() - before
    ask("DELETE", f"{PATH}/one-{n}")
    watch.until(watch.gone, f"one-{n}")
    # The first two load what was never used yet.
    if n > 1:
        whole.append(took * 1000)
        beyond.append((took - spent) * 1000)
row("node: bound to Running, median", f"{statistics.median(whole):.0f} ms")
row("node: of it beyond the runtime, median (max)", f"{statistics.median(beyond):.0f} ms ({max(beyond):.0f})")

# How soon an end is known: the container's process is killed here, and the API's watch tells of it.
late = []
for n in range(20):
    mark = str(5000000 + n)
    ask("POST", PATH, pod(f"end-{n}", ["sleep", mark], more={"restartPolicy": "Never"}))
    watch.until(watch.running, f"end-{n}")
    # A container that has just started may be on its way to its program still.
    while not (found := subprocess.run(["pgrep", "-x", "-f", f"sleep {mark}"], capture_output=True, text=True).stdout):
        time.sleep(0.05)
    began = time.time()
    os.kill(int(found.split()[0]), 9)
    late.append((watch.until(watch.ended, f"end-{n}") - began) * 1000)
    ask("DELETE", f"{PATH}/end-{n}")
row("node: a killed process shown as ended, median", f"{statistics.median(late):.0f} ms ({max(late):.0f})")
empty()

# A hundred at once, beside the same calls to the runtime: how many of them it has at work, and for how long.
before, began = in_runtime(), time.time()
makers = [threading.Thread(target=lambda n=n: [ask("POST", PATH, pod(f"many-{n}-{i}", ["sleep", "1000000"])) for i in range(25)])
          for n in range(4)]
for m in makers:
    m.start()
for m in makers:
    m.join()
ready(100, running_only=True)
last = max(t for name, t in watch.running.items() if name.startswith("many-"))
spent = in_runtime() - before
row("node: 100 pods at once, first to last", f"{last - began:.1f} s")
row("node: calls of the runtime at work meanwhile", f"{spent / (last - began):.1f} on average")
for n in range(4):
    for i in range(25):
        ask("DELETE", f"{PATH}/many-{n}-{i}")
empty()
