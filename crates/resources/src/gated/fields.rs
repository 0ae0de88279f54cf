//! The table of fields by feature gate. Features that are always on have no row.

/// The fields of one feature, or of several that must be enabled together.
pub(super) struct Row {
    /// The gates that must all be enabled.
    pub gates: &'static [&'static str],
    /// The fields that are dropped while one of them is disabled; [`super::path`] describes the format.
    pub fields: &'static [&'static str],
    /// The fields that an old object must have for the fields to be kept; empty means the fields themselves.
    pub used: &'static [&'static str],
}

const fn row(gate: &'static [&'static str], fields: &'static [&'static str]) -> Row {
    Row { gates: gate, fields, used: fields }
}

/// A part of a kind that rows apply to: group, plural name, path of the part, rows.
pub(super) type Part = (&'static str, &'static str, &'static str, &'static [Row]);

/// Every part that a row applies to; kinds with a common part, such as a pod template, share its rows.
pub(super) const PARTS: &[Part] = &[
    ("", "pods", "spec", POD_SPEC),
    ("", "pods", "status", POD_STATUS),
    ("", "podtemplates", "template.spec", POD_SPEC),
    ("", "replicationcontrollers", "spec.template.spec", POD_SPEC),
    ("apps", "daemonsets", "spec.template.spec", POD_SPEC),
    ("apps", "deployments", "spec.template.spec", POD_SPEC),
    ("apps", "replicasets", "spec.template.spec", POD_SPEC),
    ("apps", "statefulsets", "spec.template.spec", POD_SPEC),
    ("batch", "jobs", "spec.template.spec", POD_SPEC),
    ("batch", "cronjobs", "spec.jobTemplate.spec.template.spec", POD_SPEC),
    ("apps", "deployments", "status", TERMINATING),
    ("apps", "replicasets", "status", TERMINATING),
    ("apps", "statefulsets", "spec", STATEFUL_SET),
    ("autoscaling", "horizontalpodautoscalers", "spec", AUTOSCALER),
    ("coordination.k8s.io", "leases", "spec", LEASE),
    ("", "nodes", "status", NODE_STATUS),
    ("", "persistentvolumeclaims", "spec", CLAIM),
    ("storage.k8s.io", "csidrivers", "spec", CSI_DRIVER),
    ("resource.k8s.io", "resourceclaims", "spec", DEVICE_CLAIM),
    ("resource.k8s.io", "resourceclaimtemplates", "spec.spec", DEVICE_CLAIM),
    ("resource.k8s.io", "resourceclaims", "", DEVICE_CLAIM_STATUS),
    ("resource.k8s.io", "resourceslices", "spec", SLICE),
    ("resource.k8s.io", "deviceclasses", "spec", DEVICE_CLASS),
    ("scheduling.k8s.io", "workloads", "spec.podGroupTemplates[]", POD_GROUP),
    ("scheduling.k8s.io", "podgroups", "spec", POD_GROUP),
    ("scheduling.k8s.io", "podgroups", "status", POD_GROUP_STATUS),
];

const POD_SPEC: &[Row] = &[
    row(&["ClusterTrustBundleProjection"], &["volumes[].projected.sources[].clusterTrustBundle"]),
    row(&["ContainerStopSignals"], &["containers+[].lifecycle?.stopSignal"]),
    row(&["EnvFiles"], &["containers+[].env[].valueFrom.fileKeyRef"]),
    row(&["GenericWorkload"], &["schedulingGroup"]),
    row(&["HostnameOverride"], &["hostnameOverride"]),
    row(&["MatchLabelKeysInPodTopologySpread"], &["topologySpreadConstraints[].matchLabelKeys"]),
    row(&["PodCertificateRequest"], &["volumes[].projected.sources[].podCertificate"]),
    row(&["PodLevelResources"], &["resources"]),
    // An init container that restarts always is a sidecar, which is another feature.
    Row {
        gates: &["ContainerRestartRules"],
        fields: &[
            "initContainers[].restartPolicy!Always",
            "containers[].restartPolicy",
            "ephemeralContainers[].restartPolicy",
            "containers+[].restartPolicyRules",
        ],
        used: &[
            "initContainers[].restartPolicy!Always",
            "initContainers[].restartPolicyRules",
            "containers[].restartPolicy",
        ],
    },
];

const POD_STATUS: &[Row] = &[
    row(&["DRAExtendedResource"], &["extendedResourceClaimStatus"]),
    row(&["DRANodeAllocatableResources"], &["nodeAllocatableResourceClaimStatuses"]),
    row(&["ImageVolumeWithDigest"], &["containerStatuses+[].volumeMounts[].volumeStatus"]),
    row(&["InPlacePodLevelResourcesVerticalScaling"], &["resources", "allocatedResources"]),
    row(&["ResourceHealthStatus"], &["containerStatuses+[].allocatedResourcesStatus"]),
    row(&["ResourceHealthStatusMessage"], &["containerStatuses+[].allocatedResourcesStatus[].resources[].message"]),
];

const TERMINATING: &[Row] = &[row(&["DeploymentReplicaSetTerminatingReplicas"], &["terminatingReplicas"])];

const STATEFUL_SET: &[Row] = &[row(&["MaxUnavailableStatefulSet"], &["updateStrategy.rollingUpdate.maxUnavailable"])];

const AUTOSCALER: &[Row] =
    &[row(&["HPAConfigurableTolerance"], &["behavior.scaleDown.tolerance", "behavior.scaleUp.tolerance"])];

const LEASE: &[Row] =
    &[row(&["CoordinatedLeaderElection"], &["strategy"]), row(&["CoordinatedLeaderElection"], &["preferredHolder"])];

const NODE_STATUS: &[Row] = &[row(&["NodeDeclaredFeatures"], &["declaredFeatures"])];

const CLAIM: &[Row] = &[Row {
    gates: &["CrossNamespaceVolumeDataSource"],
    fields: &["dataSourceRef/namespace"],
    used: &["dataSourceRef"],
}];

const CSI_DRIVER: &[Row] = &[row(&["VolumeLimitScaling"], &["preventPodSchedulingIfMissing"])];

const DEVICE_CLAIM: &[Row] = &[
    row(&["DRAPrioritizedList"], &["devices.requests[].firstAvailable"]),
    row(
        &["DRADeviceTaints"],
        &["devices.requests[].exactly.tolerations", "devices.requests[].firstAvailable[].tolerations"],
    ),
    row(
        &["DRAConsumableCapacity"],
        &[
            "devices.constraints[].distinctAttribute",
            "devices.requests[].exactly.capacity",
            "devices.requests[].firstAvailable[].capacity",
        ],
    ),
];

const DEVICE_CLAIM_STATUS: &[Row] = &[
    row(&["DRAResourceClaimDeviceStatus"], &["status.devices"]),
    Row {
        gates: &["DRAConsumableCapacity"],
        fields: &[
            "status.allocation.devices.results[].shareID",
            "status.allocation.devices.results[].consumedCapacity",
            "status.devices[].shareID",
        ],
        used: &[
            "spec.devices.constraints[].distinctAttribute",
            "spec.devices.requests[].exactly.capacity",
            "spec.devices.requests[].firstAvailable[].capacity",
            "status.allocation.devices.results[].shareID",
            "status.allocation.devices.results[].consumedCapacity",
            "status.devices[].shareID",
        ],
    },
    row(
        &["DRADeviceBindingConditions"],
        &[
            "status.allocation.devices.results[].bindingConditions",
            "status.allocation.devices.results[].bindingFailureConditions",
        ],
    ),
];

const SLICE: &[Row] = &[
    row(&["DRADeviceTaints"], &["devices[].taints"]),
    row(
        &["DRAPartitionableDevices"],
        &[
            "sharedCounters",
            "perDeviceNodeSelection",
            "devices[].consumesCounters",
            "devices[].nodeName",
            "devices[].nodeSelector",
            "devices[].allNodes",
        ],
    ),
    row(
        &["DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"],
        &["devices[].bindingConditions", "devices[].bindingFailureConditions", "devices[].bindsToNode"],
    ),
    row(&["DRAConsumableCapacity"], &["devices[].allowMultipleAllocations", "devices[].capacity{}.requestPolicy"]),
    row(&["DRANodeAllocatableResources"], &["devices[].nodeAllocatableResourceMappings"]),
    row(
        &["DRAListTypeAttributes"],
        &[
            "devices[].attributes{}.bools",
            "devices[].attributes{}.ints",
            "devices[].attributes{}.strings",
            "devices[].attributes{}.versions",
        ],
    ),
];

const DEVICE_CLASS: &[Row] = &[row(&["DRAExtendedResource"], &["extendedResourceName"])];

const POD_GROUP: &[Row] = &[
    row(&["TopologyAwareWorkloadScheduling"], &["schedulingConstraints"]),
    row(&["DRAWorkloadResourceClaims"], &["resourceClaims"]),
    row(&["WorkloadAwarePreemption"], &["disruptionMode"]),
    row(&["WorkloadAwarePreemption"], &["priorityClassName"]),
    row(&["WorkloadAwarePreemption"], &["priority"]),
];

const POD_GROUP_STATUS: &[Row] = &[row(&["DRAWorkloadResourceClaims"], &["resourceClaimStatuses"])];
