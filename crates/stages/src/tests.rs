//! Tests with stages as users write them, on objects from the API.
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::step::PatchFormat;
use crate::{Effect, Lifecycle, Stage, Surroundings, Templates, read};

const NOW: &str = "2026-01-02T03:04:05.12Z";

struct Around;

impl Surroundings for Around {
    fn now(&self) -> Timestamp {
        NOW.parse().unwrap()
    }
    fn started(&self) -> Timestamp {
        "2026-01-02T03:00:00Z".parse().unwrap()
    }
    fn version(&self) -> String {
        "v1".to_owned()
    }
    fn node_ip(&self) -> String {
        "10.0.0.9".to_owned()
    }
    fn node_name(&self) -> String {
        "host".to_owned()
    }
    fn node_port(&self) -> u16 {
        10247
    }
    fn node_ips(&self, node: &str) -> Vec<String> {
        if node == "n" { vec!["10.1.0.1".to_owned(), "fd00::1".to_owned()] } else { Vec::new() }
    }
    fn pod_ips(&self, _: &str) -> Vec<String> {
        vec!["10.2.0.1".to_owned()]
    }
}

fn templates() -> Templates {
    let around: Arc<dyn Surroundings> = Arc::new(Around);
    Templates::new(&around)
}

fn rendered(template: &str, object: &Value) -> Result<Value, String> {
    let template = templates().compile(template).map_err(|e| e.to_string())?;
    template.render(object).map_err(|e| e.to_string())
}

fn stages(text: &str) -> Vec<Arc<Stage>> {
    let stages = read(text).unwrap().stages;
    stages.iter().filter_map(|s| Stage::compile(s, &templates()).unwrap()).map(Arc::new).collect()
}

#[test]
fn functions_of_templates() {
    let object = json!({"apiVersion": "v1", "metadata": {"name": "pod", "labels": {"a": "b"}},
        "spec": {"nodeName": "n", "containers": [{"name": "x"}, {"name": "y"}], "n": 3}, "status": {"capacity": {"cpu": "2", "pods": 10}}});
    for (template, expected) in [
        ("a: {{ Now }}", json!({"a": NOW})),
        ("a: {{ StartTime | Quote }}", json!({"a": "2026-01-02T03:00:00Z"})),
        ("a: {{ Version }}", json!({"a": "v1"})),
        ("a: {{ .metadata.name | Quote }}", json!({"a": "pod"})),
        ("a: {{ .status.capacity | Quote }}", json!({"a": "{\"cpu\":\"2\",\"pods\":10}"})),
        ("a: {{ .metadata.absent | Quote }}", json!({"a": "null"})),
        ("a:\n{{ YAML .status.capacity 1 }}", json!({"a": {"cpu": "2", "pods": 10}})),
        ("a:\n  b:\n{{ YAML .spec.containers 2 }}", json!({"a": {"b": [{"name": "x"}, {"name": "y"}]}})),
        ("a: {{ index . \"spec\" \"n\" }}", json!({"a": 3})),
        ("a: {{ with .absent }}x{{ else }}z{{ end }}", json!({"a": "z"})),
        (
            "{{ $r := . }}{{ range $i, $c := .spec.containers }}{{ $c.name }}{{ $i }}: {{ $r.spec.n }}\n{{ end }}",
            json!({"x0": 3, "y1": 3}),
        ),
        ("a: {{ or .status.absent.deeper `\"\"` }}", json!({"a": ""})),
        ("a: {{ if eq .spec.restartPolicy \"Always\" }}x{{ end }}", json!({"a": null})),
        ("a: {{ if eq .spec.n 3 }}x{{ end }}", json!({"a": "x"})),
        ("a: {{ (index NodeConditions 0).type }} {{ len NodeConditions }}", json!({"a": "Ready 5"})),
        ("a: {{ NodeIP }} {{ NodeName }} {{ NodePort }}", json!({"a": "10.0.0.9 host 10247"})),
        ("a: {{ NodeIPWith .spec.nodeName }} {{ NodeIPWith \"other\" }}", json!({"a": "10.1.0.1 10.0.0.9"})),
        ("a: {{ NodeIPsWith .spec.nodeName | toJson }}", json!({"a": ["10.1.0.1", "fd00::1"]})),
        (
            "a: {{ PodIPWith \"n\" false \"u\" \"p\" \"s\" }} {{ PodIPWith \"n\" true \"u\" \"p\" \"s\" }} {{ PodIP }}",
            json!({"a": "10.2.0.1 10.1.0.1 10.2.0.1"}),
        ),
        ("a: {{ printf \"kwok-%s\" Version | upper | trimPrefix \"KWOK\" }}", json!({"a": "-V1"})),
        ("a: {{ default \"Delete\" .spec.reclaimPolicy | Quote }}", json!({"a": "Delete"})),
        ("a: {{ $d := or .metadata.annotations dict }}{{ or ( index $d \"x\" ) \"z\" }}", json!({"a": "z"})),
        ("a: {{ keys (merge (dict \"k\" 1) .metadata.labels) | join \",\" }}", json!({"a": "a,k"})),
        (
            "a: {{ add 1 2 .spec.n }} {{ mul 2 3 }} {{ div 7 2 }} {{ max 1 5 2 }} {{ seq 1 3 }}",
            json!({"a": "6 6 3 5 1 2 3"}),
        ),
        ("a: {{ range until 3 }}n{{ . }}{{ end }}", json!({"a": "n0n1n2"})),
        ("a: {{ dateModify \"-1h\" Now }}", json!({"a": "2026-01-02T02:04:05.12Z"})),
        (
            "a: {{ date \"2006-01-02 15:04\" Now }} {{ unixEpoch StartTime }}",
            json!({"a": "2026-01-02 03:04 1767322800"}),
        ),
        ("a: {{ \"a-b\" | replace \"-\" \"+\" | b64enc }}", json!({"a": "YSti"})),
        (
            "a: {{ regexReplaceAll \"p(o)d\" .metadata.name \"${1}x\" }} {{ sha256sum \"a\" | trunc 4 }}",
            json!({"a": "ox ca97"}),
        ),
        ("a: {{ toYaml (list 1 2) | nindent 2 }}", json!({"a": [1, 2]})),
    ] {
        assert_eq!(rendered(template, &object), Ok(expected), "{template}");
    }
    let made = rendered("a: {{ uuidv4 }}\nb: {{ randAlphaNum 8 }}", &object).unwrap();
    assert_eq!((made["a"].as_str().unwrap().len(), made["b"].as_str().unwrap().len()), (36, 8), "{made}");
    for (template, wrong) in [
        ("{{ .a", "template: template: "),
        ("{{ nosuch . }}", "template: "),
        ("a: [", "template: yaml: "),
        ("{{ div 1 0 }}", "template: execution error: div: division by zero"),
        ("{{ fail \"no\" }}", "template: execution error: fail: no"),
        ("{{ range until 100000 }}0123456789012345678901234567890123456789{{ end }}", "template: "),
        ("{{ upper }}", "template: execution error: upper: requires 1 arguments, got 0"),
    ] {
        let error = rendered(template, &object).unwrap_err();
        assert!(error.starts_with(wrong), "{template}: {error}");
    }
}

const STAGES: &str = "
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: begin}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .status.phase, operator: In, values: [Pending]}
  weight: 1
  weightFrom: {expressionFrom: '.metadata.annotations[\"begin/weight\"]'}
  delay:
    durationMilliseconds: 1000
    durationFrom: {expressionFrom: '.metadata.annotations[\"begin/delay\"]'}
    jitterDurationMilliseconds: 5000
  next:
    event: {type: Normal, reason: Begun, message: it goes on}
    finalizers: {add: [{value: a/b}], remove: [{value: c/d}]}
    statusTemplate: |
      phase: Running
      startTime: {{ Now | Quote }}
  immediateNextStage: true
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: fail}
spec:
  resourceRef: {kind: Pod}
  selector:
    matchLabels: {fail: 'true'}
  weight: 3
  steps:
  - patch: {root: status, subresource: status, type: merge, template: 'phase: Failed', impersonation: {username: kubelet}}
  - delete: true
  - event: {reason: Gone}
    patch: {template: 'never: true'}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: nobody}
spec:
  resourceRef: {kind: Pod}
";

#[test]
fn the_older_form_and_steps() {
    let all = stages(STAGES);
    assert_eq!(all.len(), 2, "one without a selector is nobody's");
    let pod = json!({"metadata": {"name": "p", "finalizers": ["c/d", "e/f"]}, "status": {"phase": "Pending"}});
    let begin = &all[0];
    assert_eq!((begin.steps(), begin.is_immediate(), begin.name()), (3, true, "begin"));
    let effects: Vec<_> = (0..3).flat_map(|i| begin.effects(i, &pod).unwrap()).collect();
    let [Effect::Event(event), Effect::Patch { form: PatchFormat::Json, body, .. }, patch] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((&*event.reason, &*event.message), ("Begun", "it goes on"));
    assert_eq!(body[1], json!({"op": "replace", "path": "/metadata/finalizers", "value": ["e/f", "a/b"]}));
    let body = json!({"status": {"phase": "Running", "startTime": NOW}});
    let subresource = "status".to_owned();
    assert_eq!(
        *patch,
        Effect::Patch { form: PatchFormat::Strategic, subresource: subresource.clone(), body, acting_as: None }
    );
    // Finalizers that are already correct are not patched.
    let right = json!({"metadata": {"finalizers": ["a/b"]}});
    assert_eq!(begin.effects(1, &right), Ok(vec![]));

    let fail = &all[1];
    let acting_as = Some("kubelet".to_owned());
    let patch = Effect::Patch {
        form: PatchFormat::Merge,
        subresource,
        body: json!({"status": {"phase": "Failed"}}),
        acting_as,
    };
    assert_eq!(fail.effects(0, &pod), Ok(vec![patch]));
    assert_eq!(fail.effects(1, &pod), Ok(vec![Effect::Delete]));
    // A deleted object gets events, but no writes.
    let reported = fail.effects(2, &pod).unwrap();
    assert!(matches!(&reported[..], [Effect::Event(e)] if e.reason == "Gone"), "{reported:?}");
}

#[test]
fn weights_and_delays() {
    let stages = Lifecycle(stages(STAGES));
    let pod = |weight: Option<&str>, delay: Option<&str>| {
        let mut pod =
            json!({"metadata": {"labels": {"fail": "true"}, "annotations": {}}, "status": {"phase": "Pending"}});
        for (key, value) in [("begin/weight", weight), ("begin/delay", delay)] {
            if let Some(value) = value {
                pod["metadata"]["annotations"][key] = json!(value);
            }
        }
        pod
    };
    let mut chance = StdRng::seed_from_u64(1);
    let mut begun = |pod: &Value| {
        let times = (0..400).filter(|_| stages.choose(pod, &mut chance).unwrap().unwrap().name() == "begin");
        times.count()
    };
    let quarter = begun(&pod(None, None));
    assert!((60..140).contains(&quarter), "{quarter}");
    let most = begun(&pod(Some("27"), None));
    assert!((330..390).contains(&most), "{most}");
    assert_eq!(begun(&pod(Some("0"), None)), 0);
    assert_eq!(begun(&json!({"metadata": {}, "status": {"phase": "Pending"}})), 400, "the only one that fits");
    assert!(stages.choose(&json!({"metadata": {}}), &mut StdRng::seed_from_u64(1)).unwrap().is_none());

    let (now, begin) = (NOW.parse().unwrap(), &stages.0[0]);
    let mut chance = StdRng::seed_from_u64(1);
    for _ in 0..50 {
        let delay = begin.delay(&pod(None, None), now, &mut chance).unwrap();
        assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&delay), "{delay:?}");
    }
    // A jitter that is shorter than the duration replaces it.
    assert_eq!(begin.delay(&pod(None, Some("1m")), now, &mut chance), Ok(Duration::from_secs(5)));
    assert_eq!(stages.0[1].delay(&pod(None, None), now, &mut chance), Ok(Duration::ZERO));
}

#[test]
fn faults_name_their_place() {
    let check = |spec: Value, expected: &str| {
        let document = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap();
        let error = Stage::compile(&document, &templates()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    let with = |key: &str, value: Value| json!({"resourceRef": {"kind": "Pod"}, "selector": {}, key: value});
    check(json!({}), "stage \"s\": spec.resourceRef.kind: kind is required");
    check(
        with("weightFrom", json!({"expressionFrom": ".["})),
        "stage \"s\": spec.weightFrom.jq: must be a jq filter, got \".[\"",
    );
    check(
        with("delay", json!({"durationFrom": {"cel": {"expression": "1 +"}}})),
        "stage \"s\": spec.delay.durationFrom.cel: ",
    );
    check(
        with("steps", json!([{"patch": {"type": "other"}}])),
        "stage \"s\": spec.steps[0].patch.type: unsupported value \"other\"",
    );
    check(with("next", json!({"statusTemplate": "{{ x"})), "stage \"s\": spec.steps[0].patch.template: ");
    check(
        with("steps", json!([{"apply": {"type": "json"}}])),
        "stage \"s\": spec.steps[0].apply.type: unsupported value \"json\"",
    );
}
