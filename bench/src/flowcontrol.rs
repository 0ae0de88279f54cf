//! The cost of classifying one request and giving it a seat, with the levels and schemas that every cluster has.
//! `flowcontrol [REQUESTS]`
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use kelson_auth::{Attributes, UserInfo, user};
use kelson_flowcontrol::{Admission, FlowControl, Work, objects};
use kelson_metrics::Registry;
use kelson_tasks::Tasks;

use crate::block_on;

fn control() -> anyhow::Result<Arc<FlowControl>> {
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

/// Prints the time of one request.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    block_on(1, measure(args))
}

async fn measure(args: &[String]) -> anyhow::Result<()> {
    let requests: u32 = args.first().map_or(Ok(1_000_000), |n| n.parse())?;
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
            let class = control.classify(&request).context("no flow schema matches")?;
            match control.start(&class, &request, Work::ONE, Default::default) {
                Admission::Run(seats) => drop(seats),
                _ => anyhow::bail!("a single request gets no seat"),
            }
        }
        println!("{who}: {:?} for each of {requests}", begun.elapsed() / requests.max(1));
    }
    Ok(())
}
