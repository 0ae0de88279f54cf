//! Kelson apiserver: the request path, discovery, OpenAPI, watch serving.
