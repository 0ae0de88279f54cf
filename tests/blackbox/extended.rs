//! Invalid input for extended APIs: group versions of other servers, and conversion webhooks, with the usual message of
//! each verb and each failure.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::registry::base64;
use kelson_blackbox::webhook::{Answer, WebhookRequest, WebhookServer};
use kelson_blackbox::{Answer as Response, Needs::Api, Outcome, Raw, Subject, Test, eventually, issuer};
use serde_json::{Value, json};

use crate::definitions::established;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "extended::faults_of_an_api_service", needs: Api, run: faults_of_an_api_service },
        Test { name: "extended::a_server_that_is_not_there", needs: Api, run: a_server_that_is_not_there },
        Test { name: "extended::conversions_that_fail", needs: Api, run: conversions_that_fail },
    ]
}

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const MERGE: &str = "Content-Type: application/merge-patch+json";
const APPLY: &str = "Content-Type: application/apply-patch+yaml";

/// Returns an APIService for a server behind a service with its name; `more` replaces fields of its spec.
fn api_service(group: &str, more: &Value) -> Value {
    let mut spec = json!({"group": group, "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
        "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "far"}});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("v1.{group}")}, "spec": spec})
}

fn faults_of_an_api_service(s: &Subject) -> Outcome {
    let raw = Raw::open(&s.kubectl)?;
    let group = "faults.far.example.com";
    let name = "metadata.name: Invalid value: \"v1.faults.far.example.com\": must be `spec.version+\".\"+spec.group`";
    for (more, why) in [
        (json!({"group": "other"}), format!("{name}: \"v1.other\"")),
        (
            json!({"groupPriorityMinimum": 0, "versionPriority": -1}),
            "[spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000, spec.versionPriority: \
             Invalid value: -1: must be positive and less than 1000]"
                .to_owned(),
        ),
        (
            json!({"service": {"namespace": "", "name": ""}}),
            "[spec.service.namespace: Required value, spec.service.name: Required value]".to_owned(),
        ),
        (
            json!({"service": {"namespace": "default", "name": "far", "port": 70000}}),
            "spec.service.port: Invalid value: 70000: port is not valid: must be between 1 and 65535, inclusive".to_owned(),
        ),
        (
            json!({"caBundle": "AAAA"}),
            "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present".to_owned(),
        ),
        (
            json!({"service": null}),
            "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify"
                .to_owned(),
        ),
        (
            json!({"service": null, "insecureSkipTLSVerify": false, "caBundle": "AAAA"}),
            "spec.caBundle: Invalid value: \"3 bytes\": local APIServices may not have a caBundle".to_owned(),
        ),
    ] {
        let refused = raw.json("POST", SERVICES, &api_service(group, &more))?;
        let wanted = format!("APIService.apiregistration.k8s.io \"v1.{group}\" is invalid: {why}");
        ensure!(refused.code == 422 && refused.message() == wanted, "{}", refused.message());
    }
    let none = format!("{SERVICES}/v1.none.example.com");
    let put = raw.json("PUT", &none, &api_service(group, &json!({})))?;
    let why = format!("the name of the object (v1.{group}) does not match the name on the URL (v1.none.example.com)");
    ensure!(put.code == 400 && put.message() == why, "{}", put.message());
    for (method, header, body) in [("GET", MERGE, ""), ("DELETE", MERGE, ""), ("PATCH", MERGE, "{}")] {
        let missing = raw.send(method, &none, &[header], body.as_bytes())?;
        let why = "apiservices.apiregistration.k8s.io \"v1.none.example.com\" not found";
        ensure!(missing.code == 404 && missing.message() == why, "{method}: {}", missing.message());
    }
    Ok(())
}

fn a_server_that_is_not_there(s: &Subject) -> Outcome {
    let raw = Raw::open(&s.kubectl)?;
    let group = "gone.far.example.com";
    let one = format!("{SERVICES}/v1.{group}");
    let made =
        raw.json("POST", SERVICES, &api_service(group, &json!({"service": {"namespace": "default", "name": "gone"}})))?;
    ensure!(made.code == 201, "{}", made.message());
    let reported = |reason: &str, message: &str| {
        eventually(reason, Duration::from_secs(60), || {
            let now = raw.send("GET", &one, &[], b"")?.json();
            let condition = now["status"]["conditions"][0].clone();
            ensure!(condition["type"] == "Available" && condition["status"] == "False", "{condition}");
            ensure!(condition["reason"] == reason && condition["message"] == message, "{condition}");
            Ok(())
        })
    };
    reported("ServiceNotFound", "service/gone in \"default\" is not present")?;
    let things = format!("/apis/{group}/v1/namespaces/default/things/x");
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        let refused = raw.send(method, &things, &[MERGE], b"{}")?;
        unavailable(&refused).with_context(|| method.to_owned())?;
    }
    unavailable(&raw.send("GET", &format!("/apis/{group}/v1"), &[], b"")?)?;
    unavailable(&raw.send("GET", &format!("/apis/{group}/v1/things?watch=1"), &[], b"")?)?;
    // The group stays in discovery, marked as stale.
    let known = raw.send("GET", &format!("/apis/{group}"), &[], b"")?;
    ensure!(
        known.code == 200 && known.json()["preferredVersion"]["groupVersion"] == format!("{group}/v1"),
        "{}",
        known.code
    );
    let accept = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let all = raw.send("GET", "/apis", &[accept], b"")?.json();
    let groups = all["items"].as_array().context("groups")?;
    let ours = groups.iter().find(|g| g["metadata"]["name"] == group).context("ours")?;
    ensure!(ours["versions"] == json!([{"version": "v1", "freshness": "Stale"}]), "{ours}");

    let conditions = json!({"status": {"conditions": [{"type": "Odd"}]}});
    let odd = raw.send("PATCH", &format!("{one}/status"), &[MERGE], conditions.to_string().as_bytes())?;
    let why =
        "status.conditions[0].status: Unsupported value: \"\": supported values: \"True\", \"False\", \"Unknown\"";
    ensure!(odd.code == 422 && odd.message().ends_with(why), "{} {}", odd.code, odd.message());
    let k = s.kubectl.namespaced("default");
    k.ok(&["create", "service", "clusterip", "gone", "--tcp=80:80"])?;
    reported("ServicePortError", "service/gone in \"default\" is not listening on port 443")?;
    let ports = r#"[{"op": "replace", "path": "/spec/ports", "value": [{"port": 443}]}]"#;
    k.ok(&["patch", "service", "gone", "--type=json", "-p", ports])?;
    k.ok(&["patch", "service", "gone", "--type=merge", "-p", r#"{"spec":{"selector":null}}"#])?;
    eventually("no endpoints", Duration::from_secs(60), || {
        let condition = raw.send("GET", &one, &[], b"")?.json()["status"]["conditions"][0].clone();
        let reason = condition["reason"].as_str().unwrap_or_default();
        // The slices from when it had a selector may still exist, empty.
        ensure!(["EndpointsNotFound", "MissingEndpoints"].contains(&reason), "{condition}");
        Ok(())
    })?;
    unavailable(&raw.send("GET", &things, &[], b"")?)?;
    let renamed = raw.send("PATCH", &one, &[MERGE], br#"{"spec":{"group":"x"}}"#)?;
    ensure!(renamed.code == 422 && renamed.message().ends_with("\"v1.x\""), "{}", renamed.message());
    k.ok(&["delete", "service", "gone"])?;
    ensure!(raw.send("DELETE", &one, &[], b"")?.code == 200, "deleted");
    eventually("nobody's any more", Duration::from_secs(60), || {
        let code = raw.send("GET", &things, &[], b"")?.code;
        ensure!(code == 404, "{code}");
        Ok(())
    })
    .map(drop)
}

/// Checks the answer for a group version whose server is unreachable: plain text, as from a proxy.
fn unavailable(refused: &Response) -> Outcome {
    let body = String::from_utf8_lossy(&refused.body);
    ensure!(refused.code == 503 && body.trim() == "service unavailable", "{} {body}", refused.code);
    Ok(())
}

/// Converts as requested, or with the error that the name of the first object selects.
fn convert(asked: &WebhookRequest) -> Answer {
    let request = &asked.review["request"];
    let mut objects: Vec<Value> = request["objects"].as_array().cloned().unwrap_or_default();
    objects.iter_mut().for_each(|object| object["apiVersion"] = request["desiredAPIVersion"].clone());
    let mut response = json!({"uid": request["uid"], "result": {"status": "Success"}});
    let fault = objects.first().and_then(|o| o["metadata"]["name"].as_str()).unwrap_or_default().to_owned();
    match (fault.as_str(), objects.first_mut()) {
        ("failed", _) => response["result"] = json!({"status": "Failure", "message": "no way"}),
        ("mute", _) => response["result"] = json!({"status": "Failure"}),
        ("uid", _) => response["uid"] = "x".into(),
        ("renamed", Some(object)) => object["metadata"]["name"] = "other".into(),
        ("moved", Some(object)) => object["metadata"]["namespace"] = "other".into(),
        ("version", Some(object)) => object["apiVersion"] = "conv.example.com/v9".into(),
        ("kind", Some(object)) => object["kind"] = "Odd".into(),
        ("label", Some(object)) => object["metadata"]["labels"] = json!({"a": 1}),
        ("fewer", _) => objects.clear(),
        ("error", _) => return Answer::Bytes(500, b"oops".to_vec()),
        ("break", _) => return Answer::Break,
        _ => {}
    }
    response["convertedObjects"] = objects.into();
    let mut review = json!({"apiVersion": asked.review["apiVersion"], "kind": "ConversionReview"});
    if fault != "nothing" {
        review["response"] = response;
    }
    Answer::Json(200, review)
}

/// The message of each failure after `conversion webhook for conv.example.com/VERSION, Kind=Turn`.
const FAULTS: [(&str, &str); 11] = [
    ("failed", "failed: no way"),
    ("mute", "failed: response.result.status was 'Failure', not 'Success'"),
    ("uid", "failed: expected response.uid="),
    ("renamed", "must have the same name: renamed != other"),
    ("moved", "must have the same namespace: default != other"),
    ("version", "invalid groupVersion (expected conv.example.com/v1, received conv.example.com/v9)"),
    ("kind", "invalid kind (expected Turn, received Odd)"),
    ("label", "metadata.labels[a] must be a string, but is int64 in converted object"),
    ("fewer", "returned 0 objects, expected 1"),
    ("nothing", "failed: no response provided"),
    ("error", "failed: an error on the server (\"unknown\") has prevented the request from succeeding"),
];

fn conversions_that_fail(s: &Subject) -> Outcome {
    let issued = issuer::issue(&["localhost"])?;
    let server = WebhookServer::start("127.0.0.1:0", &issued, convert)?;
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let client = json!({"url": format!("https://127.0.0.1:{}/convert", server.port), "caBundle": base64(issued.authority.as_bytes())});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "turns.conv.example.com"}, "spec": {"group": "conv.example.com", "scope": "Namespaced",
            "names": {"plural": "turns", "kind": "Turn"}, "versions": [version("v1", true), version("v2", false)],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}}}});
    let raw = Raw::open(&s.kubectl)?;
    let made = raw.json("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)?;
    ensure!(made.code == 201, "{}", made.message());
    established(s, "turns.conv.example.com")?;
    let path = |version: &str| format!("/apis/conv.example.com/{version}/namespaces/default/turns");
    let object = |version: &str, name: &str| json!({"apiVersion": format!("conv.example.com/{version}"), "kind": "Turn", "metadata": {"name": name}});
    eventually("served", Duration::from_secs(60), || {
        let list = raw.send("GET", &path("v2"), &[], b"")?;
        ensure!(list.code == 200, "{}", list.code);
        Ok(())
    })?;
    for (fault, why) in FAULTS {
        for query in ["", "?dryRun=All"] {
            let refused = raw.json("POST", &format!("{}{query}", path("v2")), &object("v2", fault))?;
            reported(&refused, "v2", why).with_context(|| format!("{fault}{query}"))?;
        }
    }
    let broken = raw.json("POST", &path("v2"), &object("v2", "break"))?;
    let why = format!("failed: Post \"https://127.0.0.1:{}/convert?timeout=30s\": EOF", server.port);
    reported(&broken, "v2", &why)?;

    // A stored object that cannot be converted to the other version.
    let made = raw.json("POST", &path("v1"), &object("v1", "failed"))?;
    ensure!(made.code == 201, "{}", made.message());
    let one = format!("{}/failed", path("v2"));
    let applied = object("v2", "failed").to_string();
    let spec = br#"{"spec":{"a":1}}"#;
    for (method, query, header, body) in [
        ("GET", "", MERGE, &b""[..]),
        ("PUT", "", "Content-Type: application/json", applied.as_bytes()),
        ("PATCH", "", MERGE, &spec[..]),
        ("PATCH", "", "Content-Type: application/json-patch+json", &b"[]"[..]),
        ("PATCH", "?fieldManager=x", APPLY, applied.as_bytes()),
        ("DELETE", "", MERGE, &b""[..]),
    ] {
        let refused = raw.send(method, &format!("{one}{query}"), &[header], body)?;
        reported(&refused, "v1", "failed: no way").with_context(|| format!("{method} {header}"))?;
    }
    reported(&raw.send("GET", &path("v2"), &[], b"")?, "v1", "failed: no way")?;
    let there = raw.send("GET", &format!("{}/failed", path("v1")), &[], b"")?;
    ensure!(there.code == 200, "it is still there in its own version: {}", there.code);
    s.kubectl.ok(&["delete", "crd", "turns.conv.example.com"]).map(drop)
}

/// Checks that a failed conversion is a 500 without a reason.
fn reported(refused: &Response, version: &str, why: &str) -> Outcome {
    let whose = format!("conversion webhook for conv.example.com/{version}, Kind=Turn ");
    let (status, message) = (refused.json(), refused.message());
    ensure!(refused.code == 500 && message.starts_with(&whose) && message.contains(why), "{} {message}", refused.code);
    ensure!(status["status"] == "Failure" && status["reason"].is_null() && status["details"].is_null(), "{status}");
    Ok(())
}
