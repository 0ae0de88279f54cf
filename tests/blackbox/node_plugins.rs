//! Extensions of a node: device plugins, and CSI drivers. Both are test programs that behave like published ones, on
//! the node's own sockets.
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::device_plugin::{DevicePlugin, RESOURCE, reported_of};
use kelson_blackbox::driver::{DRIVER, Driver, NO_GROWTH};
use kelson_blackbox::{Kubectl, Needs::OwnNode, Outcome, Process, Subject, Test, eventually, sh};

use crate::pods::{IMAGE, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "devices::a_plugin_gives_devices_to_pods", needs: OwnNode, run: devices },
        Test { name: "volumes::of_a_driver", needs: OwnNode, run: driver },
        Test { name: "volumes::of_a_driver_grow", needs: OwnNode, run: growth },
        Test { name: "volumes::devices_of_the_machine_and_of_a_driver", needs: OwnNode, run: block },
    ]
}

const LIMIT: Duration = Duration::from_secs(90);

fn kubelet(s: &Subject) -> anyhow::Result<(&Process, PathBuf)> {
    let server = s.server.as_ref().context("own server")?;
    Ok((server, server.dir.join("kubelet")))
}

/// Waits until the node has this number of devices, and of healthy ones.
fn node_has(k: &Kubectl, capacity: &str, allocatable: &str) -> Outcome {
    eventually("the node's devices", LIMIT, || {
        let status = k.json(&["get", "nodes"])?["items"][0]["status"].clone();
        let (all, well) = (&status["capacity"][RESOURCE], &status["allocatable"][RESOURCE]);
        ensure!(all == capacity && well == allocatable, "{all} of which {well} work");
        Ok(())
    })
}

fn user(name: &str, count: u8) -> String {
    let shown = "ls -l /dev/dev-* | awk '{print $1, $5, $6, $10}'; echo $DEVICES; cat /plugin/word; sleep 6000";
    script(name, shown, &format!("    resources: {{limits: {{{RESOURCE}: {count}}}}}\n"))
}

/// Returns the devices of a pod, by its environment variable.
fn has(k: &Kubectl, pod: &str) -> anyhow::Result<Vec<String>> {
    let out = k.ok(&["exec", pod, "--", "sh", "-c", "echo $DEVICES"])?;
    let mut ids: Vec<String> = out.split_whitespace().map(str::to_owned).collect();
    ids.sort();
    Ok(ids)
}

/// Waits until a pod's status shows this health of its device.
fn is_said(k: &Kubectl, pod: &str, health: &str) -> Outcome {
    eventually("how its device is", LIMIT, || {
        let said = &k.json(&["get", "pod", pod])?["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
        ensure!(said[0]["name"] == RESOURCE && said[0]["resources"][0]["health"] == health, "{said} is not {health}");
        Ok(())
    })
}

fn devices(s: &Subject) -> Outcome {
    let (server, kubelet) = kubelet(s)?;
    let k = s.kubectl.fresh_namespace("d-plugin")?;
    let shown = tempfile::tempdir()?;
    std::fs::write(shown.path().join("word"), "from the plugin\n")?;
    let (plugins, asks) = (kubelet.join("device-plugins"), kubelet.join("pod-resources/kubelet.sock"));
    let start = |devices: &[(&'static str, bool)]| {
        eventually("the kubelet takes plugins", LIMIT, || DevicePlugin::start(&plugins, shown.path(), devices))
    };
    let plugin = start(&[("dev-a", true), ("dev-b", true), ("dev-c", false)])?;
    node_has(&k, "3", "2")?;

    // One pod gets one; another that needs two waits until there are enough healthy ones, and gets others.
    k.apply(&user("one", 1))?;
    ready(&k, "one")?;
    let first = has(&k, "one")?;
    ensure!(first.len() == 1 && reported_of(&asks, "one")? == first, "{first:?} {:?}", reported_of(&asks, "one")?);
    let wanted = format!("crw-rw-rw- 1, 3 /dev/{0}\n{0}\nfrom the plugin", first[0]);
    eventually("its log", LIMIT, || {
        let log = k.ok(&["logs", "one"])?;
        ensure!(log.trim() == wanted, "{log} is not {wanted}");
        Ok(())
    })?;
    k.ok(&["exec", "one", "--", "sh", "-c", &format!("echo gone > /dev/{}", first[0])])?;
    k.apply(&user("two", 2))?;
    eventually("no place for the second", LIMIT, || {
        let why = k.ok(&["get", "pod", "two", "-o", "jsonpath={.status.conditions[0].message}"])?;
        ensure!(why.contains(&format!("Insufficient {RESOURCE}")), "{why}");
        Ok(())
    })?;
    plugin.report(&[("dev-a", true), ("dev-b", true), ("dev-c", true)]);
    ready(&k, "two")?;
    let second = has(&k, "two")?;
    ensure!(second.len() == 2 && !second.contains(&first[0]), "{second:?} beside {first:?}");
    ensure!(reported_of(&asks, "two")? == second, "{:?}", reported_of(&asks, "two")?);

    // An unhealthy one is no longer allocated; its pod continues.
    plugin.report(&[("dev-a", first[0] != "dev-a"), ("dev-b", first[0] != "dev-b"), ("dev-c", first[0] != "dev-c")]);
    node_has(&k, "3", "2")?;
    ensure!(k.ok(&["exec", "one", "--", "echo", "on"])? == "on\n", "it goes on");
    is_said(&k, "one", "Unhealthy")?;
    plugin.report(&[("dev-a", true), ("dev-b", true), ("dev-c", true)]);
    node_has(&k, "3", "3")?;
    // The devices of a plugin that ends disappear, and come back with it.
    let asked = plugin.allocated().len();
    ensure!(asked >= 2, "{:?}", plugin.allocated());
    drop(plugin);
    node_has(&k, "3", "0")?;
    is_said(&k, "one", "Unknown")?;
    let plugin = start(&[("dev-a", true), ("dev-b", true), ("dev-c", true)])?;
    node_has(&k, "3", "3")?;

    // The restarted kubelet knows the allocations; plugins see that their sockets are gone, and register again.
    server.terminate()?;
    server.launch()?;
    eventually("plugins are told", LIMIT, || {
        ensure!(!plugin.is_there(), "its socket is there still");
        Ok(())
    })?;
    drop(plugin);
    let plugin = start(&[("dev-a", true), ("dev-b", true), ("dev-c", true)])?;
    node_has(&k, "3", "3")?;
    is_said(&k, "one", "Healthy")?;
    eventually("both go on", LIMIT, || {
        ensure!(has(&k, "one")? == first && has(&k, "two")? == second, "others");
        Ok(())
    })?;
    // A restarted container has the same devices.
    k.ok(&["exec", "one", "--", "sh", "-c", "kill -9 -1 || true"]).ok();
    k.ok(&["delete", "pod", "two", "--timeout=60s"])?;
    k.apply(&user("next", 2))?;
    ready(&k, "next")?;
    ensure!(has(&k, "next")? == second, "{:?}", has(&k, "next")?);
    ready(&k, "one")?;
    ensure!(has(&k, "one")? == first, "{:?}", has(&k, "one")?);
    k.ok(&["delete", "pod", "--all", "--timeout=60s"])?;
    drop(plugin);
    Ok(())
}

/// Returns a volume of the driver and a claim for it.
fn claimed(name: &str, handle: &str, mode: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  storageClassName: of-a-driver
  volumeMode: {mode}
  capacity: {{storage: 16Mi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  claimRef: {{namespace: v-driver, name: {name}}}
  csi: {{driver: {DRIVER}, volumeHandle: {handle}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{storageClassName: of-a-driver, volumeMode: {mode}, volumeName: {name}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 8Mi}}}}}}
"
    )
}

const CSI_DRIVER: &str = "apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: test.kelson.local}
spec: {attachRequired: false, podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
";

fn starts_driver(k: &Kubectl, kubelet: &Path, volumes: &Path) -> anyhow::Result<Driver> {
    k.apply(CSI_DRIVER)?;
    let driver = eventually("the kubelet takes drivers", LIMIT, || Driver::start(kubelet, volumes))?;
    eventually("the driver is known", LIMIT, || {
        let known = k.ok(&["get", "csinodes", "-o", "jsonpath={.items[*].spec.drivers[*].name}"])?;
        ensure!(known.contains(DRIVER), "{known}");
        Ok(())
    })?;
    Ok(driver)
}

fn driver(s: &Subject) -> Outcome {
    let (server, kubelet) = kubelet(s)?;
    let k = s.kubectl.fresh_namespace("v-driver")?;
    let volumes = tempfile::tempdir()?;
    std::fs::create_dir(volumes.path().join("files"))?;
    let driver = starts_driver(&k, &kubelet, volumes.path())?;
    k.apply(&claimed("kelson-files", "files", "Filesystem"))?;
    let mounts = "    volumeMounts: [{name: v, mountPath: /v}, {name: own, mountPath: /own}, {name: v, mountPath: /sub, subPath: sub}]
  securityContext: {fsGroup: 4321}
  volumes:
  - {name: v, persistentVolumeClaim: {claimName: kelson-files}}
  - {name: own, csi: {driver: test.kelson.local, volumeAttributes: {word: hello}}}
";
    for pod in ["one", "two"] {
        k.apply(&script(pod, "echo $HOSTNAME >> /v/log; echo x > /sub/$HOSTNAME; sleep 6000", mounts))?;
    }
    ready(&k, "one")?;
    ready(&k, "two")?;
    ensure!(k.ok(&["exec", "one", "--", "cat", "/own/for"])? == "hello", "a volume that the pod names itself");
    ensure!(k.ok(&["exec", "one", "--", "stat", "-c", "%g", "/v"])?.trim() == "4321", "the pod's group");
    let log = std::fs::read_to_string(volumes.path().join("files/log"))?;
    ensure!(log.contains("one") && log.contains("two") && volumes.path().join("files/sub/two").exists(), "{log}");
    let calls = driver.calls();
    ensure!(
        calls.iter().any(|c| c == "publish files for two") && !calls.iter().any(|c| c.contains("failed")),
        "{calls:?}"
    );
    let node = k.json(&["get", "nodes"])?["items"][0]["status"]["volumesInUse"].clone();
    ensure!(node.to_string().contains("kubernetes.io/csi/test.kelson.local^files"), "{node}");

    // A volume mounted before the kubelet restarted is unmounted by this one.
    server.terminate()?;
    server.launch()?;
    ready(&k, "one")?;
    k.ok(&["delete", "pod", "one", "--timeout=60s"])?;
    ensure!(!driver.calls().iter().any(|c| c == "unstage files"), "the other pod has it: {:?}", driver.calls());
    k.ok(&["delete", "pod", "two", "--timeout=60s"])?;
    eventually("nothing is left of it", LIMIT, || {
        let left = std::fs::read_to_string("/proc/self/mountinfo")?;
        let left: Vec<&str> = left.lines().filter(|l| l.contains(&*volumes.path().to_string_lossy())).collect();
        ensure!(
            left.is_empty() && driver.calls().iter().any(|c| c == "unstage files"),
            "{left:?} {:?}",
            driver.calls()
        );
        Ok(())
    })?;
    k.ok(&["delete", "pvc", "--all", "--timeout=60s"])?;
    k.ok(&["delete", "pv", "kelson-files", "--timeout=60s"])?;
    Ok(())
}

/// Makes a claim request more, and does the controller's part, which does not run here.
fn asks_for(k: &Kubectl, mib: u32) -> Outcome {
    let size = format!("{{\"storage\": \"{mib}Mi\"}}");
    let claim = format!("{{\"spec\": {{\"resources\": {{\"requests\": {size}}}}}}}");
    k.ok(&["patch", "pvc", "kelson-files", "--type=merge", "-p", &claim])?;
    let volume = format!("{{\"spec\": {{\"capacity\": {size}}}}}");
    k.ok(&["patch", "pv", "kelson-files", "--type=merge", "-p", &volume])?;
    let status = format!(
        "{{\"status\": {{\"allocatedResources\": {size}, \"allocatedResourceStatuses\": {{\"storage\": \"NodeResizePending\"}},
          \"conditions\": [{{\"type\": \"FileSystemResizePending\", \"status\": \"True\"}}]}}}}"
    );
    k.ok(&["patch", "pvc", "kelson-files", "--subresource=status", "--type=merge", "-p", &status])?;
    Ok(())
}

/// Waits until the claim has this size, and no resize is in progress.
fn has_grown(k: &Kubectl, driver: &Driver, mib: u32) -> Outcome {
    eventually("the claim has grown", LIMIT, || {
        let status = k.json(&["get", "pvc", "kelson-files"])?["status"].clone();
        let is_over = status["allocatedResourceStatuses"].is_null() && status["conditions"].is_null();
        ensure!(status["capacity"]["storage"] == format!("{mib}Mi") && is_over, "{status} {:?}", driver.calls());
        let grown = format!("grow files to {mib} MiB");
        ensure!(driver.calls().contains(&grown), "{:?}", driver.calls());
        Ok(())
    })
}

fn growth(s: &Subject) -> Outcome {
    let (_, kubelet) = kubelet(s)?;
    let k = s.kubectl.namespaced("v-driver");
    k.run(&["create", "namespace", "v-driver"])?;
    let volumes = tempfile::tempdir()?;
    std::fs::create_dir(volumes.path().join("files"))?;
    let driver = starts_driver(&k, &kubelet, volumes.path())?;
    k.apply(
        "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: of-a-driver}
provisioner: test.kelson.local
allowVolumeExpansion: true
",
    )?;
    k.apply(&claimed("kelson-files", "files", "Filesystem"))?;
    let mounts = "    volumeMounts: [{name: v, mountPath: /v}]
  volumes:
  - {name: v, persistentVolumeClaim: {claimName: kelson-files}}
";
    let start = |pod: &str| k.apply(&script(pod, "sleep 6000", mounts)).map(drop);
    start("grows")?;
    ready(&k, "grows")?;
    let reported = |pod: &str, reason: &str| {
        eventually("the event", LIMIT, || {
            let all = format!("--field-selector=involvedObject.name={pod},reason={reason}");
            let events = k.ok(&["get", "events", &all, "-o", "jsonpath={.items[*].message}"])?;
            ensure!(!events.is_empty(), "no {reason} of {pod}");
            Ok(events)
        })
    };

    eventually("how full it is", Duration::from_secs(150), || {
        let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
        let metrics = k.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")])?;
        let of_claim = "{namespace=\"v-driver\",persistentvolumeclaim=\"kelson-files\"} ";
        for name in ["capacity_bytes", "available_bytes", "used_bytes", "inodes", "inodes_free", "inodes_used"] {
            let line = format!("kubelet_volume_stats_{name}{of_claim}");
            ensure!(metrics.lines().any(|l| l.starts_with(&line)), "no {line}");
        }
        Ok(())
    })?;
    // While it is in use; first the driver has no room.
    std::fs::write(volumes.path().join(NO_GROWTH), "")?;
    asks_for(&k, 32)?;
    let why = reported("grows", "VolumeResizeFailed")?;
    ensure!(why.contains("kelson-files"), "{why}");
    let status = k.json(&["get", "pvc", "kelson-files"])?["status"].clone();
    let kinds = status["conditions"].as_array().into_iter().flatten().filter(|c| c["type"] == "NodeResizeError");
    ensure!(kinds.count() == 1 && status["capacity"]["storage"] == "16Mi", "{status}");
    std::fs::remove_file(volumes.path().join(NO_GROWTH))?;
    has_grown(&k, &driver, 32)?;
    reported("grows", "FileSystemResizeSuccessful")?;

    // And when it is mounted: the pod starts with the new size.
    k.ok(&["delete", "pod", "grows", "--timeout=60s"])?;
    asks_for(&k, 64)?;
    start("begins")?;
    ready(&k, "begins")?;
    has_grown(&k, &driver, 64)?;
    reported("begins", "FileSystemResizeSuccessful")?;
    reported("kelson-files", "FileSystemResizeSuccessful")?;
    k.ok(&["delete", "pod", "begins", "--timeout=60s"])?;
    k.ok(&["delete", "pvc", "--all", "--timeout=60s"])?;
    k.ok(&["delete", "pv/kelson-files", "storageclass/of-a-driver", "--timeout=60s"])?;
    Ok(())
}

/// A loop device with a marker at its beginning; removed when dropped.
struct Loop(String);

impl Loop {
    fn new(file: &Path, word: &str) -> anyhow::Result<Self> {
        let mut content = vec![0; 1 << 20];
        content[..word.len()].copy_from_slice(word.as_bytes());
        std::fs::write(file, content)?;
        Ok(Self(sh(&format!("losetup --find --show {}", file.display()))?.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A second error would hide the first.
        let _ = sh(&format!("losetup --detach {}", self.0));
    }
}

fn block(s: &Subject) -> Outcome {
    let (_, kubelet) = kubelet(s)?;
    let k = s.kubectl.namespaced("v-driver");
    k.run(&["create", "namespace", "v-driver"])?;
    let dir = tempfile::tempdir()?;
    let ours = Loop::new(&dir.path().join("a"), "of the machine")?;
    let theirs = Loop::new(&dir.path().join("b"), "of the driver.")?;
    std::os::unix::fs::symlink(&theirs.0, dir.path().join("disk"))?;
    let driver = starts_driver(&k, &kubelet, dir.path())?;
    let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    let place = format!(
        "local: {{path: {}}}\n  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]}}]}}}}",
        ours.0
    );
    let local =
        claimed("kelson-local", "x", "Block").replace(&format!("csi: {{driver: {DRIVER}, volumeHandle: x}}"), &place);
    k.apply(&format!("{local}{}", claimed("kelson-disk", "disk", "Block")))?;
    let read = |n: u8| format!("head -c 14 /dev/disk{n}; echo");
    k.apply(&script(
        "raw",
        &format!(
            "{}; {}; printf X | dd of=/dev/disk2 bs=1 conv=notrunc 2>/dev/null; {}; sleep 6000",
            read(1),
            read(2),
            read(2)
        ),
        "    volumeDevices: [{name: a, devicePath: /dev/disk1}, {name: b, devicePath: /dev/disk2}]
  volumes:
  - {name: a, persistentVolumeClaim: {claimName: kelson-local}}
  - {name: b, persistentVolumeClaim: {claimName: kelson-disk}}
",
    ))?;
    ready(&k, "raw").with_context(|| format!("{:?} {}", driver.calls(), IMAGE))?;
    eventually("the log", LIMIT, || {
        let log = k.ok(&["logs", "raw"])?;
        ensure!(log.lines().eq(["of the machine", "of the driver.", "Xf the driver."]), "{log}");
        Ok(())
    })?;
    k.ok(&["delete", "pod", "raw", "--timeout=60s"])?;
    eventually("the driver has let go", LIMIT, || {
        ensure!(driver.calls().iter().any(|c| c == "unstage disk"), "{:?}", driver.calls());
        Ok(())
    })?;
    k.ok(&["delete", "pvc", "--all", "--timeout=60s"])?;
    k.ok(&["delete", "pv", "kelson-local", "kelson-disk", "--timeout=60s"])?;
    Ok(())
}
