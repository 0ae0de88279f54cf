//! Removes duplicate owner references and warns the client, as upstream's handlers do before and after mutating admission.
use serde_json::Value;

/// When duplicates are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupStage {
    /// The object that the client sent.
    Sent,
    /// The object after mutating admission.
    Admitted,
}

/// Removes duplicate references. Returns a warning if there were any.
pub fn deduplicate(object: &mut Value, when: DedupStage) -> Option<String> {
    let list = object.get_mut("metadata")?.get_mut("ownerReferences")?.as_array_mut()?;
    if list.len() < 2 {
        return None;
    }
    let mut repeated = Vec::new();
    let mut kept: Vec<Value> = Vec::with_capacity(list.len());
    for reference in list.drain(..) {
        if kept.contains(&reference) {
            repeated.push(reference["uid"].as_str().unwrap_or("").to_owned());
        } else {
            kept.push(reference);
        }
    }
    *list = kept;
    if repeated.is_empty() {
        return None;
    }
    let after = if when == DedupStage::Admitted { " after mutating admission happens" } else { "" };
    Some(format!(
        ".metadata.ownerReferences contains duplicate entries{after}; API server dedups owner references in 1.20+, and may \
         reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        repeated.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_of_equal_references_stays() {
        let one = json!({"uid": "u", "kind": "A", "name": "a"});
        let other = json!({"uid": "u", "kind": "B", "name": "a"});
        let mut object = json!({"metadata": {"ownerReferences": [one, other, one]}});
        let warning = deduplicate(&mut object, DedupStage::Sent).expect("a warning");
        assert!(warning.ends_with("please fix your requests; duplicate UID(s) observed: u"), "{warning}");
        assert_eq!(object["metadata"]["ownerReferences"], json!([one, other]));
        assert_eq!(deduplicate(&mut object, DedupStage::Admitted), None);
        let mut object = json!({"metadata": {"ownerReferences": [one, one]}});
        let warning = deduplicate(&mut object, DedupStage::Admitted).expect("a warning");
        assert!(warning.contains("duplicate entries after mutating admission happens;"), "{warning}");
        assert_eq!(deduplicate(&mut json!({"metadata": {}}), DedupStage::Sent), None);
    }
}
