//! One request as data: its head, query and body, and the bytes of a response. Nothing here knows the server.
pub mod answer;
pub mod audit;
pub mod body;
pub mod headers;
pub mod list_options;
pub mod negotiate;
pub mod offer;
pub mod order;
pub mod route;
pub mod routes;
pub mod selectors;
pub mod upgrade;
pub mod version_param;
pub mod view;
