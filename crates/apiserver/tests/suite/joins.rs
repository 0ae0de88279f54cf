//! `POST /kelson/join`: which users may post, and what its handler gets.
use std::sync::Arc;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use kelson_apiserver::JoinHandler;
use kelson_auth::{UserInfo, user};
use kelson_meta::Status;
use serde_json::{Value, json};

use crate::common::Api;

struct Echo;

#[async_trait]
impl JoinHandler for Echo {
    async fn answer(&self, user: &UserInfo, body: &[u8]) -> Result<Value, Status> {
        match body {
            b"" => Err(Status::bad_request("empty")),
            body => Ok(json!({"user": user.name, "body": String::from_utf8_lossy(body)})),
        }
    }
}

async fn post(api: &Api, groups: &[&str], body: &'static str) -> (u16, Value) {
    let user = UserInfo::new("system:bootstrap:abcdef", groups.iter().map(|group| (*group).to_owned()));
    let request = http::Request::builder().method("POST").uri("/kelson/join").body(body.into()).expect("a request");
    let answer = api.send(user, request).await;
    let code = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&bytes).expect("JSON"))
}

#[tokio::test]
async fn only_users_with_a_role_can_post_a_join() {
    const SERVERS: &str = "system:bootstrappers:kelson:server";
    let api = Api::with(|config| config.join = Some(Arc::new(Echo))).await;
    assert_eq!(post(&api, &[user::BOOTSTRAPPERS, SERVERS], "x").await.0, 403, "without a role");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"nonResourceURLs": ["/kelson/join"], "verbs": ["post"]}]);
    api.create(&format!("{rbac}/clusterroles"), json!({"metadata": {"name": "join"}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": "join"}, "subjects": [{"kind": "Group", "name": SERVERS}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "join"}});
    api.create(&format!("{rbac}/clusterrolebindings"), binding).await;
    let allowed = async {
        loop {
            match post(&api, &[user::BOOTSTRAPPERS, SERVERS], "x").await {
                (403, _) => tokio::task::yield_now().await,
                other => return other,
            }
        }
    };
    let answer =
        tokio::time::timeout(std::time::Duration::from_secs(20), allowed).await.expect("the role is effective");
    assert_eq!(answer, (200, json!({"user": "system:bootstrap:abcdef", "body": "x"})));
    let (code, status) = post(&api, &[user::BOOTSTRAPPERS, SERVERS], "").await;
    assert_eq!((code, &status["message"]), (400, &json!("empty")));
    assert_eq!(post(&api, &[user::BOOTSTRAPPERS], "x").await.0, 403, "the token of a node");
}

#[tokio::test]
async fn the_path_exists_only_with_a_handler() {
    assert_eq!(post(&Api::start().await, &[user::MASTERS], "x").await.0, 404);
}
