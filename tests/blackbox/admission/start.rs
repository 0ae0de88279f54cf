//! Admission at startup: a server that must not start, and one that uses its configuration files.
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use kelson_blackbox::{Outcome, Process, Subject, binary};

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";

/// Returns the error of a server that must not start with these flags.
fn refused(dir: &Path, flags: &[&str]) -> anyhow::Result<String> {
    let port = kelson_blackbox::free_port()?.to_string();
    let out = Command::new(binary())
        .args(["server", "--disable-agent", "--bind-address", "127.0.0.1", "--secure-port", &port, "--data-dir"])
        .arg(dir.join("data"))
        .args(flags)
        .output()?;
    ensure!(!out.status.success(), "{flags:?}: the server must not start");
    Ok(String::from_utf8_lossy(&out.stderr).into_owned())
}

/// One clear line each, and no server.
pub fn faults_stop_the_start(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("admission.yaml");
    let name = file.display().to_string();
    let config = format!("--admission-control-config-file={name}");
    let cases: [(&[&str], String, &str); 14] = [
        (&["--enable-admission-plugins=Nope"], String::new(), "enable-admission-plugins plugin \"Nope\" is unknown"),
        (&["--disable-admission-plugins=Nope"], String::new(), "disable-admission-plugins plugin \"Nope\" is unknown"),
        (&["--admission-control=Nope"], String::new(), "admission-control plugin \"Nope\" is unknown"),
        (
            &["--enable-admission-plugins=AlwaysDeny", "--disable-admission-plugins=AlwaysDeny"],
            String::new(),
            "[AlwaysDeny] in enable-admission-plugins and disable-admission-plugins overlapped",
        ),
        (
            &["--admission-control=AlwaysAdmit", "--enable-admission-plugins=AlwaysDeny"],
            String::new(),
            "flags are mutually exclusive",
        ),
        (&["--feature-gates=NoSuchGate=true"], String::new(), "unrecognized feature gate: NoSuchGate"),
        (
            &[&config],
            format!("{HEAD}- name: ValidatingAdmissionPolicy\n  configuration: {{staticManifestsDir: /}}\n"),
            "staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate to be enabled",
        ),
        (&["--enable-admission-plugins=ImagePolicyWebhook"], String::new(), "no config specified"),
        (
            &["--admission-control-config-file=/nowhere/x"],
            String::new(),
            "unable to read admission control configuration",
        ),
        (&[&config], "plugins: [".into(), &name),
        (&[&config], format!("{HEAD}- name: Nope\n"), "plugin \"Nope\" is unknown"),
        (&[&config], format!("{HEAD}- name: PodSecurity\n- name: PodSecurity\n"), "Duplicate value: \"PodSecurity\""),
        (&[&config], format!("{HEAD}- name: PodSecurity\n  path: gone.yaml\n"), "gone.yaml"),
        (
            &[&config],
            format!("{HEAD}- name: PodSecurity\n  configuration: {{defaults: {{enforce: strict}}}}\n"),
            "couldn't init admission plugin \"PodSecurity\": defaults.enforce: Invalid value: \"strict\"",
        ),
    ];
    for (flags, text, want) in cases {
        fs::write(&file, text)?;
        let reported = refused(dir.path(), flags)?;
        let line = reported.lines().find(|line| line.contains(want));
        ensure!(line.is_some(), "{flags:?}: no line says {want:?} in\n{reported}");
        ensure!(!reported.contains("panicked"), "{reported}");
    }
    Ok(())
}

/// The help lists the plug-ins in the order in which they run.
pub fn help_lists_the_plugins(_: &Subject) -> Outcome {
    let help = Command::new(binary()).args(["server", "--help"]).output()?;
    let text = String::from_utf8_lossy(&help.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "--admission-control-config-file",
        "--default-not-ready-toleration-seconds",
        "AlwaysAdmit, NamespaceAutoProvision, NamespaceLifecycle, NamespaceExists",
        "MutatingAdmissionPolicy, MutatingAdmissionWebhook, ValidatingAdmissionPolicy, ValidatingAdmissionWebhook, ResourceQuota",
    ] {
        ensure!(text.contains(part), "{part} missing in help");
    }
    Ok(())
}

/// Sections of the configuration file, inline and in separate files.
pub fn configured_by_files(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("admission.yaml");
    fs::write(
        dir.path().join("selectors.yaml"),
        "podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: disk=ssd}\n",
    )?;
    fs::write(
        &file,
        format!(
            "{HEAD}- name: PodNodeSelector\n  path: selectors.yaml\n- name: PodSecurity\n  configuration:\n    \
             apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    \
             defaults: {{enforce: baseline}}\n    exemptions: {{namespaces: [kube-system]}}\n"
        ),
    )?;
    let config = format!("--admission-control-config-file={}", file.display());
    let flags = [
        "--disable-agent",
        &config,
        "--enable-admission-plugins=PodNodeSelector",
        "--disable-admission-plugins=ServiceAccount,NodeRestriction",
        "--default-not-ready-toleration-seconds=7",
    ];
    let server = Process::start(&flags, Path::new(""))?;
    let kubectl = server.kubectl();
    let pod = |host: bool| {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"p\"}},\"spec\":{{\"hostNetwork\":{host},\
         \"containers\":[{{\"name\":\"c\",\"image\":\"i\"}}]}}}}"
        )
    };
    let create = |namespace: &str, host: bool| {
        kubectl.namespaced(namespace).with_input(&["create", "-f", "-"], pod(host).as_bytes())
    };
    let out = create("default", true)?;
    ensure!(out.code != 0 && out.stderr.contains("violates PodSecurity \"baseline:latest\""), "{}", out.stderr);
    ensure!(create("kube-system", true)?.code == 0, "exempt");
    ensure!(create("default", false)?.code == 0, "allowed");
    let made = kubectl.ok(&[
        "get",
        "pod",
        "p",
        "-o",
        "jsonpath={.spec.nodeSelector.disk} {.spec.tolerations[0].tolerationSeconds}",
    ])?;
    ensure!(made.trim() == "ssd 7", "{made}");
    let path = "/api/v1/namespaces/default/pods?dryRun=All&explainAdmission=true";
    let body = pod(false).replace("\"p\"", "\"q\"");
    let out = kubectl.with_input(&["create", "--raw", path, "-f", "-"], body.as_bytes())?;
    ensure!(
        out.stderr.contains("admission: PodNodeSelector changed spec.nodeSelector"),
        "{}{}",
        out.stdout,
        out.stderr
    );
    server.finish(false)
}

/// A directory of policies applies from the start if its feature gate is on.
pub fn policies_from_files(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let (file, policies) = (dir.path().join("admission.yaml"), dir.path().join("policies"));
    fs::create_dir(&policies)?;
    let head = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy";
    let rule = "{operations: [CREATE], apiGroups: [''], apiVersions: [v1], resources: [configmaps]}";
    fs::write(
        policies.join("names.yaml"),
        format!(
            "{head}\nmetadata: {{name: names.static.k8s.io}}\nspec:\n  matchConstraints: {{resourceRules: [{rule}]}}\n  \
             validations: [{{expression: \"object.metadata.name != 'first'\", reason: Forbidden}}]\n---\n{head}Binding\n\
             metadata: {{name: names.static.k8s.io}}\n\
             spec: {{policyName: names.static.k8s.io, validationActions: [Deny]}}\n"
        ),
    )?;
    let part = format!("configuration: {{staticManifestsDir: {:?}}}", policies.display().to_string());
    fs::write(&file, format!("{HEAD}- name: ValidatingAdmissionPolicy\n  {part}\n"))?;
    let config = format!("--admission-control-config-file={}", file.display());
    let gates = "--feature-gates=ManifestBasedAdmissionControlConfig=true";
    let server = Process::start(&["--disable-agent", &config, gates], Path::new(""))?;
    let k = server.kubectl();
    let create = |name: &str| k.run(&["create", "configmap", name, "--dry-run=server"]);
    let reported = create("first")?.stderr;
    let want = "error: failed to create configmap: configmaps \"first\" is forbidden: ValidatingAdmissionPolicy \
                'names.static.k8s.io' with binding 'names.static.k8s.io' denied request: failed expression: \
                object.metadata.name != 'first'";
    ensure!(reported.trim() == want, "{reported}");
    ensure!(create("second")?.code == 0, "allowed");
    server.finish(false)
}
