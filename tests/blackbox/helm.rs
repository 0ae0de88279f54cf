//! Helm, with a test chart: definitions before their objects, hooks, waiting, history, both kinds of upgrades
//! (server-side apply and a three-way merge on the client), rollback, and upgrades with changes by other clients.
use anyhow::ensure;
use kelson_blackbox::{Needs::Clients, Outcome, Output, Subject, Test, program, repo_root};
use serde_json::Value;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "helm::server_side", needs: Clients, run: server_side },
        Test { name: "helm::client_side", needs: Clients, run: client_side },
    ]
}

const DEFINITION: &str = "baskets.shop.example.com";

/// Helm in one namespace.
struct Helm<'a> {
    subject: &'a Subject,
    namespace: &'static str,
}

impl Helm<'_> {
    /// Runs `helm VERB RELEASE …` to its end.
    fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = self.subject.kubectl.other_program(&program("helm")?);
        command.args(["--namespace", self.namespace]).args(args);
        Output::of(command)
    }

    fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let out = self.run(args)?;
        ensure!(out.code == 0, "helm {args:?}: {}{}", out.stdout, out.stderr);
        Ok(out.stdout)
    }

    /// Installs or upgrades with the chart and waits until all objects are ready.
    fn put(&self, verb: &str, release: &str, more: &[&str]) -> anyhow::Result<Output> {
        let chart = repo_root().join("tests/charts/shop").display().to_string();
        let mut args = vec![verb, release, &chart, "--wait", "--timeout", "2m"];
        args.extend(more);
        self.run(&args)
    }

    fn put_ok(&self, verb: &str, release: &str, more: &[&str]) -> Outcome {
        let out = self.put(verb, release, more)?;
        ensure!(out.code == 0, "helm {verb} {release} {more:?}: {}{}", out.stdout, out.stderr);
        Ok(())
    }

    /// Returns the value at a path of one of the release's objects.
    fn says(&self, what: &[&str], place: &str) -> anyhow::Result<String> {
        let k = self.subject.kubectl.namespaced(self.namespace);
        k.ok(&[&["get"], what, &["-o", &format!("jsonpath={{{place}}}")]].concat())
    }

    /// Returns the state of each revision of a release.
    fn history(&self, release: &str) -> anyhow::Result<Vec<String>> {
        let all: Value = serde_json::from_str(&self.ok(&["history", release, "-o", "json"])?)?;
        let states = all.as_array().into_iter().flatten();
        Ok(states.map(|r| r["status"].as_str().unwrap_or_default().to_owned()).collect())
    }

    fn end(&self) -> Outcome {
        let k = self.subject.kubectl.namespaced(self.namespace);
        let left = k.ok(&["get", "services,deployments,baskets.shop.example.com,secrets", "-o", "name"])?;
        ensure!(left.is_empty(), "left behind: {left}");
        self.subject.kubectl.ok(&["delete", "crd", DEFINITION])?;
        self.subject.kubectl.ok(&["delete", "namespace", self.namespace, "--wait=false"])?;
        Ok(())
    }
}

fn server_side(s: &Subject) -> Outcome {
    let helm = Helm { subject: s, namespace: "helm" };
    helm.put_ok("install", "one", &["--create-namespace"])?;
    let settings = helm.says(&["configmap", "one-settings"], ".data")?;
    let settings: Value = serde_json::from_str(&settings)?;
    ensure!(settings["cluster"] == "default" && settings["policy"] == "true", "asked while rendering: {settings}");
    let owner =
        helm.says(&["configmap", "one-settings", "--show-managed-fields"], ".metadata.managedFields[*].operation")?;
    ensure!(owner == "Apply", "{owner}");
    ensure!(helm.says(&["configmap", "one-before"], ".data.revision")? == "1", "the hook");

    // Objects that are not in the new chart are deleted.
    helm.put_ok("upgrade", "one", &["--set", "color=blue,extra=false"])?;
    ensure!(helm.says(&["basket", "one"], ".spec.color")? == "blue", "the custom resource");
    let k = s.kubectl.namespaced("helm");
    let gone = k.fails(&["get", "configmap", "one-extra"])?;
    ensure!(gone.stderr.contains("NotFound"), "{}", gone.stderr);
    ensure!(helm.says(&["configmap", "one-before"], ".data.revision")? == "2", "the hook is made anew");

    // A field that another client changed, and a value that the schema rejects, are both named in the errors.
    k.ok(&["patch", "deployment", "one", "--type=merge", "-p", r#"{"spec":{"paused":true,"replicas":0}}"#])?;
    k.ok(&["annotate", "deployment", "one", "mine=kept"])?;
    k.ok(&["patch", "configmap", "one-settings", "--type=merge", "-p", r#"{"data":{"color":"pink"}}"#])?;
    let refused = helm.put("upgrade", "one", &["--set", "color=violet"])?;
    for why in [
        "conflict with \"kubectl-patch\" using v1: .data.color",
        "spec.color: Unsupported value: \"violet\": supported values: \"red\", \"blue\", \"green\"",
    ] {
        ensure!(refused.code != 0 && refused.stderr.contains(why), "{}", refused.stderr);
    }
    helm.ok(&["rollback", "one", "1", "--force-conflicts", "--wait", "--timeout", "2m"])?;
    ensure!(helm.says(&["basket", "one"], ".spec.color")? == "red", "rolled back");
    ensure!(helm.says(&["configmap", "one-settings"], ".data.color")? == "red", "taken back");
    helm.says(&["configmap", "one-extra"], ".metadata.name")?;
    ensure!(helm.says(&["deployment", "one"], ".metadata.annotations.mine")? == "kept", "another's annotation");
    let history = helm.history("one")?;
    ensure!(history == ["superseded", "superseded", "failed", "deployed"], "{history:?}");
    helm.ok(&["uninstall", "one", "--wait", "--timeout", "2m"])?;
    ensure!(helm.ok(&["list", "--short"])?.is_empty(), "a release is left");
    helm.end()
}

fn client_side(s: &Subject) -> Outcome {
    let helm = Helm { subject: s, namespace: "helm-client" };
    let client = "--server-side=false";
    helm.put_ok("install", "two", &["--create-namespace", client, "--set", "color=green"])?;
    let k = s.kubectl.namespaced(helm.namespace);
    // Neither the old nor the new chart contains this entry: the merge keeps it.
    k.ok(&["patch", "configmap", "two-settings", "--type=merge", "-p", r#"{"data":{"mine":"kept","color":"pink"}}"#])?;
    let before = helm.says(&["deployment", "two"], ".metadata.generation")?;
    let shown = helm.put("upgrade", "two", &[client, "--set", "color=blue", "--dry-run=server"])?;
    ensure!(shown.code == 0 && shown.stdout.contains("color: blue"), "{}{}", shown.stdout, shown.stderr);
    ensure!(helm.says(&["deployment", "two"], ".metadata.generation")? == before, "a dry run changed something");
    helm.put_ok("upgrade", "two", &[client, "--set", "color=blue,replicas=0"])?;
    let data: Value = serde_json::from_str(&helm.says(&["configmap", "two-settings"], ".data")?)?;
    ensure!(data["mine"] == "kept" && data["color"] == "blue" && data["revision"] == "2", "{data}");
    let color = helm.says(&["deployment", "two"], ".spec.template.metadata.annotations.color")?;
    ensure!(color == "blue", "the template: {color}");
    ensure!(helm.history("two")? == ["superseded", "deployed"], "history");
    helm.ok(&["uninstall", "two", "--wait", "--timeout", "2m"])?;
    helm.end()
}
