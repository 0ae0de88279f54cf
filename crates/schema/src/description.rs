//! What types and fields mean, in Kelson's own words, for OpenAPI and so for `kubectl explain`. The descriptions are the files in
//! `descriptions/`, one per API group; they are parsed when a document is made and dropped with it. Facts (types, keys,
//! defaults) are the table's.
use crate::{Field, Kind, TypeId};
use std::collections::HashMap;

/// The descriptions: the last part but one of the package (`k8s.io/api/core/v1`), and its file.
const FILES: &[(&str, &str)] = &[
    ("admission", include_str!("../descriptions/admission.txt")),
    ("admissionregistration", include_str!("../descriptions/admissionregistration.txt")),
    ("apidiscovery", include_str!("../descriptions/apidiscovery.txt")),
    ("apiextensions", include_str!("../descriptions/apiextensions.txt")),
    ("apiregistration", include_str!("../descriptions/apiregistration.txt")),
    ("apiserverinternal", include_str!("../descriptions/apiserverinternal.txt")),
    ("apps", include_str!("../descriptions/apps.txt")),
    ("authentication", include_str!("../descriptions/authentication.txt")),
    ("authorization", include_str!("../descriptions/authorization.txt")),
    ("autoscaling", include_str!("../descriptions/autoscaling.txt")),
    ("batch", include_str!("../descriptions/batch.txt")),
    ("certificates", include_str!("../descriptions/certificates.txt")),
    ("coordination", include_str!("../descriptions/coordination.txt")),
    ("core", include_str!("../descriptions/core.txt")),
    ("discovery", include_str!("../descriptions/discovery.txt")),
    ("events", include_str!("../descriptions/events.txt")),
    ("flowcontrol", include_str!("../descriptions/flowcontrol.txt")),
    (COMMON, include_str!("../descriptions/meta.txt")),
    ("metrics", include_str!("../descriptions/metrics.txt")),
    ("networking", include_str!("../descriptions/networking.txt")),
    ("node", include_str!("../descriptions/node.txt")),
    ("policy", include_str!("../descriptions/policy.txt")),
    ("rbac", include_str!("../descriptions/rbac.txt")),
    ("resource", include_str!("../descriptions/resource.txt")),
    ("scheduling", include_str!("../descriptions/scheduling.txt")),
    ("storage", include_str!("../descriptions/storage.txt")),
    ("storagemigration", include_str!("../descriptions/storagemigration.txt")),
];

/// The file whose patterns apply to every group.
const COMMON: &str = "meta";

/// The descriptions, ready to be looked up. Costs about a millisecond to make and holds a few hundred KiB: keep it only as
/// long as a document is being written.
#[derive(Debug)]
pub struct Descriptions {
    exact: HashMap<(&'static str, &'static str), Vec<Entry>>,
    patterns: Vec<Pattern>,
}

/// One line of a file, without its type.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Version it is limited to; empty for all.
    version: &'static str,
    /// JSON name of the field; empty for the type itself.
    field: &'static str,
    text: &'static str,
}

/// A line whose type contains a `*`.
#[derive(Debug)]
struct Pattern {
    group: &'static str,
    prefix: &'static str,
    suffix: &'static str,
    entry: Entry,
}

/// One line of a file.
struct Line {
    group: &'static str,
    ty: &'static str,
    entry: Entry,
}

/// The lines of all files, in order. What does not read as `Type: text` or `Type.field: text` is left out (a test sees to
/// it that there is none).
fn lines() -> impl Iterator<Item = Line> {
    FILES.iter().flat_map(|(group, text)| {
        text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).filter_map(|line| {
            let (key, text) = line.split_once(": ")?;
            let (version, key) = key.split_once('/').unwrap_or(("", key));
            let (ty, field) = key.split_once('.').unwrap_or((key, ""));
            Some(Line { group, ty, entry: Entry { version, field, text } })
        })
    })
}

/// Group and version as the package names them.
fn group_version(package: &'static str) -> (&'static str, &'static str) {
    let (rest, version) = package.rsplit_once('/').unwrap_or(("", package));
    if !version.starts_with('v') || version.contains(|c: char| !c.is_ascii_alphanumeric()) {
        return (COMMON, "");
    }
    (rest.rsplit('/').next().unwrap_or(rest), version)
}

impl Descriptions {
    /// Parses the descriptions.
    pub fn load() -> Self {
        let mut exact: HashMap<_, Vec<Entry>> = HashMap::new();
        let mut patterns = Vec::new();
        for Line { group, ty, entry } in lines() {
            match ty.split_once('*') {
                Some((prefix, suffix)) => patterns.push(Pattern { group, prefix, suffix, entry }),
                None => exact.entry((group, ty)).or_default().push(entry),
            }
        }
        Self { exact, patterns }
    }

    /// Returns the description of a type or, with a field, of that field. A field of an inlined struct is looked up in
    /// the inlined type too.
    pub fn of(&self, ty: TypeId, field: Option<Field>) -> Option<&'static str> {
        let name = field.map_or("", Field::json);
        let declaring = field.and_then(|_| ty.position(name)).map_or(ty, |at| ty.declaring_type(at));
        self.exact(ty, name)
            .or_else(|| self.exact(declaring, name))
            .or_else(|| self.by_pattern(ty, name))
            .or_else(|| self.by_pattern(declaring, name))
    }

    /// Returns the description of a value that is not a struct, such as a quantity.
    pub fn of_value(&self, kind: Kind) -> Option<&'static str> {
        let (group, name) = VALUES.iter().find(|(of, ..)| of(kind)).map(|(_, group, name)| (*group, *name))?;
        self.exact.get(&(group, name))?.first().map(|e| e.text)
    }

    fn exact(&self, ty: TypeId, field: &str) -> Option<&'static str> {
        let (group, version) = group_version(ty.package());
        let entries = self.exact.get(&(group, ty.name()))?;
        let found = |version: &str| entries.iter().find(|e| e.field == field && e.version == version);
        found(version).or_else(|| found("")).map(|e| e.text)
    }

    /// The longest pattern wins, the group's own before the common ones.
    fn by_pattern(&self, ty: TypeId, field: &str) -> Option<&'static str> {
        let (group, _) = group_version(ty.package());
        let find = |of: &str| {
            let matching =
                self.patterns.iter().filter(|p| p.group == of && p.entry.field == field && p.fits(ty.name()));
            matching.max_by_key(|p| p.prefix.len() + p.suffix.len()).map(|p| p.entry.text)
        };
        find(group).or_else(|| find(COMMON))
    }
}

/// Values that OpenAPI names though they are no structs, with the file and the name of their entry.
type ValueRow = (fn(Kind) -> bool, &'static str, &'static str);
const VALUES: &[ValueRow] = &[
    (|k| k == Kind::Time, COMMON, "Time"),
    (|k| k == Kind::MicroTime, COMMON, "MicroTime"),
    (|k| k == Kind::Duration, COMMON, "Duration"),
    (|k| k == Kind::Quantity, COMMON, "Quantity"),
    (|k| k == Kind::IntOrString, COMMON, "IntOrString"),
    (|k| k == Kind::RawExtension, COMMON, "RawExtension"),
    (|k| k == Kind::FieldsV1, COMMON, "FieldsV1"),
    (|k| k == Kind::Json, "apiextensions", "JSON"),
    (|k| matches!(k, Kind::SchemaOrBool(_)), "apiextensions", "JSONSchemaPropsOrBool"),
    (|k| matches!(k, Kind::SchemaOrArray(_)), "apiextensions", "JSONSchemaPropsOrArray"),
    (|k| matches!(k, Kind::SchemaOrStringArray(_)), "apiextensions", "JSONSchemaPropsOrStringArray"),
];

impl Pattern {
    fn fits(&self, name: &str) -> bool {
        name.len() >= self.prefix.len() + self.suffix.len()
            && name.starts_with(self.prefix)
            && name.ends_with(self.suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Schema;
    use std::collections::HashSet;

    /// The limit of characters of a description.
    const TEXT_MAX: usize = 300;

    fn has(ty: TypeId, field: &str) -> bool {
        field.is_empty() || ty.position(field).is_some()
    }

    #[test]
    fn every_line_says_something_of_what_exists_once_and_shortly() {
        let mut wrong = Vec::new();
        let mut seen = HashSet::new();
        let mut read = 0;
        for Line { group, ty, entry } in lines() {
            read += 1;
            let key = format!("{group}: {}/{ty}.{}", entry.version, entry.field);
            let own = |t: &TypeId| {
                let (g, v) = group_version(t.package());
                (g == group || group == COMMON && ty.contains('*')) && (entry.version.is_empty() || entry.version == v)
            };
            let named = |t: &TypeId| match ty.split_once('*') {
                Some((prefix, suffix)) => Pattern { group, prefix, suffix, entry }.fits(t.name()),
                None => t.name() == ty,
            };
            let known = Schema::builtin().types().any(|t| own(&t) && named(&t) && has(t, entry.field));
            let value = entry.field.is_empty() && VALUES.iter().any(|(_, g, name)| (*g, *name) == (group, ty));
            if !known && !value {
                wrong.push(format!("{key}: names nothing"));
            }
            if entry.text.len() > TEXT_MAX {
                wrong.push(format!("{key}: {} characters", entry.text.len()));
            }
            if entry.text.trim() != entry.text || !entry.text.ends_with('.') {
                wrong.push(format!("{key}: not a sentence"));
            }
            if !seen.insert(key.clone()) {
                wrong.push(format!("{key}: twice"));
            }
        }
        let written: usize =
            FILES.iter().map(|(_, t)| t.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).count()).sum();
        assert_eq!(read, written, "lines that cannot be read");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_stable_type_and_field_is_described() {
        let all = Descriptions::load();
        let mut missing = Vec::new();
        for ty in Schema::builtin().types() {
            let (_, version) = group_version(ty.package());
            if version.contains("alpha") || version.contains("beta") {
                continue;
            }
            if all.of(ty, None).is_none() {
                missing.push(format!("{ty:?}"));
            }
            for field in ty.json_fields().filter(|f| all.of(ty, Some(*f)).is_none()) {
                missing.push(format!("{ty:?}.{}", field.json()));
            }
        }
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }

    #[test]
    fn exact_lines_win_over_inlined_structs_and_patterns() {
        let all = Descriptions::load();
        let of = |package: &str, ty: &str, field: &str| {
            let ty = Schema::builtin().by_name(package, ty).expect("built in");
            all.of(ty, ty.field_by_json(field)).unwrap_or_default()
        };
        let pod = of("k8s.io/api/core/v1", "Pod", "kind");
        assert_eq!(pod, of("k8s.io/apimachinery/pkg/apis/meta/v1", "TypeMeta", "kind"));
        assert!(of("k8s.io/api/core/v1", "Volume", "emptyDir").contains("starts empty"));
        assert!(of("k8s.io/api/core/v1", "PodTemplateSpec", "metadata").contains("selector"));
        // Of one version only.
        assert_ne!(
            of("k8s.io/api/autoscaling/v1", "ObjectMetricSource", "target"),
            of("k8s.io/api/autoscaling/v2", "ObjectMetricSource", "target")
        );
        assert!(all.of_value(Kind::Quantity).is_some_and(|t| t.contains("1Gi")));
    }
}
