-- wrk: create custom resources with names of their own in the namespace NS, with the bearer token TOKEN. Their kind is the one of
-- custom.json: ten rules hold over an object that is about as large as the pods of create-pods.lua. RUN keeps the names of one
-- run apart from those of another.
local token = os.getenv("TOKEN")
local run = os.getenv("RUN") or "0"
local path = "/apis/bench.example.com/v1/namespaces/" .. os.getenv("NS") .. "/widgets"
local headers = { ["Authorization"] = "Bearer " .. token, ["Content-Type"] = "application/json" }
local threads = 0
function setup(thread)
  thread:set("id", threads)
  threads = threads + 1
end
local spec = [["spec":{"replicas":3,"min":1,"max":9,"image":"registry.example/app:1.0","command":["/bin/app","--verbose"],]]
  .. [["env":[{"name":"MODE","value":"fast"},{"name":"SELF","value":"metadata.name"}],]]
  .. [["ports":[{"name":"http","port":8080},{"name":"metrics","port":9090}],]]
  .. [["requests":{"cpu":"50m","memory":"64Mi"},"limits":{"memory":"128Mi"},"path":"/ready","zone":"a"}}]]
function init()
  count = 0
end
function request()
  count = count + 1
  local name = "w" .. run .. "-" .. id .. "-" .. count
  return wrk.format("POST", path, headers, '{"apiVersion":"bench.example.com/v1","kind":"Widget","metadata":{"name":"' .. name
    .. '","labels":{"app":"bench","shard":"s' .. (count % 40) .. '"}},' .. spec)
end
response = require("refusals")(201)
