module kelson.dev/kelsontest

go 1.22
