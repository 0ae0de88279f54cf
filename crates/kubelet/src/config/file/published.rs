//! Fields about static pods that are published at a URL.
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

use super::Layer;
use super::fields::Fields;
use crate::config::PublishedPods;

/// Default of `httpCheckFrequency`.
const LOOK_EVERY: Duration = Duration::from_secs(20);

impl Layer<'_> {
    pub(super) fn published(&mut self, f: &mut Fields<'_>) {
        let url = f.string("staticPodURL", self.faults);
        let every = f.duration("httpCheckFrequency", self.faults);
        let headers = self.headers(f);
        let Some(url) = url else {
            let idle = [
                ("httpCheckFrequency", every.is_some_and(|every| every != LOOK_EVERY)),
                ("staticPodURLHeader", !headers.is_empty()),
            ];
            self.ignored.extend(idle.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| f.at(name).to_string()));
            return;
        };
        let scheme = url.parse::<Uri>().ok().and_then(|u| u.host().and(u.scheme_str().map(str::to_owned)));
        if !matches!(scheme.as_deref(), Some("http" | "https")) {
            self.faults.invalid(&f.at("staticPodURL"), url, "must be a URL with scheme http or https");
        }
        let (url, every) = (url.to_owned(), every.unwrap_or(LOOK_EVERY));
        self.config.published_pods = Some(PublishedPods { url, headers, every });
    }

    /// Reads `staticPodURLHeader`. Errors do not show values, because they may be secret.
    fn headers(&mut self, f: &mut Fields<'_>) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let by_name = f.below("staticPodURLHeader", self.faults);
        let at = f.at("staticPodURLHeader");
        for (name, values) in by_name.lists(self.faults) {
            if HeaderName::try_from(name).is_err() {
                self.faults.invalid(&at.key(name), name, "must be a valid HTTP header name");
            }
            for value in values {
                match HeaderValue::try_from(value) {
                    Ok(_) => found.push((name.to_owned(), value.to_owned())),
                    Err(_) => self.faults.invalid(&at.key(name), "<masked>", "must be a valid HTTP header value"),
                }
            }
        }
        found
    }
}
