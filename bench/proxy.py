"""The objects and the measurement of bench/proxy: PORT TOKEN make COUNT, or PORT TOKEN measure NAME=PID=NAMESPACE..."""
import http.client, json, os, ssl, subprocess, sys, threading, time

port, token, what, rest = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
context = ssl._create_unverified_context()
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
# Changes that are measured, and between two of them, in seconds: each proxy applies one before the next comes.
CHANGES, PAUSE = 30, 1.5
WORKERS, REST_S, PATIENCE_S = 4, 20, 300
# The service that changes.
CHANGED = 7
TICKS = os.sysconf("SC_CLK_TCK")


def row(name, value):
    print(f"| {name:<44} | {value:<24} |", flush=True)


class Api:
    def __init__(self):
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)

    def send(self, method, path, body, kind="application/json"):
        headers = {"Authorization": "Bearer " + token, "Content-Type": kind}
        self.connection.request(method, path, json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read().decode()
        if answer.status >= 300:
            sys.exit(f"bench/proxy: {method} {path}: {answer.status} {text[:300]}")


def endpoints(n, last=None):
    addresses = [f"10.{44 + i}.{n >> 8}.{n & 255}" for i in range(5 if last is None else 4)]
    addresses += [] if last is None else [last]
    return [{"addresses": [a], "conditions": {"ready": True}, "nodeName": "far"} for a in addresses]


def make(count):
    for n in range(2):
        # Upstream's proxy waits for the Node that it is named after.
        addresses = [{"type": "InternalIP", "address": f"192.0.2.{n + 1}"}]
        Api().send("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{n}"},
                                             "spec": {"podCIDR": f"10.42.{n}.0/24"}, "status": {"addresses": addresses}})

    def work(first):
        api = Api()
        for n in range(first, count, WORKERS):
            spec = {"ports": [{"name": "web", "protocol": "TCP", "port": 80}]}
            service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s{n}"}, "spec": spec}
            api.send("POST", "/api/v1/namespaces/default/services", service)
            labels = {"kubernetes.io/service-name": f"s{n}", "endpointslice.kubernetes.io/managed-by": "bench"}
            ports = [{"name": "web", "protocol": "TCP", "port": 7070}]
            api.send("POST", SLICES, {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": f"s{n}-1", "labels": labels},
                "addressType": "IPv4", "ports": ports, "endpoints": endpoints(n)})

    threads = [threading.Thread(target=work, args=(first,)) for first in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cpu(pid):
    """Of a process and of the programs that it has waited for, in seconds."""
    with open(f"/proc/{pid}/stat") as stat:
        return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:15])) / TICKS


def resident_mb(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024


def rules(namespace):
    """The namespace's rules, as text."""
    listed = subprocess.run(["nsenter", f"--net=/run/netns/{namespace}", "nft", "list", "ruleset"], capture_output=True, text=True)
    return listed.stdout


def measure(proxies):
    api = Api()
    change = lambda last: api.send("PATCH", f"{SLICES}/s{CHANGED}-1", {"endpoints": endpoints(CHANGED, last)}, "application/merge-patch+json")
    change("10.99.0.1")
    for name, _, namespace in proxies:
        began = time.time()
        while "10.99.0.1" not in rules(namespace):
            if time.time() - began > PATIENCE_S:
                sys.exit(f"bench/proxy: {name} has no rules after {PATIENCE_S} s")
            time.sleep(2)
    time.sleep(REST_S)
    before = {name: cpu(pid) for name, pid, _ in proxies}
    time.sleep(REST_S)
    at_rest = {name: (cpu(pid) - before[name]) / REST_S for name, pid, _ in proxies}
    before, began = {name: cpu(pid) for name, pid, _ in proxies}, time.time()
    for n in range(CHANGES):
        change(f"10.99.1.{n + 1}")
        time.sleep(PAUSE)
    took = time.time() - began
    for name, pid, namespace in proxies:
        used = (cpu(pid) - before[name] - at_rest[name] * took) / CHANGES * 1000
        if f"10.99.1.{CHANGES}" not in rules(namespace):
            sys.exit(f"bench/proxy: {name} has not applied the last change")
        row(f"{name}: CPU for one changed endpoint", f"{used:.1f} ms")
        row(f"{name}: memory", f"{resident_mb(pid)} MB")


if what == "make":
    make(int(rest[0]))
else:
    measure([proxy.split("=") for proxy in rest])
