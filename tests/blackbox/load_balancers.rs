//! Services of type LoadBalancer on the addresses of nodes, reached from another network namespace.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{
    Machine, Needs::Node, Needs::OwnNode, Needs::OwnServer, Outcome, Process, Subject, Test, eventually, repo_root, sh,
};

use crate::pods::IMAGE;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "load_balancers::reached_from_outside", needs: Node, run: from_outside },
        Test { name: "load_balancers::a_port_is_given_once", needs: Node, run: conflicts },
        Test { name: "load_balancers::disabled_services_are_released", needs: OwnServer, run: disabled },
        Test { name: "load_balancers::addresses_of_a_pool_are_announced", needs: OwnNode, run: pool },
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// A web server whose answer is its client's address, behind a load balancer at `port`; `more` is added to the service's spec.
fn web(name: &str, port: u16, more: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: httpd
        image: {IMAGE}
        command: [sh, -c, 'mkdir -p /www/cgi-bin; printf \"#!/bin/sh\\necho; echo from \\$REMOTE_ADDR\\n\" > /www/cgi-bin/who; chmod +x /www/cgi-bin/who; exec httpd -f -p 8080 -h /www']
        ports: [{{containerPort: 8080, name: http}}]
        readinessProbe: {{tcpSocket: {{port: http}}, periodSeconds: 1}}
---
{}",
        service(name, port, more)
    )
}

fn service(name: &str, port: u16, more: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  type: LoadBalancer
  selector: {{app: {name}}}
  ports: [{{port: {port}, targetPort: http}}]
{more}"
    )
}

fn from_outside(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("lb-out")?;
    k.apply(&web("web", 18871, "  allocateLoadBalancerNodePorts: false\n"))?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let ip = eventually("an address", LIMIT, || {
        let service = k.json(&["get", "service", "web"])?;
        let ingress = &service["status"]["loadBalancer"]["ingress"][0];
        ensure!(ingress["ipMode"] == "VIP", "{}", service["status"]);
        Ok(ingress["ip"].as_str().unwrap_or_default().to_owned())
    })?;
    let service = k.json(&["get", "service", "web"])?;
    ensure!(service["spec"]["ports"][0]["nodePort"].is_null(), "{}", service["spec"]);
    let machine = Machine::start(31)?;
    let ask = |port: u16| machine.sh(&format!("curl -sf -m 3 http://{ip}:{port}/cgi-bin/who"));
    eventually("the service answers another machine", LIMIT, || ask(18871))?;
    k.apply(&service_local())?;
    eventually("the client's address is kept", LIMIT, || {
        let answer = ask(18872)?;
        // The server listens for both families, so it shows an IPv4 address in IPv6's form.
        let from = answer.trim().trim_start_matches("from ").trim_matches(['[', ']']).trim_start_matches("::ffff:");
        ensure!(from == machine.address, "{answer} is not {}", machine.address);
        Ok(())
    })?;
    let local = k.json(&["get", "service", "local"])?;
    let health = local["spec"]["healthCheckNodePort"].as_u64().unwrap_or_default();
    let code = machine.sh(&format!("curl -s -m 3 -o /dev/null -w '%{{http_code}}' http://{ip}:{health}/healthz"))?;
    ensure!(code == "200", "the health check node port: {code}");
    k.ok(&["patch", "service", "local", "-p", r#"{"spec":{"loadBalancerSourceRanges":["203.0.113.0/24"]}}"#])?;
    eventually("other sources are dropped", LIMIT, || {
        ensure!(ask(18872).is_err(), "it still answers");
        Ok(())
    })?;
    ensure!(ask(18871).is_ok(), "another service still answers");
    let events = k.ok(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
    ensure!(events.contains("EnsuringLoadBalancer") && events.contains("EnsuredLoadBalancer"), "{events}");
    k.ok(&["delete", "service", "web", "--timeout=30s"])?;
    eventually("a deleted service answers nobody", LIMIT, || {
        ensure!(ask(18871).is_err(), "it still answers");
        Ok(())
    })
}

fn pool(_: &Subject) -> Outcome {
    let machine = Machine::start(32)?;
    // A network in which this machine and the other one have addresses, beside that of the cable.
    let net = format!("198.19.{}", std::process::id() % 254 + 1);
    let cable = sh(&format!("ip -o -4 addr show to {} | awk '{{print $2}}'", machine.gateway()?))?;
    sh(&format!("ip addr add {net}.1/24 dev {}", cable.trim()))?;
    machine.sh(&format!("ip addr add {net}.2/24 dev up0"))?;
    let range = format!("{net}.100-{net}.101");
    let server = Process::start(&["--load-balancer-pool", &range], &repo_root().join(".cache/images"))?;
    let k = server.kubectl().fresh_namespace("lb-pool")?;
    k.apply(&web("web", 80, "  externalTrafficPolicy: Local\n"))?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let ask = || machine.sh(&format!("curl -sf -m 3 http://{net}.100/cgi-bin/who"));
    eventually("the address answers another machine, whose address is kept", LIMIT, || {
        let answer = ask()?;
        ensure!(answer.contains(&format!("{net}.2")), "{answer}");
        Ok(())
    })?;
    let entry = machine.sh(&format!("ip neigh show {net}.100"))?;
    let own = sh(&format!("cat /sys/class/net/{}/address", cable.trim()))?;
    ensure!(entry.contains(own.trim()), "the neighbour is this machine: {entry}");
    ensure!(!sh("ip -o addr")?.contains(&format!(" {net}.100/")), "no interface has the address");
    k.apply(&service("asking", 80, &format!("  loadBalancerIP: {net}.101\n")))?;
    k.apply(&service("late", 80, ""))?;
    let reason = |name: &str, wanted: &str| {
        eventually(&format!("{name} has the condition {wanted}"), LIMIT, || {
            let reason = k.ok(&["get", "service", name, "-o", "jsonpath={.status.conditions[*].reason}"])?;
            ensure!(reason == wanted, "{reason}");
            Ok(())
        })
    };
    reason("asking", "Allocated")?;
    reason("late", "AddressPoolExhausted")?;
    let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let forgotten = || {
        machine.sh("ip neigh flush dev up0")?;
        ensure!(ask().is_err(), "it still answers");
        Ok(())
    };
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    k.ok(&["label", "node", &node, &format!("{label}=")])?;
    eventually("an excluded node does not announce it", LIMIT, forgotten)?;
    k.ok(&["label", "node", &node, &format!("{label}-")])?;
    eventually("it answers again", LIMIT, ask)?;
    server.kill()?;
    eventually("nothing answers for a node that was killed", LIMIT, forgotten)?;
    server.launch()?;
    eventually("it answers after the restart", LIMIT, ask)?;
    server.finish(false)
}

fn service_local() -> String {
    service("local", 18872, "  externalTrafficPolicy: Local\n").replace("app: local", "app: web")
}

fn conflicts(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("lb-port")?;
    let address = |name: &str| -> anyhow::Result<String> {
        k.ok(&["get", "service", name, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"])
    };
    k.apply(&service("first", 18873, ""))?;
    eventually("the first has an address", LIMIT, || {
        ensure!(!address("first")?.is_empty(), "none");
        Ok(())
    })?;
    // A creation time has whole seconds, and names decide between services of one second.
    k.apply(&service("second", 18873, ""))?;
    k.apply(&service("theirs", 18874, "  loadBalancerClass: example.com/other\n"))?;
    eventually("an event says who has the port", LIMIT, || {
        let events = k.ok(&[
            "get",
            "events",
            "--field-selector=reason=SyncLoadBalancerFailed",
            "-o",
            "jsonpath={.items[*].message}",
        ])?;
        ensure!(events.contains("port 18873/TCP") && events.contains("service lb-port/first"), "{events}");
        Ok(())
    })?;
    ensure!(address("second")?.is_empty() && address("theirs")?.is_empty(), "no address yet");
    ensure!(k.ok(&["get", "service", "second"])?.contains("<pending>"), "pending");
    k.ok(&["delete", "service", "first", "--timeout=30s"])?;
    eventually("the second has the port now", LIMIT, || {
        ensure!(!address("second")?.is_empty(), "none");
        Ok(())
    })?;
    k.ok(&["delete", "service", "theirs", "--timeout=30s"])?;
    Ok(())
}

fn disabled(_: &Subject) -> Outcome {
    let server = Process::start(&["--disable-agent", "--disable", "servicelb"], &repo_root().join(".cache/images"))?;
    let k = server.kubectl().fresh_namespace("lb-off")?;
    k.apply(&service("web", 18875, ""))?;
    let service = k.json(&["get", "service", "web"])?;
    ensure!(service["metadata"]["finalizers"].is_null(), "{service}");
    k.ok(&["delete", "service", "web", "--timeout=30s"])?;
    server.finish(false)
}
