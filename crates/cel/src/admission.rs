//! The environments of admission expressions, which are those of match conditions and of validating and mutating policies (upstream
//! `k8s.io/apiserver/pkg/admission/plugin/cel`).
use std::sync::OnceLock;

use crate::types::decl::{DeclType, Format, ListKind};
use crate::types::ty::Type;
use crate::{Env, EnvBuilder, Program, authorizer_type, request_resource_type};

/// The variables and types that an expression may use in addition to the objects, the request and its namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Whether `params` is a variable: the policy has a `paramKind`.
    pub params: bool,
    /// Whether `authorizer` is a variable, which checks the user's permissions.
    pub authorizer: bool,
    /// Whether mutations can be constructed: `Object{…}` and `JSONPatch{…}`.
    pub mutations: bool,
}

/// The environment of an extent, without the variable `variables`.
pub fn env(extent: Extent) -> &'static Env {
    static ENVS: [OnceLock<Env>; 8] = [const { OnceLock::new() }; 8];
    let Extent { params, authorizer, mutations } = extent;
    let place = usize::from(params) | usize::from(authorizer) << 1 | usize::from(mutations) << 2;
    ENVS[place].get_or_init(|| {
        let mut builder: EnvBuilder = Env::builder()
            .typed("object", Type::Dyn)
            .typed("oldObject", Type::Dyn)
            .variable("namespaceObject", &namespace())
            .variable("request", &request());
        if params {
            builder = builder.typed("params", Type::Dyn);
        }
        if authorizer {
            builder = builder
                .typed("authorizer", authorizer_type())
                .typed("authorizer.requestResource", request_resource_type());
        }
        if mutations {
            builder = builder.mutations();
        }
        builder.build()
    })
}

/// Compiles an expression whose value must be of one of the types `wanted`.
///
/// # Errors
/// Returns the message for the cause of a 422 response.
pub fn compile(env: &Env, source: &str, wanted: &[Type]) -> Result<Program, String> {
    let program = env.compile(source).map_err(|e| match e {
        crate::CompileError::Issues { .. } => format!("compilation failed: {e}"),
        crate::CompileError::Instantiation(_) => format!("program instantiation failed: {e}"),
    })?;
    let found = program.output_type();
    match wanted {
        wanted if wanted.contains(found) => Ok(program),
        [one] => Err(format!("must evaluate to {one} but got {found}")),
        many => {
            let name = |ty: &Type| if *ty == Type::Null { "null_type".to_owned() } else { ty.to_string() };
            let many: Vec<String> = many.iter().map(name).collect();
            Err(format!("must evaluate to one of [{}] but got {found}", many.join(" ")))
        }
    }
}

fn string() -> DeclType {
    DeclType::string(None)
}

fn strings() -> DeclType {
    DeclType::list(string(), None, ListKind::Atomic)
}

fn request() -> DeclType {
    let named = |name: &str, last: &str| {
        let fields = [("group", string(), true), ("version", string(), true), (last, string(), true)];
        DeclType::object_named(name, fields)
    };
    let kind = || named("kubernetes.GroupVersionKind", "kind");
    let resource = || named("kubernetes.GroupVersionResource", "resource");
    let user = [
        ("username", string(), false),
        ("uid", string(), false),
        ("groups", strings(), false),
        ("extra", DeclType::map(strings(), None), false),
    ];
    let fields = [
        ("kind", kind(), true),
        ("resource", resource(), true),
        ("subResource", string(), false),
        ("requestKind", kind(), true),
        ("requestResource", resource(), true),
        ("requestSubResource", string(), false),
        ("name", string(), true),
        ("namespace", string(), false),
        ("operation", string(), true),
        ("userInfo", DeclType::object_named("kubernetes.UserInfo", user), true),
        ("dryRun", DeclType::bool(), false),
        ("options", DeclType::dynamic(), false),
    ];
    DeclType::object_named("kubernetes.AdmissionRequest", fields)
}

fn namespace() -> DeclType {
    let time = || DeclType::timestamp(Format::DateTime);
    let text_map = || DeclType::map(string(), None);
    let condition = [
        ("status", string(), true),
        ("type", string(), true),
        ("lastTransitionTime", time(), true),
        ("message", string(), true),
        ("reason", string(), true),
    ];
    let conditions =
        DeclType::list(DeclType::object_named("kubernetes.NamespaceCondition", condition), None, ListKind::Atomic);
    let metadata = [
        ("name", string(), true),
        ("generateName", string(), true),
        ("namespace", string(), true),
        ("labels", text_map(), true),
        ("annotations", text_map(), true),
        ("UID", string(), true),
        ("creationTimestamp", time(), true),
        ("deletionGracePeriodSeconds", DeclType::int(), true),
        ("deletionTimestamp", time(), true),
        ("generation", DeclType::int(), true),
        ("resourceVersion", string(), true),
        ("finalizers", strings(), true),
    ];
    let spec = [("finalizers", strings(), true)];
    let status = [("conditions", conditions, true), ("phase", string(), true)];
    let fields = [
        ("metadata", DeclType::object_named("kubernetes.NamespaceMetadata", metadata), true),
        ("spec", DeclType::object_named("kubernetes.NamespaceSpec", spec), true),
        ("status", DeclType::object_named("kubernetes.NamespaceStatus", status), true),
    ];
    DeclType::object_named("kubernetes.Namespace", fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_named() {
        let compiled = |extent: Extent, source: &str| compile(env(extent), source, &[Type::Bool]).map(drop);
        let plain = Extent::default();
        let all = Extent { params: true, authorizer: true, mutations: false };
        for good in [
            "object.spec.replicas <= 5",
            "oldObject == null || object.x == oldObject.x",
            "request.userInfo.groups.exists(g, g == 'a')",
            "request.operation == 'CREATE' && request.kind.group == 'apps'",
            "namespaceObject.metadata.labels['env'] == 'prod'",
        ] {
            assert_eq!(compiled(plain, good), Ok(()), "{good}");
        }
        assert_eq!(compiled(all, "params.max >= object.spec.replicas"), Ok(()));
        for bad in
            ["params.max == 1", "authorizer.path('/x').check('get').allowed()", "request.unknown == ''", "self.x"]
        {
            assert!(compiled(plain, bad).unwrap_err().starts_with("compilation failed: ERROR: <input>:1:"), "{bad}");
        }
        assert_eq!(compiled(plain, "'text'").unwrap_err(), "must evaluate to bool but got string");
        let texts = compile(env(plain), "1", &[Type::String, Type::Null]).unwrap_err();
        assert_eq!(texts, "must evaluate to one of [string null_type] but got int");
    }
}
