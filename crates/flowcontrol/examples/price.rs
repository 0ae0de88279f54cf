//! What sorting one request and giving it a seat costs: time for each, with the levels and schemas that every cluster has.
//! `cargo run --release -p kelson-flowcontrol --example price -- [REQUESTS]`
use std::sync::Arc;
use std::time::Instant;

use kelson_auth::{Attributes, UserInfo, user};
use kelson_flowcontrol::{Admission, FlowControl, Work, objects};
use kelson_metrics::Registry;
use kelson_tasks::Tasks;

fn control() -> Result<Arc<FlowControl>, Box<dyn std::error::Error>> {
    let control = FlowControl::new(600, &Registry::new(), &Tasks::root("price"));
    let (mut levels, mut schemas) = (Vec::new(), Vec::new());
    for wanted in objects::wanted() {
        if wanted.resource == "flowschemas" {
            schemas.push(serde_json::from_value(wanted.object)?);
        } else {
            levels.push(serde_json::from_value(wanted.object)?);
        }
    }
    control.configure(&levels, &schemas);
    Ok(control)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let requests: u32 = std::env::args().nth(1).map_or(Ok(1_000_000), |n| n.parse())?;
    let control = control()?;
    for (who, groups) in [
        ("admin", vec![user::MASTERS, user::AUTHENTICATED]),
        ("system:node:n", vec![user::NODES, user::AUTHENTICATED]),
        ("system:serviceaccount:default:x", vec!["system:serviceaccounts", user::AUTHENTICATED]),
        ("jane", vec!["developers", user::AUTHENTICATED]),
    ] {
        let user = UserInfo::new(who, groups);
        let request = Attributes::resource(&user, "get", "", "pods", "default", "x");
        let begun = Instant::now();
        for _ in 0..requests {
            let class = control.classify(&request).ok_or("sorted into nothing")?;
            match control.start(&class, &request, Work::ONE, Default::default) {
                Admission::Run(seats) => drop(seats),
                _ => return Err("one request alone has no seat".into()),
            }
        }
        println!("{who}: {:?} for each of {requests}", begun.elapsed() / requests.max(1));
    }
    Ok(())
}
