//! Tests of the API server from outside, along the whole path of a request.

mod addresses;
mod admission;
mod bad_input;
mod common;
mod crud;
mod custom;
mod dynamic;
mod encryption;
mod fairness;
mod forms;
mod identity;
mod large;
mod lists;
mod node_rights;
mod nodes;
mod overload;
mod patches;
mod permissions;
mod policies;
mod selectable;
mod served;
mod told;
mod traces;
mod webhooks;
