//! What kubectl expects of any API server: discovery, verbs, patches, apply, watch, explain, authorization.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::Api, Outcome, Subject, Test, eventually, lines_of};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "api::version_and_health", needs: Api, run: version_and_health },
        Test { name: "api::discovery", needs: Api, run: discovery },
        Test { name: "api::explain", needs: Api, run: explain },
        Test { name: "api::create_get_delete", needs: Api, run: create_get_delete },
        Test { name: "api::patch_types", needs: Api, run: patch_types },
        Test { name: "api::client_side_apply", needs: Api, run: client_side_apply },
        Test { name: "api::server_side_apply_conflict", needs: Api, run: server_side_apply_conflict },
        Test { name: "api::label_annotate_edit", needs: Api, run: label_annotate_edit },
        Test { name: "api::watch", needs: Api, run: watch },
        Test { name: "api::tables", needs: Api, run: tables },
        Test { name: "api::auth_can_i", needs: Api, run: auth_can_i },
        Test { name: "api::namespace_lifecycle", needs: Api, run: namespace_lifecycle },
        Test { name: "api::optimistic_concurrency", needs: Api, run: optimistic_concurrency },
        Test { name: "api::cascading_delete", needs: Api, run: cascading_delete },
        Test { name: "api::pagination", needs: Api, run: pagination },
    ]
}

fn version_and_health(s: &Subject) -> Outcome {
    let k = &s.kubectl;
    let v = k.json(&["version"])?;
    ensure!(v["serverVersion"]["minor"].as_str().is_some_and(|m| m.starts_with("36")), "version: {v}");
    for path in ["/livez", "/readyz", "/healthz"] {
        ensure!(k.ok(&["get", "--raw", path])? == "ok", "{path}");
    }
    let verbose = k.ok(&["get", "--raw", "/readyz?verbose"])?;
    ensure!(verbose.contains("[+]ping ok") && verbose.ends_with("readyz check passed\n"), "{verbose}");
    ensure!(k.ok(&["get", "--raw", "/livez/ping"])? == "ok", "single check");
    let metrics = k.ok(&["get", "--raw", "/metrics"])?;
    ensure!(
        metrics.contains("# TYPE apiserver_request_total counter"),
        "metrics: {}",
        &metrics[..metrics.len().min(300)]
    );
    k.ok(&["cluster-info"])?;
    Ok(())
}

fn discovery(s: &Subject) -> Outcome {
    let out = s.kubectl.ok(&["api-resources", "--no-headers"])?;
    for want in
        ["deployments", "pods", "customresourcedefinitions", "endpointslices", "leases", "horizontalpodautoscalers"]
    {
        ensure!(out.lines().any(|l| l.split_whitespace().next() == Some(want)), "{want} missing in\n{out}");
    }
    let pods = out.lines().find(|l| l.starts_with("pods ")).context("pods")?;
    ensure!(pods.split_whitespace().collect::<Vec<_>>() == ["pods", "po", "v1", "true", "Pod"], "{pods}");
    ensure!(s.kubectl.ok(&["api-versions"])?.lines().any(|l| l == "apps/v1"), "apps/v1");
    Ok(())
}

fn explain(s: &Subject) -> Outcome {
    let out = s.kubectl.ok(&["explain", "deployment.spec.strategy.rollingUpdate"])?;
    ensure!(out.contains("GROUP:") && out.contains("maxSurge") && out.contains("maxUnavailable"), "{out}");
    let out = s.kubectl.ok(&["explain", "pod.spec.containers", "--recursive"])?;
    ensure!(out.contains("livenessProbe") && out.contains("[]Container"), "{out}");
    let out = s.kubectl.fails(&["explain", "pod.spec.nonsense"])?;
    ensure!(out.stderr.contains("field \"nonsense\" does not exist"), "{}", out.stderr);
    Ok(())
}

fn create_get_delete(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-crud")?;
    ensure!(k.ok(&["create", "configmap", "a", "--from-literal=x=1"])? == "configmap/a created\n", "create");
    let again = k.fails(&["create", "configmap", "a"])?;
    ensure!(
        again.stderr.contains("error: failed to create configmap: configmaps \"a\" already exists"),
        "{}",
        again.stderr
    );
    ensure!(k.ok(&["get", "cm", "a", "-o", "jsonpath={.data.x}"])? == "1", "jsonpath");
    let yaml = k.ok(&["get", "cm", "a", "-o", "yaml"])?;
    ensure!(yaml.contains("kind: ConfigMap") && yaml.contains("x: \"1\""), "{yaml}");
    ensure!(k.ok(&["delete", "cm", "a"])?.starts_with("configmap \"a\" deleted"), "delete");
    let gone = k.fails(&["get", "cm", "a"])?;
    ensure!(gone.stderr.trim() == "Error from server (NotFound): configmaps \"a\" not found", "{}", gone.stderr);
    let secret = ["create", "secret", "generic", "s", "--from-literal=p=w"];
    k.ok(&secret)?;
    ensure!(k.ok(&["get", "secret", "s", "-o", "jsonpath={.type} {.data.p}"])? == "Opaque dw==", "secret");
    Ok(())
}

const DEPLOYMENT: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: a, image: 'example.invalid/a:1', ports: [{containerPort: 80}]}
      - {name: b, image: 'example.invalid/b:1'}
";

fn patch_types(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-patch")?;
    k.apply(DEPLOYMENT)?;
    let containers = "jsonpath={range .spec.template.spec.containers[*]}{.name}={.image} {end}";
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"b","image":"example.invalid/b:2"}]}}}}"#;
    k.ok(&["patch", "deployment", "web", "-p", strategic])?;
    let now = k.ok(&["get", "deployment", "web", "-o", containers])?;
    ensure!(now.contains("a=example.invalid/a:1") && now.contains("b=example.invalid/b:2"), "strategic: {now}");
    let json =
        r#"[{"op":"test","path":"/metadata/name","value":"web"},{"op":"add","path":"/metadata/labels/x","value":"y"}]"#;
    k.ok(&["patch", "deployment", "web", "--type=json", "-p", json])?;
    ensure!(k.ok(&["get", "deployment", "web", "-o", "jsonpath={.metadata.labels.x}"])? == "y", "json patch");
    k.ok(&["patch", "deployment", "web", "--type=merge", "-p", r#"{"metadata":{"labels":{"x":null}}}"#])?;
    ensure!(k.ok(&["get", "deployment", "web", "-o", "jsonpath={.metadata.labels.x}"])?.is_empty(), "merge patch");
    let wrong = r#"[{"op":"test","path":"/metadata/name","value":"other"}]"#;
    k.fails(&["patch", "deployment", "web", "--type=json", "-p", wrong])?;
    k.ok(&["set", "image", "deployment/web", "a=example.invalid/a:2"])?;
    k.ok(&["scale", "deployment/web", "--replicas=3", "--current-replicas=0"])?;
    ensure!(k.ok(&["get", "deployment", "web", "-o", "jsonpath={.spec.replicas}"])? == "3", "scale");
    Ok(())
}

fn client_side_apply(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-apply")?;
    ensure!(k.apply(DEPLOYMENT)?.trim() == "deployment.apps/web created", "first");
    ensure!(k.apply(DEPLOYMENT)?.trim() == "deployment.apps/web unchanged", "second");
    let without_b = DEPLOYMENT.replace("      - {name: b, image: 'example.invalid/b:1'}\n", "");
    ensure!(k.apply(&without_b)?.trim() == "deployment.apps/web configured", "third");
    let names = k.ok(&["get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[*].name}"])?;
    ensure!(names == "a", "the removed container is gone: {names}");
    let diff = k.with_input(&["diff", "-f", "-"], DEPLOYMENT.as_bytes())?;
    ensure!(diff.code == 1 && diff.stdout.contains("example.invalid/b:1"), "diff: {} {}", diff.stdout, diff.stderr);
    Ok(())
}

fn server_side_apply_conflict(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-ssa")?;
    let apply = |manager: &str, replicas: u8, more: &[&str]| {
        let manager = format!("--field-manager={manager}");
        let mut args = vec!["apply", "--server-side", manager.as_str(), "-f", "-"];
        args.extend(more);
        k.with_input(&args, DEPLOYMENT.replace("replicas: 0", &format!("replicas: {replicas}")).as_bytes())
    };
    let first = apply("one", 0, &[])?;
    ensure!(first.stdout.trim() == "deployment.apps/web serverside-applied", "{}{}", first.stdout, first.stderr);
    let same = apply("two", 0, &[])?;
    ensure!(same.code == 0, "the same values are shared: {}", same.stderr);
    let conflict = apply("three", 1, &[])?;
    let text = &conflict.stderr;
    ensure!(conflict.code != 0 && text.contains("conflicts with \"one\"") && text.contains(".spec.replicas"), "{text}");
    let forced = apply("three", 1, &["--force-conflicts"])?;
    ensure!(forced.code == 0, "{}", forced.stderr);
    let managers = k.ok(&[
        "get",
        "deployment",
        "web",
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
    ])?;
    ensure!(managers.split(' ').any(|m| m == "three"), "{managers}");
    Ok(())
}

fn label_annotate_edit(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-label")?;
    k.ok(&["create", "configmap", "a", "--from-literal=x=1"])?;
    k.ok(&["label", "cm", "a", "tier=front"])?;
    ensure!(k.ok(&["get", "cm", "-l", "tier in (front,back)", "-o", "name"])? == "configmap/a\n", "selector");
    let refused = k.fails(&["label", "cm", "a", "tier=back"])?;
    ensure!(refused.stderr.contains("--overwrite is false"), "{}", refused.stderr);
    k.ok(&["label", "cm", "a", "tier-"])?;
    ensure!(k.ok(&["get", "cm", "-l", "tier", "-o", "name"])?.is_empty(), "label removed");
    k.ok(&["annotate", "cm", "a", "note=hello"])?;
    let mut edit = k.command(&["edit", "cm", "a"]);
    let out = edit.env("EDITOR", "sed -i s/hello/bye/").output()?;
    ensure!(out.status.success(), "edit: {}", String::from_utf8_lossy(&out.stderr));
    ensure!(k.ok(&["get", "cm", "a", "-o", "jsonpath={.metadata.annotations.note}"])? == "bye", "edited");
    Ok(())
}

fn watch(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-watch")?;
    k.ok(&["create", "configmap", "a"])?;
    let mut child = k.spawn(&["get", "cm", "-l", "w=1", "--watch", "--output-watch-events", "--no-headers"])?;
    let lines = lines_of(&mut child)?;
    let result = (|| {
        // The watch must see an object enter and leave its selector. Its first output shows that it is established.
        eventually("watch established", Duration::from_secs(60), || {
            k.ok(&["label", "cm", "a", "w=1", "--overwrite"])?;
            k.ok(&["label", "cm", "a", "w-"])?;
            lines.recv_timeout(Duration::from_millis(200)).context("no event")
        })?;
        k.ok(&["label", "cm", "a", "w=1", "--overwrite"])?;
        k.ok(&["annotate", "cm", "a", "x=y"])?;
        k.ok(&["label", "cm", "a", "w-"])?;
        let mut seen = Vec::new();
        while let Ok(line) = lines.recv_timeout(Duration::from_secs(20)) {
            let done = line.starts_with("DELETED") && seen.iter().any(|l: &String| l.starts_with("MODIFIED"));
            seen.push(line);
            if done || seen.len() > 20 {
                break;
            }
        }
        let kinds: Vec<&str> = seen.iter().filter_map(|l| l.split_whitespace().next()).collect();
        ensure!(kinds.ends_with(&["ADDED", "MODIFIED", "DELETED"]), "{kinds:?}");
        Ok(())
    })();
    child.kill().ok();
    child.wait()?;
    result
}

fn tables(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-tables")?;
    k.apply(DEPLOYMENT)?;
    k.ok(&["create", "service", "clusterip", "web", "--tcp=80:8080"])?;
    let header = |args: &[&str]| -> anyhow::Result<Vec<String>> {
        let out = k.ok(args)?;
        Ok(out
            .lines()
            .next()
            .unwrap_or_default()
            .split("  ")
            .map(|c| c.trim().to_owned())
            .filter(|c| !c.is_empty())
            .collect())
    };
    let cols = header(&["get", "deployments", "-o", "wide"])?;
    ensure!(
        cols == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"],
        "{cols:?}"
    );
    let cols = header(&["get", "svc"])?;
    ensure!(cols == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"], "{cols:?}");
    let row = k.ok(&["get", "svc", "web", "--no-headers"])?;
    let cells: Vec<&str> = row.split_whitespace().collect();
    ensure!(cells[1] == "ClusterIP" && cells[3] == "<none>" && cells[4] == "80/TCP", "{row}");
    k.ok(&["describe", "deployment", "web"])?;
    k.ok(&["describe", "svc", "web"])?;
    k.ok(&["get", "all"])?;
    Ok(())
}

fn auth_can_i(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-auth")?;
    ensure!(k.ok(&["auth", "can-i", "create", "pods"])?.trim() == "yes", "admin may");
    let whoami = k.ok(&["auth", "whoami"])?;
    ensure!(whoami.contains("system:authenticated"), "{whoami}");
    k.ok(&["create", "serviceaccount", "reader"])?;
    k.ok(&["create", "role", "read", "--verb=get,list", "--resource=configmaps"])?;
    k.ok(&["create", "rolebinding", "read", "--role=read", "--serviceaccount=t-auth:reader"])?;
    let reader = "--as=system:serviceaccount:t-auth:reader";
    eventually("the binding works", Duration::from_secs(60), || k.ok(&["get", "cm", reader]))?;
    let no = k.fails(&["get", "secrets", reader])?;
    let want = "User \"system:serviceaccount:t-auth:reader\" cannot list resource \"secrets\" in API group \"\" in the namespace \"t-auth\"";
    ensure!(no.stderr.contains(want), "{}", no.stderr);
    let token = k.ok(&["create", "token", "reader"])?;
    let who = k.ok(&[
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo.username}",
        "--token",
        token.trim(),
        "--kubeconfig=/dev/null",
    ]);
    // Without a kubeconfig kubectl has no server: this must fail on the client.
    ensure!(who.is_err(), "whoami without a server");
    Ok(())
}

fn namespace_lifecycle(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-ns")?;
    eventually("default service account", Duration::from_secs(60), || k.ok(&["get", "serviceaccount", "default"]))?;
    let ca = ["get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}"];
    let pem = eventually("root CA published", Duration::from_secs(60), || k.ok(&ca))?;
    ensure!(pem.contains("BEGIN CERTIFICATE"), "{pem}");
    k.ok(&["create", "configmap", "a"])?;
    s.kubectl.ok(&["delete", "namespace", "t-ns", "--timeout=60s"])?;
    ensure!(s.kubectl.fails(&["get", "namespace", "t-ns"])?.stderr.contains("not found"), "gone");
    let forbidden = s.kubectl.fails(&["delete", "namespace", "kube-system"])?;
    ensure!(forbidden.stderr.contains("this namespace may not be deleted"), "{}", forbidden.stderr);
    Ok(())
}

fn optimistic_concurrency(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-occ")?;
    k.ok(&["create", "configmap", "a", "--from-literal=x=1"])?;
    let old = k.ok(&["get", "cm", "a", "-o", "json"])?;
    k.ok(&["patch", "cm", "a", "-p", r#"{"data":{"x":"2"}}"#])?;
    let out = k.with_input(&["replace", "-f", "-"], old.as_bytes())?;
    let want = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";
    ensure!(out.code != 0 && out.stderr.contains(want), "{}", out.stderr);
    Ok(())
}

fn cascading_delete(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-gc")?;
    let replica_sets = || k.ok(&["get", "rs", "-o", "name"]);
    for (cascade, survives) in [("background", false), ("foreground", false), ("orphan", true)] {
        k.apply(DEPLOYMENT)?;
        eventually("a replica set", Duration::from_secs(60), || {
            ensure!(!replica_sets()?.is_empty(), "none");
            Ok(())
        })?;
        k.ok(&["delete", "deployment", "web", &format!("--cascade={cascade}"), "--timeout=30s"])?;
        if survives {
            let owners = "jsonpath={.items[*].metadata.ownerReferences}";
            eventually("owner removed", Duration::from_secs(60), || {
                ensure!(k.ok(&["get", "rs", "-o", owners])?.is_empty(), "still owned");
                Ok(())
            })?;
            ensure!(!replica_sets()?.is_empty(), "an orphan stays");
        } else {
            eventually("dependents gone", Duration::from_secs(30), || {
                ensure!(replica_sets()?.is_empty(), "still there");
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn pagination(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("t-page")?;
    let mut many = String::new();
    for i in 0..23 {
        many.push_str(&format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{i:02}}}\n"));
    }
    k.apply(&many)?;
    // A namespace also contains ConfigMaps of the cluster, which differ between clusters.
    let names = k.ok(&["get", "cm", "--chunk-size=5", "-o", "name"])?;
    ensure!(names.lines().filter(|n| n.starts_with("configmap/c")).count() == 23, "{names}");
    let first = k.ok(&["get", "--raw", "/api/v1/namespaces/t-page/configmaps?limit=5"])?;
    let first: serde_json::Value = serde_json::from_str(&first)?;
    ensure!(first["items"].as_array().is_some_and(|a| a.len() == 5), "limit");
    ensure!(first["metadata"]["continue"].as_str().is_some_and(|c| !c.is_empty()), "continue: {}", first["metadata"]);
    Ok(())
}
