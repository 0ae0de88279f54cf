//! The one way plugins walk a pod's containers. A kind that is forgotten here is forgotten nowhere else: the match has no
//! wildcard, so a new kind does not compile until every use of it is decided (CVE-2023-2727, -2728, 2024-3177).
use serde_json::Value;

/// The kinds of containers a pod has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// `initContainers`, sidecars included.
    Init,
    /// `containers`
    Regular,
    /// `ephemeralContainers`
    Ephemeral,
}

impl ContainerKind {
    /// All kinds, in the order upstream visits them.
    pub const ALL: [Self; 3] = [Self::Init, Self::Regular, Self::Ephemeral];

    /// The field of the pod's spec.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Init => "initContainers",
            Self::Regular => "containers",
            Self::Ephemeral => "ephemeralContainers",
        }
    }
    /// How messages name it.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Init => "init container",
            Self::Regular => "container",
            Self::Ephemeral => "ephemeral container",
        }
    }
}

/// Every container of a pod spec: kind, index within its list, container.
pub fn containers(spec: &Value) -> impl Iterator<Item = (ContainerKind, usize, &Value)> {
    ContainerKind::ALL.into_iter().flat_map(move |kind| {
        let list = spec.get(kind.field()).and_then(Value::as_array);
        list.into_iter().flatten().enumerate().map(move |(i, c)| (kind, i, c))
    })
}

/// Calls `change` with every container of a pod spec.
pub fn containers_mut(spec: &mut Value, mut change: impl FnMut(ContainerKind, usize, &mut Value)) {
    for kind in ContainerKind::ALL {
        let list = spec.get_mut(kind.field()).and_then(Value::as_array_mut);
        for (i, container) in list.into_iter().flatten().enumerate() {
            change(kind, i, container);
        }
    }
}

/// Joins messages as upstream's aggregate error prints them.
pub(crate) fn aggregate(messages: &[String]) -> String {
    match messages {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_kinds() {
        let mut spec = json!({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}],
            "ephemeralContainers": [{"name": "e"}], "volumes": [{"name": "no"}]});
        let seen: Vec<_> = containers(&spec).map(|(k, i, c)| (k, i, c["name"].as_str().unwrap().to_owned())).collect();
        let want = [
            (ContainerKind::Init, 0, "i"),
            (ContainerKind::Regular, 0, "a"),
            (ContainerKind::Regular, 1, "b"),
            (ContainerKind::Ephemeral, 0, "e"),
        ];
        assert_eq!(seen, want.map(|(k, i, n)| (k, i, n.to_owned())));
        containers_mut(&mut spec, |_, _, c| c["x"] = json!(1));
        assert_eq!(containers(&spec).filter(|(_, _, c)| c["x"] == 1).count(), 4);
    }
}
