//! The configuration file of a server: its values are in effect, `kelson config view` shows the source of each, errors
//! stop the start with file and line, and settings of k3s are translated.
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::OwnServer, Outcome, Process, Subject, Test, binary};
use serde_json::Value;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "configuration::files_set_flags", needs: OwnServer, run: files_set_flags },
        Test { name: "configuration::mistakes_stop_the_start", needs: OwnServer, run: mistakes_stop_the_start },
        Test { name: "configuration::settings_of_k3s", needs: OwnServer, run: settings_of_k3s },
    ]
}

fn kelson(words: &[&str]) -> anyhow::Result<Output> {
    Ok(Command::new(binary()).args(words).env_remove("KELSON_CONFIG_FILE").output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(file: &Path, content: &str) -> anyhow::Result<String> {
    std::fs::write(file, content).with_context(|| file.display().to_string())?;
    Ok(file.display().to_string())
}

fn files_set_flags(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let file = write(
        &dir.path().join("config.yaml"),
        "disable-agent: true\nmax-requests-inflight: 300\nrequest-timeout: 2m\ntls-san:\n- one.example\n",
    )?;
    let more = dir.path().join("config.yaml.d");
    std::fs::create_dir(&more)?;
    write(&more.join("10-more.yaml"), "request-timeout: 3m\ntls-san+: [two.example]\n")?;
    let words = ["--disable-agent", "--max-mutating-requests-inflight=150", "--config", file.as_str()];
    let server = Process::start(&words, Path::new("/nonexistent"))?;
    let flags = server.kubectl().ok(&["get", "--raw", "/flagz"])?;
    for want in ["max-requests-inflight=300", "request-timeout=3m", "max-mutating-requests-inflight=150"] {
        ensure!(flags.lines().any(|line| line == want), "{want}: {flags}");
    }
    ensure!(flags.contains("tls-san=[one.example,two.example]"), "{flags}");
    server.finish(false)?;
    let view = kelson(&["config", "view", "-o", "json", "--config", &file, "server", "--secure-port=7443"])?;
    ensure!(view.status.success(), "{}", text(&view.stderr));
    let view: Value = serde_json::from_slice(&view.stdout)?;
    let sources = |key: &str| view["settings"][key]["sources"].to_string();
    ensure!(sources("request-timeout").contains("10-more.yaml:1"), "{view:#}");
    ensure!(sources("max-requests-inflight").contains("config.yaml:2"), "{view:#}");
    ensure!(sources("secure-port") == r#"["flag"]"# && sources("bind-address") == r#"["default"]"#, "{view:#}");
    Ok(())
}

fn mistakes_stop_the_start(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data").display().to_string();
    for (content, want) in [
        ("\nsecure-prot: 1\n", "config.yaml:2: unknown key \"secure-prot\"; did you mean \"secure-port\"?"),
        ("https-listen-port: 1\n", "config.yaml:1: unknown key \"https-listen-port\"; it is k3s' name for secure-port"),
        ("secure-port: high\n", "config.yaml:1 sets secure-port"),
        ("a: [\n", "config.yaml: yaml: "),
    ] {
        let file = write(&dir.path().join("config.yaml"), content)?;
        let out = kelson(&["server", "--disable-agent", "--data-dir", &data, "--config", &file])?;
        let said = text(&out.stderr);
        ensure!(!out.status.success() && said.contains(want), "{content:?}: {said}");
    }
    let missing = dir.path().join("none.yaml").display().to_string();
    let out = kelson(&["server", "--disable-agent", "--data-dir", &data, "--config", &missing])?;
    ensure!(!out.status.success() && text(&out.stderr).contains("none.yaml"), "{}", text(&out.stderr));
    ensure!(!Path::new(&data).exists(), "nothing was started");
    Ok(())
}

fn settings_of_k3s(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let file = write(
        &dir.path().join("k3s.yaml"),
        "https-listen-port: 7443\ndisable: [traefik, local-storage]\nkube-apiserver-arg:\n- max-requests-inflight=100\n",
    )?;
    let out = kelson(&["migrate", "k3s", "--config", &file])?;
    ensure!(out.status.success(), "{}", text(&out.stderr));
    let ours = write(&dir.path().join("config.yaml"), &text(&out.stdout))?;
    let view = kelson(&["config", "view", "-o", "json", "--config", &ours])?;
    let view: Value = serde_json::from_slice(&view.stdout).with_context(|| text(&view.stderr))?;
    let value = |key: &str| view["settings"][key]["value"].to_string();
    ensure!(value("secure-port") == r#""7443""# && value("max-requests-inflight") == r#""100""#, "{view:#}");
    ensure!(value("disable") == r#"["local-storage"]"#, "{view:#}");
    let variables = write(&dir.path().join("k3s.env"), "K3S_KUBECONFIG_MODE=644\nHTTP_PROXY=http://proxy\n")?;
    let words =
        ["migrate", "k3s", "--check", "--config", &file, "--env-file", &variables, "--", "server", "--cluster-reset"];
    let out = kelson(&words)?;
    let report = text(&out.stdout);
    ensure!(out.status.code() == Some(1), "{:?}: {report}", out.status);
    let refused: Vec<&str> = report.lines().filter(|line| line.starts_with('!')).collect();
    ensure!(refused.len() == 2, "{report}");
    ensure!(refused[0].contains("K3S_KUBECONFIG_MODE") && refused[1].contains("cluster-reset"), "{report}");
    ensure!(report.contains("https-listen-port = 7443 -> secure-port: 7443"), "{report}");
    Ok(())
}
