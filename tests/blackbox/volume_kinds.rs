//! Kinds of volumes as containers see them: host paths by type, local volumes and a pod's group, projected sources,
//! mount propagation, files that change under a running pod.
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Needs::Node, Outcome, Subject, Test, eventually, sh};

use crate::pods::{IMAGE, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "volumes::paths_of_the_host_by_their_types", needs: Node, run: host_paths },
        Test { name: "volumes::local_ones_and_the_pods_group", needs: Node, run: local },
        Test { name: "volumes::sources_projected_into_one", needs: Node, run: projected },
        Test { name: "volumes::what_others_mount_is_shown", needs: Node, run: propagation },
        Test { name: "volumes::changed_at_once_or_not_at_all", needs: Node, run: atomic },
        Test { name: "volumes::of_memory_have_a_size", needs: Node, run: memory },
    ]
}

const LIMIT: Duration = Duration::from_secs(90);

fn host_paths(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-host")?;
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(at("file"), "of the host\n")?;
    let rows = [
        // Name, path, type, whether it starts.
        ("any", at("file"), "", true),
        ("file", at("file"), "File", true),
        ("made", at("made/deep"), "DirectoryOrCreate", true),
        ("touched", at("touched"), "FileOrCreate", true),
        ("device", "/dev/null".to_owned(), "CharDevice", true),
        ("absent", at("absent"), "Directory", false),
        ("not-a-dir", at("file"), "Directory", false),
        ("no-socket", at("file"), "Socket", false),
        ("no-disk", "/dev/null".to_owned(), "BlockDevice", false),
    ];
    for (name, path, kind, _) in &rows {
        let volume = format!(
            "    volumeMounts: [{{name: v, mountPath: /v}}]\n  volumes: [{{name: v, hostPath: {{path: {path}, type: '{kind}'}}}}]\n"
        );
        k.apply(&script(name, "ls -ld /v; sleep 600", &volume))?;
    }
    for (name, _, kind, starts) in &rows {
        if *starts {
            ready(&k, name)?;
            continue;
        }
        eventually("the refusal", LIMIT, || {
            let events = k.ok(&["events", "--for", &format!("pod/{name}")])?;
            ensure!(
                events.contains("FailedMount") && events.contains("hostPath type check failed"),
                "{kind}: {events}"
            );
            Ok(())
        })?;
    }
    ensure!(Path::new(&at("made/deep")).is_dir() && Path::new(&at("touched")).is_file(), "they were made");
    ensure!(k.ok(&["exec", "file", "--", "cat", "/v"])? == "of the host\n", "the file itself");
    k.ok(&["delete", "pod", "--all", "--timeout=60s"])?;
    Ok(())
}

fn local(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-local")?;
    let dir = tempfile::tempdir()?;
    sh(&format!(
        "chmod 755 {0}; mkdir {0}/files; echo x > {0}/files/other; chown 0:77 {0}/files/other",
        dir.path().display()
    ))?;
    let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    k.apply(&format!(
        "apiVersion: v1
kind: PersistentVolume
metadata: {{name: kelson-v-local}}
spec:
  storageClassName: by-hand
  capacity: {{storage: 16Mi}}
  accessModes: [ReadWriteOnce]
  local: {{path: {}/files}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: c}}
spec: {{storageClassName: by-hand, volumeName: kelson-v-local, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 8Mi}}}}}}
",
        dir.path().display()
    ))?;
    let pod = |name: &str, group: u32, policy: &str| {
        let more = format!(
            "    volumeMounts: [{{name: v, mountPath: /v}}]\n  securityContext: {{fsGroup: {group}, fsGroupChangePolicy: {policy}}}\n  volumes: [{{name: v, persistentVolumeClaim: {{claimName: c}}}}]\n"
        );
        script(name, "stat -c '%g %A' /v; stat -c %g /v/other; sleep 600", &more)
    };
    let log = |name: &str| {
        ready(&k, name)?;
        eventually("two lines", LIMIT, || {
            let log = k.ok(&["logs", name])?;
            ensure!(log.lines().count() == 2, "{log}");
            Ok(log)
        })
    };
    k.apply(&pod("all", 5000, "Always"))?;
    ensure!(log("all")? == "5000 drwxrwsr-x\n5000\n", "everything is the group's: {}", log("all")?);
    k.ok(&["delete", "pod", "all", "--timeout=60s"])?;
    sh(&format!("chown 0:77 {}/files/other", dir.path().display()))?;
    // The root has the group already: nothing below it is changed.
    k.apply(&pod("root", 5000, "OnRootMismatch"))?;
    ensure!(log("root")? == "5000 drwxrwsr-x\n77\n", "{}", log("root")?);
    k.ok(&["delete", "pod", "root", "--timeout=60s"])?;
    k.apply(&pod("other", 5001, "OnRootMismatch"))?;
    ensure!(log("other")? == "5001 drwxrwsr-x\n5001\n", "{}", log("other")?);
    k.ok(&["delete", "pod", "--all", "--timeout=60s"])?;
    k.ok(&["delete", "pvc", "c", "--timeout=60s"])?;
    k.ok(&["delete", "pv", "kelson-v-local", "--timeout=60s"])?;
    Ok(())
}

fn projected(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-proj")?;
    k.ok(&["create", "configmap", "conf", "--from-literal=a=alpha", "--from-literal=b=beta"])?;
    k.ok(&["create", "secret", "generic", "sec", "--from-literal=password=hunter2"])?;
    k.apply(&script(
        "all",
        "cd /p; cat conf/a; echo; ls conf; cat word; echo; cat name; echo; stat -L -c %a word conf/a; cut -d. -f2 token | wc -w; sleep 600",
        "    volumeMounts: [{name: p, mountPath: /p}]
  volumes:
  - name: p
    projected:
      defaultMode: 0440
      sources:
      - configMap: {name: conf, items: [{key: a, path: conf/a}]}
      - secret: {name: sec, items: [{key: password, path: word, mode: 0400}]}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
      - serviceAccountToken: {path: token, audience: vault, expirationSeconds: 600}
      - configMap: {name: absent, optional: true}
",
    ))?;
    ready(&k, "all")?;
    eventually("the log", LIMIT, || {
        let log = k.ok(&["logs", "all"])?;
        ensure!(log.lines().eq(["alpha", "a", "hunter2", "all", "400", "440", "1"]), "{log}");
        Ok(())
    })?;
    let token = k.ok(&["exec", "all", "--", "cat", "/p/token"])?;
    let review = |audience: &str| {
        let spec = serde_json::json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]}});
        let out = s.kubectl.with_input(&["create", "-o", "json", "-f", "-"], spec.to_string().as_bytes())?;
        Ok::<_, anyhow::Error>(serde_json::from_str::<serde_json::Value>(&out.stdout)?["status"].clone())
    };
    ensure!(review("vault")?["authenticated"] == true, "{}", review("vault")?);
    ensure!(review("other")?["authenticated"] != true, "{}", review("other")?);
    Ok(())
}

fn propagation(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-mounts")?;
    let dir = tempfile::tempdir()?;
    // A separate shared mount, whatever the directory above it is.
    let at = dir.path().display();
    sh(&format!("mount -t tmpfs none {at} && mount --make-rshared {at} && mkdir {at}/m"))?;
    let see = |name: &str, how: &str, first: &str, privileged: bool| {
        let context = if privileged { "    securityContext: {privileged: true}\n" } else { "" };
        script(
            name,
            &format!("{first} sleep 6000"),
            &format!(
                "{context}    volumeMounts: [{{name: v, mountPath: /v, mountPropagation: {how}}}]\n  volumes: [{{name: v, hostPath: {{path: {at}}}}}]\n"
            ),
        )
    };
    let outcome = (|| {
        k.apply(&see("follows", "HostToContainer", "", false))?;
        k.apply(&see("apart", "None", "", false))?;
        ready(&k, "follows")?;
        ready(&k, "apart")?;
        k.apply(&see("gives", "Bidirectional", "mount -t tmpfs none /v/m && echo here > /v/m/word;", true))?;
        ready(&k, "gives")?;
        eventually("what one mounts is seen by the host and another", LIMIT, || {
            ensure!(std::fs::read_to_string(dir.path().join("m/word")).is_ok_and(|w| w == "here\n"), "the host");
            ensure!(k.ok(&["exec", "follows", "--", "cat", "/v/m/word"])? == "here\n", "the other");
            Ok(())
        })?;
        let apart = k.run(&["exec", "apart", "--", "cat", "/v/m/word"])?;
        ensure!(apart.code != 0, "{apart:?}");
        k.ok(&["delete", "pod", "--all", "--timeout=60s"])?;
        Ok(())
    })();
    sh(&format!("umount -l {at}/m 2>/dev/null; umount -l {at}"))?;
    outcome
}

/// Two keys that are changed together are seen together by a container that reads them continuously.
fn atomic(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-atomic")?;
    k.ok(&["create", "configmap", "pair", "--from-literal=a=0", "--from-literal=b=0"])?;
    k.ok(&["create", "secret", "generic", "word", "--from-literal=w=0"])?;
    // One directory is opened once for both, as a program that needs both together must do.
    let reads = "cd /c; while :; do d=$(readlink ..data); a=$(cat $d/a 2>/dev/null) && b=$(cat $d/b 2>/dev/null) && [ \"$a\" != \"$b\" ] && echo torn $a $b; done";
    k.apply(&script(
        "reads",
        reads,
        "    volumeMounts: [{name: c, mountPath: /c}, {name: s, mountPath: /s}]
  volumes: [{name: c, configMap: {name: pair}}, {name: s, secret: {secretName: word}}]
",
    ))?;
    ready(&k, "reads")?;
    for n in 1..=5 {
        k.ok(&["patch", "configmap", "pair", "-p", &format!(r#"{{"data":{{"a":"{n}","b":"{n}"}}}}"#)])?;
        k.ok(&["patch", "secret", "word", "-p", &format!(r#"{{"stringData":{{"w":"{n}"}}}}"#)])?;
        eventually("the new values", LIMIT, || {
            let now = k.ok(&["exec", "reads", "--", "sh", "-c", "cat /c/a /c/b /s/w"])?;
            ensure!(now == format!("{n}{n}{n}"), "{now}");
            Ok(())
        })?;
    }
    let log = k.ok(&["logs", "reads"])?;
    ensure!(log.is_empty(), "{log}");
    Ok(())
}

fn memory(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-memory")?;
    k.apply(&script(
        "small",
        "df -k /m | tail -1 | awk '{print $2}'; grep ' /m ' /proc/mounts | cut -d' ' -f3; sleep 600",
        &format!(
            "    resources: {{limits: {{memory: 64Mi}}}}
    volumeMounts: [{{name: m, mountPath: /m}}, {{name: d, mountPath: /d}}]
  - name: other
    image: {IMAGE}
    command: [sh, -c, 'sleep 600']
    volumeMounts: [{{name: d, mountPath: /d}}]
  volumes: [{{name: m, emptyDir: {{medium: Memory, sizeLimit: 4Mi}}}}, {{name: d, emptyDir: {{}}}}]
"
        ),
    ))?;
    ready(&k, "small")?;
    eventually("the log", LIMIT, || {
        let log = k.ok(&["logs", "small", "-c", "main"])?;
        ensure!(log == "4096\ntmpfs\n", "{log}");
        Ok(())
    })?;
    let full = k.run(&["exec", "small", "-c", "main", "--", "sh", "-c", "head -c 8m /dev/zero > /m/f"])?;
    ensure!(full.code != 0, "{full:?}");
    // What one container leaves in a shared directory is visible to the other one.
    k.ok(&["exec", "small", "-c", "main", "--", "sh", "-c", "echo shared > /d/f"])?;
    ensure!(k.ok(&["exec", "small", "-c", "other", "--", "cat", "/d/f"])? == "shared\n", "shared");
    Ok(())
}
