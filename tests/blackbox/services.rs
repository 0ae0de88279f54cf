//! Services and cluster DNS, from pods and from the host.
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Needs::Node, Needs::OwnServer, Outcome, Subject, Test, eventually};

use crate::pods::{IMAGE, log_of, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "services::cluster_ip_and_dns_from_a_pod", needs: Node, run: cluster_ip_and_dns },
        Test { name: "services::cluster_ip_and_node_port_from_the_host", needs: OwnServer, run: from_the_host },
        Test { name: "services::headless_and_external_names", needs: Node, run: headless },
        Test { name: "services::not_ready_endpoints_get_nothing", needs: Node, run: not_ready },
        Test { name: "services::api_server_from_a_pod", needs: Node, run: api_from_a_pod },
        Test { name: "services::pods_on_the_network_of_the_host", needs: Node, run: host_network },
        Test { name: "services::through_the_proxy_of_the_api", needs: Node, run: through_the_api },
    ]
}

/// Returns a Deployment of web servers that answer with their names, and a Service for them.
pub fn web(replicas: u8) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: httpd
        image: {IMAGE}
        command: [sh, -c, 'mkdir /www; hostname > /www/index.html; exec httpd -f -p 8080 -h /www']
        ports: [{{containerPort: 8080, name: http}}]
        readinessProbe: {{httpGet: {{port: http, path: /}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{type: NodePort, selector: {{app: web}}, ports: [{{port: 80, targetPort: http}}]}}
"
    )
}

fn cluster_ip_and_dns(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("s-dns")?;
    k.apply(&web(3))?;
    k.apply(&script("client", "sleep 6000", ""))?;
    ready(&k, "client")?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    for name in ["web", "web.s-dns", "web.s-dns.svc.cluster.local"] {
        let url = format!("http://{name}/");
        let got = eventually("the service answers", Duration::from_secs(30), || {
            k.ok(&["exec", "client", "--", "timeout", "5", "wget", "-qO-", &url])
        })?;
        ensure!(got.starts_with("web-"), "{got}");
    }
    let loop_ = "for i in $(seq 40); do timeout 5 wget -qO- http://web/; done";
    let hits: BTreeSet<String> =
        k.ok(&["exec", "client", "--", "sh", "-c", loop_])?.lines().map(str::to_owned).collect();
    ensure!(hits.len() == 3, "every endpoint is used: {hits:?}");
    let none = k.fails(&["exec", "client", "--", "nslookup", "nothing.s-dns.svc.cluster.local"])?;
    ensure!(none.stdout.contains("NXDOMAIN"), "{}{}", none.stdout, none.stderr);
    Ok(())
}

fn from_the_host(s: &Subject) -> Outcome {
    if s.lacks(Node).is_some() {
        return Err(anyhow::anyhow!("needs a node"));
    }
    let k = s.kubectl.fresh_namespace("s-host")?;
    k.apply(&web(2))?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let service = k.json(&["get", "svc", "web"])?;
    let cluster_ip = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let node_port = service["spec"]["ports"][0]["nodePort"].as_u64().unwrap_or_default();
    let node_ip = s.kubectl.ok(&[
        "get",
        "nodes",
        "-o",
        "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}",
    ])?;
    for url in [format!("http://{cluster_ip}/"), format!("http://{node_ip}:{node_port}/")] {
        eventually("the service answers the host", Duration::from_secs(60), || {
            let out = Command::new("curl").args(["-s", "-m", "3", &url]).output()?;
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            ensure!(text.starts_with("web-"), "{url}: {text:?}");
            Ok(())
        })?;
    }
    Ok(())
}

fn headless(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("s-headless")?;
    k.apply(&web(2))?;
    k.apply("apiVersion: v1\nkind: Service\nmetadata: {name: all}\nspec: {clusterIP: None, selector: {app: web}}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: elsewhere}\nspec: {type: ExternalName, externalName: web.s-headless.svc.cluster.local}\n")?;
    k.apply(&script("client", "sleep 6000", ""))?;
    ready(&k, "client")?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let ips = k.ok(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"])?;
    eventually("all pod addresses", Duration::from_secs(60), || {
        let out = k.ok(&["exec", "client", "--", "nslookup", "all.s-headless.svc.cluster.local"])?;
        for ip in ips.split(' ') {
            ensure!(out.contains(ip), "{ip} missing in {out}");
        }
        Ok(())
    })?;
    let got = k.ok(&["exec", "client", "--", "timeout", "5", "wget", "-qO-", "http://elsewhere/"])?;
    ensure!(got.starts_with("web-"), "{got}");
    Ok(())
}

fn not_ready(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("s-notready")?;
    k.apply(&web(2))?;
    k.apply(&script("client", "sleep 6000", ""))?;
    ready(&k, "client")?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let pods = k.ok(&["get", "pods", "-l", "app=web", "-o", "name"])?;
    let first = pods.lines().next().unwrap_or_default().to_owned();
    k.ok(&["exec", &first, "--", "rm", "/www/index.html"])?;
    k.ok(&["wait", &first, "--for=condition=Ready=false", "--timeout=30s"])?;
    eventually("only the other answers", Duration::from_secs(60), || {
        let got = k.ok(&[
            "exec",
            "client",
            "--",
            "sh",
            "-c",
            "for i in $(seq 20); do timeout 5 wget -qO- http://web/ || echo BAD; done",
        ])?;
        let hits: BTreeSet<&str> = got.lines().collect();
        ensure!(
            hits.len() == 1 && !got.contains("BAD") && !first.ends_with(got.lines().next().unwrap_or("?")),
            "{hits:?}"
        );
        Ok(())
    })
}

fn api_from_a_pod(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("s-api")?;
    k.apply(&script("client", "sleep 6000", ""))?;
    ready(&k, "client")?;
    let out = eventually("kubernetes.default resolves", Duration::from_secs(60), || {
        k.ok(&["exec", "client", "--", "nslookup", "kubernetes.default.svc.cluster.local"])
    })?;
    let ip = s.kubectl.ok(&["get", "svc", "-n", "default", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"])?;
    ensure!(out.contains(&ip), "{out}");
    // busybox cannot verify TLS: this shows an open port behind the service's address.
    k.ok(&["exec", "client", "--", "sh", "-c", &format!("timeout 5 nc {ip} 443 < /dev/null")])?;
    Ok(())
}

fn host_network(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("s-hostnet")?;
    k.apply(&script("on-host", "hostname; sleep 600", "  hostNetwork: true\n"))?;
    ready(&k, "on-host")?;
    let pod = k.ok(&["get", "pod", "on-host", "-o", "jsonpath={.status.podIP} {.status.hostIP}"])?;
    ensure!(pod.split_once(' ').is_some_and(|(pod, host)| pod == host && !pod.is_empty()), "{pod}");
    ensure!(log_of(&k, "on-host", 1)?.trim() != "on-host", "the host keeps its name");
    Ok(())
}

fn through_the_api(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("s-proxy")?;
    let page = "mkdir /www; echo '<a href=\"/next\">x</a>' > /www/index.html; exec httpd -f -p 8080 -h /www";
    k.apply(&script("page", page, "    ports: [{containerPort: 8080}]\n"))?;
    ready(&k, "page")?;
    let proxy = "/api/v1/namespaces/s-proxy/pods/page:8080/proxy";
    let got = eventually("the page", Duration::from_secs(60), || k.ok(&["get", "--raw", &format!("{proxy}/")]))?;
    ensure!(got.trim() == format!("<a href=\"{proxy}/next\">x</a>"), "{got}");
    let missing = k.fails(&["get", "--raw", &format!("{proxy}/next")])?;
    ensure!(missing.stderr.contains("could not find the requested resource"), "{}", missing.stderr);
    Ok(())
}
