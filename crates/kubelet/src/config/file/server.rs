//! Fields about the kubelet's server: listening address, certificates, authentication, authorization, handlers.
use std::net::{IpAddr, SocketAddr};

use super::fields::Fields;
use super::{FileSettings, HEALTHZ_PORT, Layer, PORT_DEFAULT};

/// Largest port number.
const PORT_MAX: i64 = 65_535;

impl Layer<'_> {
    pub(super) fn server(&mut self, f: &mut Fields<'_>, laid: &mut FileSettings) {
        let faults = &mut *self.faults;
        let mut address = self.config.server.listen;
        if let Some(text) = f.string("address", faults) {
            match text.parse::<IpAddr>() {
                Ok(ip) => address = Some(SocketAddr::new(ip, address.map_or(PORT_DEFAULT, |a| a.port()))),
                Err(_) => faults.invalid(&f.at("address"), text, "must be an IP address"),
            }
        }
        // In the published form, which kubeadm writes, zero means unset.
        if let Some(port) = f.integer("port", (0, PORT_MAX), faults).filter(|p| *p > 0) {
            let port = u16::try_from(port).unwrap_or(PORT_DEFAULT);
            address = Some(SocketAddr::new(address.map_or(IpAddr::from([0, 0, 0, 0]), |a| a.ip()), port));
        }
        self.config.server.listen = address;
        self.healthz(f);
        let faults = &mut *self.faults;
        if f.boolean("enableServer", faults) == Some(false) {
            self.config.server.listen = None;
        }
        if f.integer("readOnlyPort", (0, PORT_MAX), faults).is_some_and(|p| p > 0) {
            faults.forbidden(&f.at("readOnlyPort"), "a port without authentication is not supported");
        }
        if let Some(limit) = f.duration("streamingConnectionIdleTimeout", faults).filter(|t| !t.is_zero()) {
            self.config.server.streaming_idle = limit;
        }
        let server = &mut self.config.server;
        server.debugging_handlers = f.boolean("enableDebuggingHandlers", faults).unwrap_or(server.debugging_handlers);
        server.system_logs = f.boolean("enableSystemLogHandler", faults).unwrap_or(server.system_logs);
        server.system_log_query = f.boolean("enableSystemLogQuery", faults).unwrap_or(server.system_log_query);
        if server.system_log_query && !server.system_logs {
            faults.forbidden(&f.at("enableSystemLogQuery"), "enableSystemLogHandler is required");
        }
        let cert = f.string("tlsCertFile", faults);
        let key = f.string("tlsPrivateKeyFile", faults);
        match (cert, key) {
            (Some(c), Some(k)) => self.config.server.tls_files = Some((c.into(), k.into())),
            (Some(_), None) => faults.required(&f.at("tlsPrivateKeyFile"), "must be set together with tlsCertFile"),
            (None, Some(_)) => faults.required(&f.at("tlsCertFile"), "must be set together with tlsPrivateKeyFile"),
            (None, None) => {}
        }
        let tls_bootstrap = &mut self.config.server.tls_bootstrap;
        *tls_bootstrap = f.boolean("serverTLSBootstrap", faults).unwrap_or(*tls_bootstrap);
        self.authentication(f, laid);
    }

    /// Reads address and port of the `healthz` endpoint. Port 0 disables it. If the file sets only one of the two, the other keeps its
    /// value.
    fn healthz(&mut self, f: &mut Fields<'_>) {
        let faults = &mut *self.faults;
        let ip = f.string("healthzBindAddress", faults).map(|text| (text, text.parse::<IpAddr>()));
        let port = f.integer("healthzPort", (0, PORT_MAX), faults);
        let before = self.config.server.healthz;
        let ip = match ip {
            Some((_, Ok(ip))) => Some(ip),
            Some((text, Err(_))) => return faults.invalid(&f.at("healthzBindAddress"), text, "must be an IP address"),
            None => None,
        };
        if ip.is_none() && port.is_none() {
            return;
        }
        let ip = ip.or(before.map(|at| at.ip())).unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let port = port.and_then(|p| u16::try_from(p).ok()).unwrap_or(HEALTHZ_PORT);
        self.config.server.healthz = (port > 0).then_some(SocketAddr::new(ip, port));
    }

    fn authentication(&mut self, f: &mut Fields<'_>, laid: &mut FileSettings) {
        let faults = &mut *self.faults;
        let mut authentication = f.below("authentication", faults);
        let mut x509 = authentication.below("x509", faults);
        laid.client_ca_file = x509.string("clientCAFile", faults).map(Into::into);
        x509.finish(&[], faults);
        let mut anonymous = authentication.below("anonymous", faults);
        if anonymous.boolean("enabled", faults) == Some(true) {
            faults.forbidden(&anonymous.at("enabled"), "anonymous requests are not supported");
        }
        anonymous.finish(&[], faults);
        let mut webhook = authentication.below("webhook", faults);
        let reviews = &mut self.config.server.reviews;
        reviews.takes_tokens = webhook.boolean("enabled", faults).unwrap_or(reviews.takes_tokens);
        reviews.token_for = webhook.duration("cacheTTL", faults).unwrap_or(reviews.token_for);
        webhook.finish(&[], faults);
        authentication.finish(&[], faults);
        let mut authorization = f.below("authorization", faults);
        if let Some(mode) = authorization.string("mode", faults).filter(|m| *m != "Webhook") {
            faults.not_supported(&authorization.at("mode"), mode, &["Webhook"]);
        }
        let mut webhook = authorization.below("webhook", faults);
        reviews.allowed_for = webhook.duration("cacheAuthorizedTTL", faults).unwrap_or(reviews.allowed_for);
        reviews.denied_for = webhook.duration("cacheUnauthorizedTTL", faults).unwrap_or(reviews.denied_for);
        webhook.finish(&[], faults);
        authorization.finish(&[], faults);
    }
}
