//! Iterates over all containers of a pod, for all plugins. A `match` on the kind has no wildcard, so a new kind of
//! container does not compile until every use handles it (CVE-2023-2727, -2728, 2024-3177).
use serde_json::Value;

/// Defines the kinds, so that the type, the list of all kinds and the names come from one table. A kind added here is
/// iterated everywhere, and every `match` on it fails to compile until it handles the new kind.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $field:literal, $words:literal;)*) => {
        /// The kinds of containers of a pod.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ContainerKind {
            $($(#[$doc])* $kind,)*
        }

        impl ContainerKind {
            /// All kinds, in the order in which upstream visits them.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Returns the field of the pod's spec.
            pub const fn field(self) -> &'static str {
                match self {
                    $(Self::$kind => $field,)*
                }
            }
            /// Returns the name in messages.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$kind => $words,)*
                }
            }
        }
    };
}

kinds! {
    /// Init containers (`initContainers`), including sidecars.
    Init: "initContainers", "init container";
    /// Main containers (`containers`).
    Regular: "containers", "container";
    /// Debug containers (`ephemeralContainers`).
    Ephemeral: "ephemeralContainers", "ephemeral container";
}

/// Returns every container of a pod spec with its kind and its index within its list.
pub fn containers(spec: &Value) -> impl Iterator<Item = (ContainerKind, usize, &Value)> {
    ContainerKind::ALL.iter().flat_map(move |&kind| {
        let list = spec.get(kind.field()).and_then(Value::as_array);
        list.into_iter().flatten().enumerate().map(move |(i, c)| (kind, i, c))
    })
}

/// Calls `change` for every container of a pod spec.
pub fn containers_mut(spec: &mut Value, mut change: impl FnMut(ContainerKind, usize, &mut Value)) {
    for &kind in ContainerKind::ALL {
        let list = spec.get_mut(kind.field()).and_then(Value::as_array_mut);
        for (i, container) in list.into_iter().flatten().enumerate() {
            change(kind, i, container);
        }
    }
}

/// Joins messages as upstream's aggregate error does.
pub(crate) fn aggregate(messages: &[String]) -> String {
    match messages {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_schema::shape::Shape;
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

    /// Every list of the published pod spec whose items have an image is iterated.
    #[test]
    fn no_list_of_containers_in_a_pod_spec_is_forgotten() {
        let spec = Shape::of_kind("", "v1", "Pod").child("spec").unwrap();
        let fields = spec.struct_type().unwrap().json_fields().map(|f| f.json());
        let pulls = |field: &&str| spec.child(field).is_some_and(|list| list.element().has_field("imagePullPolicy"));
        let mut lists: Vec<&str> = fields.filter(pulls).collect();
        lists.sort_unstable();
        let mut walked: Vec<&str> = ContainerKind::ALL.iter().map(|k| k.field()).collect();
        walked.sort_unstable();
        assert_eq!(lists, walked);
    }
}
