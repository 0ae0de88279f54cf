//! Admit: the admission chain around a write. Plugins that do not handle the operation cost nothing.
use kelson_admission::{Attributes, Notes, Operation, OperationOptions};
use kelson_auth::authorize::rbac::RbacResource;
use kelson_meta::{Gvk, Status};
use serde_json::{Value, json};

use crate::catalog::Served;
use crate::shared::context::RequestContext;
use crate::write::draft::Draft;

/// The parameter with which a dry run (`dryRun=All`) asks what admission did; the answer comes as warnings
/// (`docs/admission.md`).
const EXPLAIN: &str = "explainAdmission";

/// What a write shows to admission, apart from the object itself.
pub struct Admission<'a> {
    pub cx: &'a RequestContext,
    pub served: &'a Served,
    /// Kind of the object (a subresource's own, where it has one).
    pub kind: &'a Gvk,
    pub operation: Operation,
    /// Name; empty on create with `generateName`.
    pub name: &'a str,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// Makes the operation's options where the request's body holds them; otherwise they are in its query.
    pub options: Option<&'a (dyn Fn() -> Value + Send + Sync)>,
}

impl Admission<'_> {
    fn attributes<'b>(
        &'b self,
        (object, managed_fields): (Option<Value>, Option<String>),
        old_object: Option<&'b Value>,
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
            explained: self.explained() || self.cx.audited,
            options,
            rounds: Default::default(),
            deadline: Some(self.cx.deadline),
        }
    }
    /// Whether the client of a dry run wants to be told what admission did.
    fn explained(&self) -> bool {
        self.dry_run && self.cx.query.get(EXPLAIN).is_some_and(|v| matches!(v, "" | "true" | "1"))
    }
    fn done(&self, mut notes: Notes) {
        std::mem::take(&mut notes.warnings).into_iter().for_each(|w| self.cx.warn(w));
        if self.explained() {
            notes.explanations().for_each(|told| self.cx.warn(format!("admission: {told}")));
        }
        if let Some(plugin) = notes.refused_by {
            tracing::debug!(plugin, resource = %self.served.gr.resource, name = self.name, "admission refused a request");
        }
        self.cx.notes.lock().absorb(notes);
    }
    /// The options as upstream's handlers give them to admission.
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

    /// The mutating pass; gives the object back, perhaps changed.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn mutate(&self, object: Option<Value>, old: Option<&Value>) -> Result<Option<Value>, Status> {
        let (object, _) = self.pass(Pass::Admit, (object, None), old).await?;
        Ok(object)
    }

    /// The mutating pass of a new object.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn mutate_draft(&self, draft: Draft) -> Result<Draft, Status> {
        self.pass_draft(Pass::Admit, draft).await
    }

    /// The validating pass; gives the object back.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn validate(&self, object: Option<Value>, old: Option<&Value>) -> Result<Option<Value>, Status> {
        let (object, _) = self.pass(Pass::Validate, (object, None), old).await?;
        Ok(object)
    }

    /// The validating pass of a new object.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn validate_draft(&self, draft: Draft) -> Result<Draft, Status> {
        self.pass_draft(Pass::Validate, draft).await
    }

    async fn pass_draft(&self, pass: Pass, draft: Draft) -> Result<Draft, Status> {
        let (value, managed_fields) = self.pass(pass, (Some(draft.value), draft.managed_fields), None).await?;
        Ok(Draft { value: value.unwrap_or_default(), managed_fields })
    }

    /// One pass over an object and the entries beside it.
    async fn pass(
        &self,
        pass: Pass,
        object: (Option<Value>, Option<String>),
        old: Option<&Value>,
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
        self.done(notes);
        outcome.map(|()| given_back)
    }
}

/// The passes of admission.
#[derive(Clone, Copy)]
enum Pass {
    /// Plugins may change the object.
    Admit,
    /// They judge it.
    Validate,
}

/// Nobody grants by a role or a binding what they do not hold.
///
/// # Errors
/// 403.
pub fn escalation(cx: &RequestContext, served: &Served, object: &Value, old: Option<&Value>) -> Result<(), Status> {
    if !served.options().grants_permissions {
        return Ok(());
    }
    let Some(resource) = RbacResource::parse(&served.gr.resource) else { return Ok(()) };
    let server = &cx.server;
    server.auth.rbac.check_escalation(server.authorizer.as_ref(), &cx.user, resource, cx.namespace(served), object, old)
}

/// CONNECT's admission, with the options as its object.
///
/// # Errors
/// The refusal of a plugin.
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
