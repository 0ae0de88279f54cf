//! The parameters of a binding: one object by name, or several by their labels (upstream `generic.CollectParams`).
use kelson_meta::tree::path::strings;
use kelson_meta::{Gvr, LabelSelector};
use serde_json::Value;

use super::policy::{Binding, ParamRef, Policy};
use crate::{Attributes, Dependencies};

/// Returns the parameters with which a policy is evaluated, once each; `None` among them means no parameters. The outer
/// error is one of the policy, the inner one of the binding.
///
/// # Errors
/// The policy or its binding is invalid; upstream's message.
pub async fn collect(
    policy: &Policy,
    binding: &Binding,
    a: &Attributes<'_>,
    d: &Dependencies,
) -> Result<Vec<Option<Value>>, String> {
    let (Some(kind), Some(reference)) = (&policy.param_kind, &binding.params) else { return Ok(vec![None]) };
    let found = d.kinds.resources(&kind.api_version(), &kind.kind).into_iter().next();
    let (resource, namespaced) = found.ok_or_else(|| format!("paramKind kind `{kind}` not known"))?;
    let namespace = match (namespaced, reference.namespace.as_str()) {
        (false, "") => "",
        (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned()),
        (true, "") if a.namespace.is_empty() || a.is("", "namespaces") => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, "") => a.namespace,
        (true, given) => given,
    };
    let stored = stored(reference, &resource, namespace, d)?;
    if stored.is_empty() && reference.required {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let mut params = Vec::with_capacity(stored.len());
    for object in stored {
        params.push(Some(d.versions.serve(&resource, object).await.map_err(|s| s.message)?));
    }
    Ok(params)
}

fn stored(reference: &ParamRef, resource: &Gvr, namespace: &str, d: &Dependencies) -> Result<Vec<Value>, String> {
    let own = |tree: std::sync::Arc<Value>| std::sync::Arc::unwrap_or_clone(tree);
    let (group, plural) = (resource.group.as_str(), resource.resource.as_str());
    if let Some(why) = d.objects.unreadable(group, plural) {
        return Err(format!("failed to read params: {why}"));
    }
    match &reference.selector {
        None if reference.name.is_empty() => Err("one of name or selector must be provided".to_owned()),
        None => Ok(d.objects.tree(group, plural, namespace, &reference.name).map(own).into_iter().collect()),
        Some(_) if !reference.name.is_empty() => {
            Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned())
        }
        Some(selector) => {
            let selector = selector.as_ref().map_err(Clone::clone)?;
            let all = d.objects.trees(group, plural, namespace).into_iter();
            Ok(all.filter(|object| selected(selector, object)).map(own).collect())
        }
    }
}

fn selected(selector: &LabelSelector, object: &Value) -> bool {
    let labels: Vec<(&str, &str)> = strings(object, &["metadata", "labels"]).collect();
    selector.matches_with(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
}
