//! Invalid input gets the message that a Kubernetes user expects, and the server continues.
use std::process::Command;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::Api, Needs::OwnServer, Outcome, Process, Subject, Test, binary};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "bad_input::unknown_and_duplicate_fields", needs: Api, run: unknown_and_duplicate_fields },
        Test { name: "bad_input::mistyped_field", needs: Api, run: mistyped_field },
        Test { name: "bad_input::invalid_objects", needs: Api, run: invalid_objects },
        Test { name: "bad_input::object_too_large", needs: Api, run: object_too_large },
        Test { name: "bad_input::body_cut_short", needs: Api, run: body_cut_short },
        Test { name: "bad_input::bad_token", needs: Api, run: bad_token },
        Test { name: "bad_input::unknown_path_and_kind", needs: Api, run: unknown_path_and_kind },
        Test { name: "bad_input::command_line", needs: OwnServer, run: command_line },
        Test { name: "bad_input::port_and_directory_in_use", needs: OwnServer, run: port_and_directory_in_use },
    ]
}

fn create(s: &Subject, namespace: &str, manifest: &str) -> anyhow::Result<kelson_blackbox::Output> {
    s.kubectl.namespaced(namespace).with_input(&["create", "-f", "-"], manifest.as_bytes())
}

fn unknown_and_duplicate_fields(s: &Subject) -> Outcome {
    let out = create(
        s,
        "default",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: [], containers: [{name: a, image: b}]}\n",
    )?;
    ensure!(
        out.code != 0 && out.stderr.contains("strict decoding error: unknown field \"spec.contaners\""),
        "{}",
        out.stderr
    );
    // Only the raw form sends a manifest unchanged; otherwise kubectl drops the duplicate itself.
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup"},"immutable":true,"immutable":false}"#;
    let path = "/api/v1/namespaces/default/configmaps?fieldValidation=Strict";
    let out = s.kubectl.with_input(&["create", "--raw", path, "-f", "-"], body.as_bytes())?;
    ensure!(out.code != 0 && out.stderr.contains("duplicate field \"immutable\""), "{}{}", out.stdout, out.stderr);
    Ok(())
}

fn mistyped_field(s: &Subject) -> Outcome {
    let manifest = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: three}\n";
    let out = create(s, "default", manifest)?;
    let want = "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32";
    ensure!(out.code != 0 && out.stderr.contains(want), "{}", out.stderr);
    Ok(())
}

fn invalid_objects(s: &Subject) -> Outcome {
    let out = create(s, "default", "apiVersion: v1\nkind: Pod\nmetadata: {name: UPPER}\nspec: {containers: []}\n")?;
    ensure!(out.stderr.contains("The Pod \"UPPER\" is invalid:"), "{}", out.stderr);
    ensure!(
        out.stderr.contains("metadata.name: Invalid value: \"UPPER\"")
            && out.stderr.contains("spec.containers: Required value"),
        "{}",
        out.stderr
    );
    let manifest = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec:\n  selector: {matchLabels: {a: b}}\n  template: {metadata: {labels: {a: c}}, spec: {containers: [{name: a, image: b}]}}\n";
    let out = create(s, "default", manifest)?;
    ensure!(out.stderr.contains("`selector` does not match template `labels`"), "{}", out.stderr);
    Ok(())
}

fn object_too_large(s: &Subject) -> Outcome {
    let big = "x".repeat(5 << 20);
    let out = create(
        s,
        "default",
        &format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"big\"}},\"data\":{{\"a\":\"{big}\"}}}}"
        ),
    )?;
    ensure!(
        out.code != 0 && out.stderr.to_lowercase().contains("request entity too large: limit is 3145728"),
        "{}",
        &out.stderr[..out.stderr.len().min(400)]
    );
    s.kubectl.ok(&["get", "ns", "default"]).map(|_| ())
}

/// Sends a request that kubectl would not send, with the server address and client certificate of the kubeconfig.
fn curl(s: &Subject, args: &[&str]) -> anyhow::Result<(String, i32)> {
    let server =
        s.kubectl.ok(&["config", "view", "--raw", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
    let (path, rest) = args.split_first().context("path")?;
    let out = Command::new("curl")
        .args(["-sk", "-m", "10", "-w", "\n%{http_code}"])
        .args(rest)
        .arg(format!("{server}{path}"))
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').context("no status code")?;
    Ok((body.to_owned(), code.parse()?))
}

fn body_cut_short(s: &Subject) -> Outcome {
    let token = s.kubectl.ok(&["create", "token", "default", "-n", "default"])?;
    let auth = format!("Authorization: Bearer {}", token.trim());
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let args = [
        path,
        "-H",
        auth.as_str(),
        "-H",
        "Content-Type: application/json",
        "-d",
        r#"{"kind":"SelfSubjectAccessReview","apiVer"#,
    ];
    let (body, code) = curl(s, &args)?;
    let status: serde_json::Value = serde_json::from_str(&body)?;
    ensure!(code == 400 && status["reason"] == "BadRequest", "{code} {body}");
    let args = [path, "-H", auth.as_str(), "-H", "Content-Type: text/nonsense", "-d", "x"];
    let (body, code) = curl(s, &args)?;
    ensure!(code == 415 && body.contains("UnsupportedMediaType"), "{code} {body}");
    Ok(())
}

fn bad_token(s: &Subject) -> Outcome {
    let (body, code) = curl(s, &["/api/v1/namespaces", "-H", "Authorization: Bearer nonsense"])?;
    ensure!(code == 401, "{code} {body}");
    let status: serde_json::Value = serde_json::from_str(&body)?;
    ensure!(status["reason"] == "Unauthorized" && status["message"] == "Unauthorized", "{status}");
    let (body, code) = curl(s, &["/api/v1/namespaces"])?;
    ensure!(code == 403 || code == 401, "{code} {body}");
    if code == 403 {
        ensure!(body.contains("namespaces is forbidden: User \\\"system:anonymous\\\" cannot list resource \\\"namespaces\\\" in API group \\\"\\\" at the cluster scope"), "{body}");
    }
    Ok(())
}

fn unknown_path_and_kind(s: &Subject) -> Outcome {
    let out = s.kubectl.fails(&["get", "--raw", "/apis/nothing.example/v1/things"])?;
    ensure!(out.stderr.contains("the server could not find the requested resource"), "{}", out.stderr);
    let out = s.kubectl.fails(&["get", "nonsense"])?;
    ensure!(out.stderr.contains("the server doesn't have a resource type \"nonsense\""), "{}", out.stderr);
    let out = create(s, "default", "apiVersion: nothing.example/v1\nkind: Thing\nmetadata: {name: x}\n")?;
    ensure!(out.stderr.contains("no matches for kind \"Thing\" in version \"nothing.example/v1\""), "{}", out.stderr);
    Ok(())
}

fn command_line(_: &Subject) -> Outcome {
    let out = Command::new(binary()).args(["server", "--no-such-flag"]).output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(!out.status.success() && text.contains("--no-such-flag"), "{text}");
    let help = Command::new(binary()).args(["server", "--help"]).output()?;
    let text = String::from_utf8_lossy(&help.stdout);
    for flag in [
        "--data-dir",
        "--bind-address",
        "--secure-port",
        "--cluster-cidr",
        "--service-cidr",
        "--node-name",
        "--container-runtime-endpoint",
        "--disable-agent",
        "--kubeconfig-out",
        "--log-level",
    ] {
        ensure!(text.contains(flag), "{flag} missing in help");
    }
    let version = Command::new(binary()).arg("version").output()?;
    ensure!(String::from_utf8_lossy(&version.stdout).contains("v1.36"), "version");
    Ok(())
}

fn port_and_directory_in_use(s: &Subject) -> Outcome {
    let server: &Process = s.server.as_ref().context("own server")?;
    let refused = |dir: &std::path::Path, port: u16| -> anyhow::Result<String> {
        let out = Command::new(binary())
            .args(["server", "--disable-agent", "--bind-address", "127.0.0.1", "--data-dir"])
            .arg(dir)
            .args(["--secure-port", &port.to_string()])
            .output()?;
        ensure!(!out.status.success(), "a second server must not start");
        Ok(String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let other = tempfile::tempdir()?;
    let text = refused(other.path(), server.port)?;
    ensure!(text.contains(&server.port.to_string()) && text.contains("in use"), "{text}");
    let text = refused(&server.dir, kelson_blackbox::free_port()?)?;
    ensure!(text.contains(&server.dir.display().to_string()) && text.contains("in use"), "{text}");
    s.kubectl.ok(&["get", "ns"]).map(|_| ())
}
