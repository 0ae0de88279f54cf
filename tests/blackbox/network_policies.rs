//! Network policies between pods: allowed connections by label, namespace, port and address, also through services.
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Kubectl, Needs::Node, Needs::OwnServer, Outcome, Process, Subject, Test, binary, eventually};

use crate::pods::{ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "network_policies::ingress_by_label_namespace_and_port", needs: Node, run: ingress },
        Test { name: "network_policies::egress_by_label_and_address", needs: Node, run: egress },
        Test { name: "network_policies::a_pod_is_isolated_from_its_first_packet", needs: Node, run: first_packet },
        Test { name: "network_policies::explain_names_the_policy", needs: OwnServer, run: explain },
        Test { name: "network_policies::a_policy_without_effect_gets_a_warning", needs: OwnServer, run: warnings },
    ]
}

/// The maximum time for a change to be enforced.
const ENFORCED: Duration = Duration::from_secs(30);

const SERVE: &str = "mkdir -p /www; echo hello > /www/index.html; httpd -p 8080 -h /www; exec httpd -f -p 9090 -h /www";

/// Creates a pod that serves on ports 8080 (`web`) and 9090, and a service for both.
fn server(k: &Kubectl) -> anyhow::Result<String> {
    // A pod is rejected before its namespace has the account; a Deployment would retry.
    k.ok(&["wait", "--for=create", "serviceaccount/default", "--timeout=30s"])?;
    k.apply(&script("server", SERVE, "    ports: [{name: web, containerPort: 8080}]\n    readinessProbe: {httpGet: {port: 9090, path: /}, periodSeconds: 1}\n"))?;
    k.apply("apiVersion: v1\nkind: Service\nmetadata: {name: server}\nspec: {selector: {app: server}, ports: [{name: a, port: 80, targetPort: 8080}, {name: b, port: 90, targetPort: 9090}]}")?;
    ready(k, "server")?;
    k.ok(&["get", "pod", "server", "-o", "jsonpath={.status.podIP}"])
}

fn client(k: &Kubectl, name: &str) -> Outcome {
    k.apply(&script(name, "sleep 6000", ""))?;
    ready(k, name)
}

fn reaches(k: &Kubectl, from: &str, url: &str) -> anyhow::Result<bool> {
    let got = k.run(&["exec", from, "--", "timeout", "2", "wget", "-qO-", url])?;
    Ok(got.stdout.contains("hello"))
}

fn until(k: &Kubectl, from: &str, url: &str, expected: bool) -> Outcome {
    eventually(&format!("{from} {} {url}", if expected { "reaches" } else { "is kept from" }), ENFORCED, || {
        ensure!(reaches(k, from, url)? == expected, "not yet");
        Ok(())
    })
}

fn policy(name: &str, spec: &str) -> String {
    format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

fn ingress(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("np-in")?;
    let other = s.kubectl.fresh_namespace("np-other")?;
    let ip = server(&k)?;
    client(&k, "friend")?;
    client(&k, "stranger")?;
    client(&other, "guest")?;
    let (web, more) = (format!("http://{ip}:8080/"), format!("http://{ip}:9090/"));
    ensure!(reaches(&k, "stranger", &web)?, "without a policy everything is open");
    k.apply(&policy(
        "server",
        "{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}, \
         {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: np-other}}, podSelector: {}}], ports: [{port: web}]}]}",
    ))?;
    until(&k, "stranger", &web, false)?;
    for (k, from, url, expected) in [
        (&k, "friend", web.as_str(), true),
        (&k, "friend", more.as_str(), false),
        (&k, "friend", "http://server/", true),
        (&k, "friend", "http://server:90/", false),
        (&other, "guest", "http://server.np-in/", true),
        (&other, "guest", more.as_str(), false),
    ] {
        ensure!(reaches(k, from, url)? == expected, "{from} to {url}: expected {expected}");
    }
    // The node's probes succeed, whatever policies say.
    k.ok(&["wait", "pod/server", "--for=condition=Ready", "--timeout=5s"])?;
    k.ok(&["label", "pod", "stranger", "app=friend", "--overwrite"])?;
    until(&k, "stranger", &web, true)?;
    k.ok(&["delete", "networkpolicy", "server"])?;
    until(&k, "friend", &more, true)
}

fn egress(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("np-out")?;
    let ip = server(&k)?;
    client(&k, "client")?;
    client(&k, "free")?;
    let web = format!("http://{ip}:8080/");
    k.apply(&policy("closed", "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}"))?;
    until(&k, "client", &web, false)?;
    ensure!(reaches(&k, "free", &web)?, "the policy selects another pod");
    k.apply(&policy(
        "open",
        &format!("{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], egress: [{{to: [{{ipBlock: {{cidr: {ip}/32}}}}], ports: [{{port: 8000, endPort: 8080}}]}}]}}"),
    ))?;
    until(&k, "client", &web, true)?;
    ensure!(!reaches(&k, "client", &format!("http://{ip}:9090/"))?, "another port");
    k.apply(&policy(
        "open",
        "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: free}}}]}]}",
    ))?;
    until(&k, "client", &web, false)
}

/// A pod that sends as its first action is never faster than the policies that apply to it.
fn first_packet(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("np-first")?;
    let ip = server(&k)?;
    k.apply(&policy("closed", "{podSelector: {matchLabels: {role: closed}}, policyTypes: [Egress]}"))?;
    client(&k, "prober")?;
    k.ok(&["label", "pod", "prober", "role=closed"])?;
    until(&k, "prober", &format!("http://{ip}:8080/"), false)?;
    for n in 0..5 {
        let name = format!("first{n}");
        let attempt = format!("timeout 2 wget -qO- http://{ip}:8080/ || echo kept out");
        let manifest =
            script(&name, &attempt, "  restartPolicy: Never\n").replace("labels: {", "labels: {role: closed, ");
        k.apply(&manifest)?;
    }
    for n in 0..5 {
        let pod = format!("first{n}");
        k.ok(&["wait", &format!("pod/{pod}"), "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"])?;
        let log = k.ok(&["logs", &pod])?;
        ensure!(log.contains("kept out") && !log.contains("hello"), "{pod}: {log}");
    }
    Ok(())
}

fn explain(s: &Subject) -> Outcome {
    let Some(server_process) = &s.server else {
        anyhow::bail!("the case needs a server that it may read the files of")
    };
    let k = s.kubectl.fresh_namespace("np-why")?;
    server(&k)?;
    client(&k, "client")?;
    k.apply(&policy("server", "{podSelector: {matchLabels: {app: server}}, ingress: [{ports: [{port: 9090}]}]}"))?;
    let dir = server_process.dir.display().to_string();
    let explain = |to: &str| -> anyhow::Result<String> {
        let out =
            Command::new(binary()).args(["network", "explain", "np-why/client", to, "--data-dir", &dir]).output()?;
        ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Ok(String::from_utf8(out.stdout)?)
    };
    let denied = explain("np-why/server:8080")?;
    ensure!(denied.contains("denied: no rule allows it in np-why/server"), "{denied}");
    let allowed = explain("np-why/server:9090")?;
    ensure!(allowed.contains("allowed by policy np-why/server, spec.ingress[0]"), "{allowed}");
    eventually("the policy's counter grows", ENFORCED, || {
        let _ = reaches(&k, "client", "http://server/")?;
        let counted = explain("np-why/server:8080")?;
        ensure!(counted.contains("Policy np-why/server, Ingress") && !counted.contains(" 0 denied"), "{counted}");
        Ok(())
    })
}

/// If nodes do not enforce policies every write of one gets a warning, otherwise the write of parts without effect.
fn warnings(_: &Subject) -> Outcome {
    const NOT_ENFORCED: &str = "do not enforce network policies";
    const NO_EFFECT: &str = "spec.ingress[0].from[0].ipBlock.cidr: fd00::/8 has no effect";
    let plain = policy("plain", "{podSelector: {}}");
    let foreign = policy("foreign", "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 'fd00::/8'}}]}]}");
    for (args, of_plain, of_foreign) in [
        (&["--disable-agent", "--disable", "network-policy"][..], Some(NOT_ENFORCED), NOT_ENFORCED),
        (&["--disable-agent"][..], None, NO_EFFECT),
    ] {
        let server = Process::start(args, std::path::Path::new("/nonexistent"))?;
        for (manifest, expected) in [(&plain, of_plain), (&foreign, Some(of_foreign))] {
            let out = server.kubectl().with_input(&["apply", "-f", "-"], manifest.as_bytes())?;
            let said = out.stderr.contains("Warning:");
            ensure!(
                out.code == 0 && said == expected.is_some() && expected.is_none_or(|text| out.stderr.contains(text)),
                "{args:?}, {manifest}: {}",
                out.stderr
            );
        }
        server.finish(false)?;
    }
    Ok(())
}
