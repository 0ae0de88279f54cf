//! Admit: runs the admission chain for a write. Plugins that do not handle the operation cost nothing.
use kelson_admission::{Attributes, LazyObject, Notes, OldObject, Operation, OperationOptions};
use kelson_auth::authorize::rbac::RbacResource;
use kelson_meta::{Gvk, Status};
use serde_json::{Value, json};

use crate::catalog::Served;
use crate::shared::context::RequestContext;
use crate::write::draft::Draft;

/// Query parameter of a dry run (`dryRun=All`) that asks what admission did. The response comes as warnings (`docs/admission.md`).
const EXPLAIN: &str = "explainAdmission";

/// The data that a write passes to admission, besides the object itself.
pub struct Admission<'a> {
    pub cx: &'a RequestContext,
    pub served: &'a Served,
    /// Kind of the object; that of the subresource if it has its own.
    pub kind: &'a Gvk,
    pub operation: Operation,
    /// Name; empty on create with `generateName`.
    pub name: &'a str,
    /// Whether nothing is stored.
    pub dry_run: bool,
    /// Builds the operation's options if they are in the request's body; otherwise they are in the query.
    pub options: Option<&'a (dyn Fn() -> Value + Send + Sync)>,
}

impl Admission<'_> {
    fn attributes<'b>(
        &'b self,
        (object, managed_fields): (Option<Value>, Option<String>),
        old_object: Option<OldObject<'b>>,
        options: OperationOptions<'b>,
    ) -> Attributes<'b> {
        Attributes {
            operation: self.operation,
            kind: self.kind,
            resource: &self.served.gvr,
            subresource: &self.cx.info.subresource,
            namespace: if self.served.options().is_namespace() { self.name } else { &self.cx.info.namespace },
            name: self.name,
            object,
            managed_fields,
            old_object,
            user: &self.cx.user,
            dry_run: self.dry_run,
            explained: self.wants_explanation() || self.cx.audited,
            options,
            rounds: Default::default(),
            deadline: Some(self.cx.deadline),
        }
    }
    /// Whether the client of a dry run asked what admission did.
    fn wants_explanation(&self) -> bool {
        self.dry_run && self.cx.query.get(EXPLAIN).is_some_and(|v| matches!(v, "" | "true" | "1"))
    }
    fn record_notes(&self, mut notes: Notes) {
        std::mem::take(&mut notes.warnings).into_iter().for_each(|w| self.cx.warn(w));
        if self.wants_explanation() {
            notes.explanations().for_each(|text| self.cx.warn(format!("admission: {text}")));
        }
        if let Some(plugin) = notes.refused_by {
            tracing::debug!(plugin, resource = %self.served.gr.resource, name = self.name, "admission rejected a request");
        }
        self.cx.notes.lock().absorb(notes);
    }
    /// The options in the form in which upstream's handlers pass them to admission.
    fn options(&self) -> Value {
        if let Some(make) = self.options {
            return make();
        }
        let kind = match self.operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
            Operation::Connect => return Value::Null,
        };
        let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        let dry_run: Vec<&str> = self.cx.query.all("dryRun").filter(|v| !v.is_empty()).collect();
        if !dry_run.is_empty() {
            options["dryRun"] = json!(dry_run);
        }
        for field in ["fieldManager", "fieldValidation"] {
            let text = self.cx.query.text(field);
            if !text.is_empty() && self.operation != Operation::Delete {
                options[field] = text.into();
            }
        }
        options
    }

    /// Runs the mutating plugins and returns the object, possibly changed.
    ///
    /// # Errors
    /// A plugin rejects the request.
    pub async fn mutate(&self, object: Option<Value>, old: Option<&Value>) -> Result<Option<Value>, Status> {
        let (object, _) = self.pass(Pass::Admit, (object, None), old.map(OldObject::Parsed)).await?;
        Ok(object)
    }

    /// Runs the mutating plugins on a new object.
    ///
    /// # Errors
    /// A plugin rejects the request.
    pub async fn mutate_draft(&self, draft: Draft) -> Result<Draft, Status> {
        self.pass_draft(Pass::Admit, draft).await
    }

    /// Runs the validating plugins and returns the object.
    ///
    /// # Errors
    /// A plugin rejects the request.
    pub async fn validate(&self, object: Option<Value>, old: Option<&Value>) -> Result<Option<Value>, Status> {
        let (object, _) = self.pass(Pass::Validate, (object, None), old.map(OldObject::Parsed)).await?;
        Ok(object)
    }

    /// Runs the validating plugins on a new object.
    ///
    /// # Errors
    /// A plugin rejects the request.
    pub async fn validate_draft(&self, draft: Draft) -> Result<Draft, Status> {
        self.pass_draft(Pass::Validate, draft).await
    }

    /// Runs all plugins on the deletion of an object, which is parsed only if one of them reads it.
    ///
    /// # Errors
    /// A plugin rejects the request.
    pub async fn check_delete(&self, old: &LazyObject) -> Result<(), Status> {
        for pass in [Pass::Admit, Pass::Validate] {
            self.pass(pass, (None, None), Some(OldObject::Lazy(old))).await?;
        }
        Ok(())
    }

    async fn pass_draft(&self, pass: Pass, draft: Draft) -> Result<Draft, Status> {
        let (value, managed_fields) = self.pass(pass, (Some(draft.value), draft.managed_fields), None).await?;
        Ok(Draft { value: value.unwrap_or_default(), managed_fields })
    }

    /// Runs one phase on an object and its separate `managedFields`.
    async fn pass(
        &self,
        pass: Pass,
        object: (Option<Value>, Option<String>),
        old: Option<OldObject<'_>>,
    ) -> Result<(Option<Value>, Option<String>), Status> {
        let chain = &self.cx.server.admission;
        if !chain.handles(self.operation) {
            return Ok(object);
        }
        let mut notes = Notes::default();
        let make = || self.options();
        let options = if self.operation == Operation::Connect {
            OperationOptions::default()
        } else {
            OperationOptions::new(&make)
        };
        let mut attributes = self.attributes(object, old, options);
        let outcome = match pass {
            Pass::Admit => chain.admit(&mut attributes, &mut notes).await,
            Pass::Validate => chain.validate(&attributes, &mut notes).await,
        };
        let given_back = (attributes.object.take(), attributes.managed_fields.take());
        drop(attributes);
        self.record_notes(notes);
        outcome.map(|()| given_back)
    }
}

/// The phases of admission.
#[derive(Clone, Copy)]
enum Pass {
    /// Plugins may change the object.
    Admit,
    /// Plugins may only reject it.
    Validate,
}

/// Checks that a role or binding grants nothing that its writer does not have (privilege escalation).
///
/// # Errors
/// 403 if it does.
pub fn check_escalation(
    cx: &RequestContext,
    served: &Served,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if !served.options().grants_permissions {
        return Ok(());
    }
    let Some(resource) = RbacResource::parse(&served.gr.resource) else { return Ok(()) };
    let server = &cx.server;
    server.auth.rbac.check_escalation(server.authorizer.as_ref(), &cx.user, resource, cx.namespace(served), object, old)
}

/// Admission of CONNECT requests, with the options as the object.
///
/// # Errors
/// A plugin rejects the request.
pub async fn connect(cx: &RequestContext, served: &Served, kind: &str, mut options: Value) -> Result<(), Status> {
    let gvk = Gvk::new("", "v1", kind);
    options["kind"] = kind.into();
    options["apiVersion"] = "v1".into();
    let admission = Admission {
        cx,
        served,
        kind: &gvk,
        operation: Operation::Connect,
        name: &cx.info.name,
        dry_run: false,
        options: None,
    };
    let object = admission.mutate(Some(options), None).await?;
    admission.validate(object, None).await.map(|_| ())
}
