//! Cgroups in a directory that replaces the kernel's hierarchy.
use super::resources::weight;
use super::*;
use crate::config::cgroups::MemoryQos;
use serde_json::json;

pub(super) fn limited() -> Pod {
    serde_json::from_value(json!({"metadata":{"uid":"u-1"},"spec":{"containers":[{"name":"a","resources":
        {"requests":{"cpu":"500m"},"limits":{"cpu":"1500m","memory":"64Mi"}}}]}}))
    .expect("pod")
}

pub(super) fn unified() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io memory hugetlb pids\n").expect("write");
    dir
}

pub(super) fn split() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("tempdir");
    for controller in ["cpu", "memory", "pids"] {
        std::fs::create_dir(dir.path().join(controller)).expect("mkdir");
    }
    std::fs::write(dir.path().join("memory/tasks"), "").expect("write");
    dir
}

pub(super) async fn open(dir: &Path, driver: CgroupDriver) -> Cgroups {
    let config = CgroupConfig { driver, ..CgroupConfig::below("k") };
    Cgroups::at(dir, &config, (Some(100), MemoryConfig::default()), None).await
}

#[tokio::test]
async fn a_pod_on_cgroup_v2() {
    for (driver, own, above) in [
        (CgroupDriver::Cgroupfs, "k/kubepods/burstable/podu-1", "k/kubepods"),
        (
            CgroupDriver::Systemd,
            "k.slice/k-kubepods.slice/k-kubepods-burstable.slice/k-kubepods-burstable-podu_1.slice",
            "k.slice/k-kubepods.slice",
        ),
    ] {
        let dir = unified();
        let cgroups = open(dir.path(), driver).await;
        let pod = limited();
        assert_eq!(cgroups.parent(&pod), format!("/{own}"));
        cgroups.ensure(&pod, false).await.expect("made");
        let own = dir.path().join(own);
        let read = |file: &str| std::fs::read_to_string(own.join(file)).expect(file);
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("cpu.weight"), weight(512).to_string());
        assert_eq!((read("memory.max").as_str(), read("pids.max").as_str()), ("67108864", "100"));
        let handed = std::fs::read_to_string(dir.path().join(above).join("cgroup.subtree_control"));
        assert!(handed.expect("handed down").starts_with('+'));
        std::fs::write(own.join("pids.current"), "7\n").expect("write");
        assert_eq!((cgroups.processes("u-1"), cgroups.processes("other")), (Some(7), None));
    }
}

#[tokio::test]
async fn a_pod_on_cgroup_v1() {
    let dir = split();
    let cgroups = open(dir.path(), CgroupDriver::Cgroupfs).await;
    cgroups.ensure(&limited(), false).await.expect("made");
    let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).expect(file);
    assert_eq!(read("cpu/k/kubepods/burstable/podu-1/cpu.cfs_quota_us"), "150000");
    assert_eq!(read("cpu/k/kubepods/burstable/podu-1/cpu.shares"), "512");
    assert_eq!(read("memory/k/kubepods/burstable/podu-1/memory.limit_in_bytes"), "67108864");
    assert_eq!(read("pids/k/kubepods/burstable/podu-1/pids.max"), "100");
    // Raised at once, lowered only when its containers use less.
    let own = "memory/k/kubepods/burstable/podu-1/memory.limit_in_bytes";
    for (before, after) in [("1024", "67108864"), ("100000000", "100000000"), ("-1", "-1")] {
        std::fs::write(dir.path().join(own), before).expect("write");
        cgroups.raise(&limited()).await.expect("raised");
        assert_eq!(read(own), after);
    }
}

#[tokio::test]
async fn qos_classes_and_the_node_are_limited() {
    let dir = split();
    std::fs::create_dir_all(dir.path().join("cpu/sys")).expect("mkdir");
    std::fs::create_dir_all(dir.path().join("memory/sys")).expect("mkdir");
    let cgroups = open(dir.path(), CgroupDriver::Cgroupfs).await;
    let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).expect(file);
    assert_eq!(read("cpu/k/kubepods/besteffort/cpu.shares"), "2");
    cgroups.share_out(&[Arc::new(limited())], 0).await;
    assert_eq!(read("cpu/k/kubepods/burstable/cpu.shares"), "512");
    let amounts = |all: &[(&str, &str)]| {
        all.iter().map(|(name, q)| ((*name).to_owned(), q.parse().expect("a quantity"))).collect()
    };
    let node = amounts(&[("cpu", "2"), ("memory", "1Gi")]);
    cgroups.hold_pods(&node).await.expect("held");
    assert_eq!(read("memory/k/kubepods/memory.limit_in_bytes"), "1073741824");
    assert_eq!(read("cpu/k/kubepods/cpu.shares"), "2048");
    assert_eq!(cgroups.memory_of_pods(), None, "the kernel says nothing yet");
    let memory = dir.path().join("memory/k/kubepods");
    std::fs::write(memory.join("memory.usage_in_bytes"), "5000\n").expect("write");
    std::fs::write(memory.join("memory.stat"), "inactive_file 1\ntotal_inactive_file 2000\n").expect("write");
    assert_eq!(cgroups.memory_of_pods(), Some(node::PodsMemory { limit: 1 << 30, used: 3000 }));
    cgroups.hold_reserved("/sys", &node, true).await.expect("held");
    assert_eq!(read("cpu/sys/cpu.shares"), "2048");
    assert!(!dir.path().join("memory/sys/memory.limit_in_bytes").exists(), "in CPU alone");
    let why = cgroups.hold_reserved("/nowhere", &node, false).await.expect_err("it is not there");
    assert!(why.contains("nowhere"), "{why}");
}

#[tokio::test]
async fn a_root_for_pods_only_has_their_weight_and_memory_protection() {
    let guaranteed = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
    let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "g"},
        "spec": {"containers": [{"name": "a", "resources": guaranteed}]}}))
    .expect("pod");
    for own_root in [true, false] {
        let dir = unified();
        let config = CgroupConfig { own_root, ..CgroupConfig::below("node/pods") };
        let qos = Some(MemoryQos { throttling: 0.9, is_tiered: true });
        let memory = MemoryConfig { qos, ..MemoryConfig::default() };
        let cgroups = Cgroups::at(dir.path(), &config, (None, memory), None).await;
        let amounts = [("cpu", "2"), ("memory", "1Gi")].map(|(k, v)| (k.to_owned(), v.parse().expect("a quantity")));
        cgroups.hold_pods(&amounts.into()).await.expect("held");
        cgroups.share_out(&[Arc::new(pod.clone())], 1 << 30).await;
        let read = |cgroup: &str, file: &str| std::fs::read_to_string(dir.path().join(cgroup).join(file)).ok();
        let pods = "node/pods/kubepods";
        assert_eq!(read(pods, "cpu.weight"), Some(weight(2048).to_string()));
        assert_eq!(read(pods, "memory.min"), Some((64 << 20).to_string()));
        for root in ["node", "node/pods"] {
            for file in ["cpu.weight", "memory.min"] {
                assert_eq!(read(root, file), read(pods, file).filter(|_| own_root), "{root} {file}");
            }
            assert_eq!(read(root, "memory.max"), None, "the bound of pods is theirs");
        }
    }
}
