//! Common to `/statusz` and `/flagz`: chooses the form of the response, a text page or a versioned object (KEP-4827, KEP-4828,
//! `component-base/zpages`).
use http::{HeaderValue, StatusCode};
use kelson_meta::Status;
use serde_json::{Value, json};

use crate::request::answer::{Answer, answer, warning};
use crate::request::body::ApiBody;
use crate::shared::context::RequestContext;

const GROUP: &str = "config.k8s.io";
const COMPONENT: &str = "apiserver";
const OFFERED: [&str; 3] = ["application/json", "application/yaml", "text/plain"];

/// One page with its forms.
pub(super) struct Zpage {
    /// Name in paths and messages: `statusz`.
    pub(super) name: &'static str,
    /// Kind of its object.
    pub(super) kind: &'static str,
}

enum PageForm {
    Text,
    /// Media type and version of the kind.
    Kind(&'static str, &'static str),
}

impl Zpage {
    /// The first supported form in an `Accept` header.
    fn form(&self, accept: &str) -> Option<PageForm> {
        if accept.is_empty() {
            return Some(PageForm::Text);
        }
        accept.split(',').find_map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next()?;
            let given: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
            let asked = |name: &str| given.iter().find(|(n, _)| *n == name).map_or("", |(_, value)| *value);
            let version = ["v1beta1", "v1alpha1"].into_iter().find(|v| *v == asked("v"));
            let version = version.filter(|_| asked("g") == GROUP && asked("as") == self.kind);
            match media {
                "*/*" | "text/*" | "text/plain" => Some(PageForm::Text),
                "application/json" => version.map(|v| PageForm::Kind("application/json", v)),
                "application/yaml" => version.map(|v| PageForm::Kind("application/yaml", v)),
                _ => None,
            }
        })
    }

    /// Answers in the first supported form in `Accept`: `text` after the page's head, or an object with `fields`.
    ///
    /// # Errors
    /// 406 if none is supported.
    pub(super) fn serve(
        &self,
        cx: &RequestContext,
        text: impl FnOnce() -> String,
        fields: impl FnOnce() -> Value,
    ) -> Result<Answer, Status> {
        let accept = cx.headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        match self.form(accept).ok_or_else(|| Status::not_acceptable(&OFFERED))? {
            PageForm::Text => {
                let head = format!(
                    "\n{COMPONENT} {}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
                     compatibility guarantees and is for debugging purposes only.\n",
                    self.name
                );
                Ok(answer(StatusCode::OK, "text/plain; charset=utf-8", ApiBody::full(head + &text())))
            }
            PageForm::Kind(media, version) => self.object(media, version, fields()),
        }
    }

    fn object(&self, media: &'static str, version: &str, mut object: Value) -> Result<Answer, Status> {
        object["kind"] = self.kind.into();
        object["apiVersion"] = format!("{GROUP}/{version}").into();
        object["metadata"] = json!({"name": COMPONENT});
        let encoding = match media {
            "application/yaml" => kelson_codec::Encoding::Yaml,
            _ => kelson_codec::Encoding::Json,
        };
        let bytes = kelson_codec::encode(encoding, None, &object).map_err(|e| Status::internal(e.to_string()))?;
        let mut made = answer(StatusCode::OK, media, ApiBody::full(bytes));
        if let Ok(kind) = HeaderValue::from_str(&format!("{media};g={GROUP};v={version};as={}", self.kind)) {
            made.headers_mut().insert(http::header::CONTENT_TYPE, kind);
        }
        let old = format!("This version of the {} endpoint is deprecated. Please use a newer version.", self.name);
        if version == "v1alpha1"
            && let Some(text) = warning(&old)
        {
            made.headers_mut().append(http::header::WARNING, text);
        }
        Ok(made)
    }
}
