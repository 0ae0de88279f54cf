//! Small definitions in the form of a source tree of Kubernetes, for tests of the generators: one kind, one gate.
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

const META: &str = "\
package v1
type TypeMeta struct {
\tKind string `json:\"kind,omitempty\" protobuf:\"bytes,1,opt,name=kind\"`
\tAPIVersion string `json:\"apiVersion,omitempty\" protobuf:\"bytes,2,opt,name=apiVersion\"`
}
type WatchEvent struct {
\tType string `json:\"type\" protobuf:\"bytes,1,opt,name=type\"`
}
";
const META_PROTO: &str = "\
package k8s.io.apimachinery.pkg.apis.meta.v1;
message TypeMeta {
  optional string kind = 1;
  optional string apiVersion = 2;
}
message WatchEvent {
  optional string type = 1;
}
";

/// Writes the files of a minor version. From 37 on, a widget has a colour and a short name, a successor is declared,
/// and its feature is on.
pub fn write(root: &Path, minor: u16) -> Result<()> {
    let later = minor >= 37;
    let only = |text: &str| if later { text.to_owned() } else { String::new() };
    let put = |path: &str, text: String| -> Result<()> {
        let path = root.join(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        Ok(fs::write(path, text)?)
    };
    let staging = "staging/src/k8s.io";
    let binary = format!("package version\nconst (\n\tDefaultKubeBinaryVersion = \"1.{minor}\"\n)\n");
    put(&format!("{staging}/component-base/version/base.go"), binary)?;
    for path in crate::gates::MODULES.iter().chain([&crate::gates::MAIN]).chain(&crate::resources::PRIORITIES) {
        put(path, "package empty\n".to_owned())?;
    }
    for module in ["apiextensions-apiserver", "kube-aggregator", "metrics"] {
        fs::create_dir_all(root.join(staging).join(module))?;
    }
    let beta = "\t\t{Version: version.MustParse(\"1.37\"), Default: true, PreRelease: featuregate.Beta},\n";
    let gate = "\tWidgets featuregate.Feature = \"Widgets\"\nvar all = x{\n\tWidgets: {\n\t\t{Version: version.MustParse(\"1.36\"), \
                Default: false, PreRelease: featuregate.Alpha},\n";
    put(crate::gates::MAIN, format!("{gate}{beta}\t}},\n}}\n"))?;
    put(
        crate::resources::PRIORITIES[0],
        "\t{Group: \"example.io\", Version: \"v1beta1\"}: {Group: 1700, Version: 9},\n".to_owned(),
    )?;
    let meta = format!("{staging}/apimachinery/pkg/apis/meta/v1");
    put(&format!("{meta}/types.go"), META.to_owned())?;
    put(&format!("{meta}/generated.proto"), META_PROTO.to_owned())?;

    let api = format!("{staging}/api/example/v1beta1");
    let colour = only("\tColour string `json:\"colour,omitempty\" protobuf:\"bytes,2,opt,name=colour\"`\n");
    put(
        &format!("{api}/types.go"),
        format!(
            "package v1beta1\nimport (\n\tmetav1 \"k8s.io/apimachinery/pkg/apis/meta/v1\"\n)\n\
             const GroupName = \"example.io\"\ntype Widget struct {{\n\tmetav1.TypeMeta `json:\",inline\"`\n\
             \tSize int32 `json:\"size,omitempty\" protobuf:\"varint,1,opt,name=size\"`\n{colour}}}\n"
        ),
    )?;
    let colour = only("  optional string colour = 2;\n");
    put(
        &format!("{api}/generated.proto"),
        format!("package k8s.io.api.example.v1beta1;\nmessage Widget {{\n  optional int32 size = 1;\n{colour}}}\n"),
    )?;
    let said = |what: &str, value: &str| {
        format!("func (in *Widget) APILifecycle{what}() (major, minor int) {{\n\treturn {value}\n}}\n")
    };
    let instead =
        said("Replacement", "schema.GroupVersionKind{Group: \"example.io\", Version: \"v1\", Kind: \"Widget\"}");
    let lives = [said("Introduced", "1, 32"), said("Deprecated", "1, 35"), said("Removed", "1, 38"), only(&instead)];
    put(&format!("{api}/zz_generated.prerelease-lifecycle.go"), lives.concat())?;

    published(&put, later)
}

/// Writes the documents that a server of that version answers with.
fn published(put: &impl Fn(&str, String) -> Result<()>, later: bool) -> Result<()> {
    let mut widget =
        json!({"name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget", "verbs": ["get"]});
    let mut properties = json!({"size": {"type": "integer", "format": "int32"}});
    if later {
        widget["shortNames"] = json!(["wd"]);
        properties["colour"] = json!({"type": "string"});
    }
    let version = json!({"groupVersion": "example.io/v1beta1", "version": "v1beta1"});
    let groups = json!({"groups": [{"name": "example.io", "versions": [version], "preferredVersion": version}]});
    put("api/discovery/apis.json", groups.to_string())?;
    put("api/discovery/api__v1.json", json!({"resources": []}).to_string())?;
    put("api/discovery/apis__example.io__v1beta1.json", json!({"resources": [widget]}).to_string())?;
    let definitions = json!({"io.k8s.api.example.v1beta1.Widget": {"type": "object", "properties": properties}});
    put("api/openapi-spec/swagger.json", json!({"definitions": definitions}).to_string())?;
    let v3 = json!({"components": {"schemas": definitions}});
    put("api/openapi-spec/v3/apis__example.io__v1beta1_openapi.json", v3.to_string())
}
