//! Kelson codec: JSON, YAML and protobuf to and from one value tree, by the schema table.
