//! Admit: the admission chain around a write. Plugins that do not handle the operation cost nothing.
use kelson_admission::{Attributes, Notes, Operation};
use kelson_auth::authorize::rbac::RbacResource;
use kelson_meta::{Gvk, Status};
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// What a write shows to admission, apart from the object itself.
pub struct Admission<'a> {
    /// The request.
    pub cx: &'a RequestContext,
    /// Its resource.
    pub served: &'a Served,
    /// Kind of the object (a subresource's own, where it has one).
    pub kind: &'a Gvk,
    /// Operation.
    pub operation: Operation,
    /// Name; empty on create with `generateName`.
    pub name: &'a str,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// The operation's options.
    pub options: Option<&'a Value>,
}

impl Admission<'_> {
    fn attributes<'b>(&'b self, object: Option<Value>, old: Option<&'b Value>) -> Attributes<'b> {
        Attributes {
            operation: self.operation,
            kind: self.kind,
            resource: &self.served.gvr,
            subresource: &self.cx.info.subresource,
            namespace: if self.served.is("", "namespaces") { self.name } else { &self.cx.info.namespace },
            name: self.name,
            object,
            old_object: old,
            user: &self.cx.user,
            dry_run: self.dry_run,
            options: self.options,
        }
    }
    fn done(&self, notes: Notes) {
        notes.warnings.into_iter().for_each(|w| self.cx.warn(w));
    }

    /// The mutating pass; gives the object back, perhaps changed.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn mutate(&self, object: Option<Value>, old: Option<&Value>) -> Result<Option<Value>, Status> {
        let chain = &self.cx.server.admission;
        if !chain.handles(self.operation) {
            return Ok(object);
        }
        let mut notes = Notes::default();
        let mut attributes = self.attributes(object, old);
        let outcome = chain.admit(&mut attributes, &mut notes).await;
        let object = attributes.object.take();
        drop(attributes);
        self.done(notes);
        outcome.map(|()| object)
    }

    /// The validating pass; gives the object back.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn validate(&self, object: Option<Value>, old: Option<&Value>) -> Result<Option<Value>, Status> {
        let chain = &self.cx.server.admission;
        if !chain.handles(self.operation) {
            return Ok(object);
        }
        let mut notes = Notes::default();
        let mut attributes = self.attributes(object, old);
        let outcome = chain.validate(&attributes, &mut notes).await;
        let object = attributes.object.take();
        drop(attributes);
        self.done(notes);
        outcome.map(|()| object)
    }
}

/// Nobody grants by a role or a binding what they do not hold.
///
/// # Errors
/// 403.
pub fn escalation(cx: &RequestContext, served: &Served, object: &Value, old: Option<&Value>) -> Result<(), Status> {
    if served.gr.group != "rbac.authorization.k8s.io" {
        return Ok(());
    }
    let Some(resource) = RbacResource::parse(&served.gr.resource) else { return Ok(()) };
    let server = &cx.server;
    server.auth.rbac.check_escalation(server.authorizer.as_ref(), &cx.user, resource, cx.namespace(served), object, old)
}

/// CONNECT's admission, with the options as its object.
pub async fn connect(cx: &RequestContext, served: &Served, kind: &str, options: Value) -> Result<(), Status> {
    let gvk = Gvk::new("", "v1", kind);
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
